"""FC18: a swarm of one trains as well as plain AdamW does, and whoever joins it then takes nothing from its loss."""

from __future__ import annotations

import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from peer.corpus import load_shards
from peer.evaluate import held_out_loss
from peer.identity import Identity
from peer.settings import CELL, train_config
from peer.state import StateStore
from peer.swarm.baseline import Baselines
from protocols.manifest import run_id
from protocols.manifest_text import parse
from protocols.statements import Scope
from tests.peer.live import Live, run_folder, sealed, small_run, together, until

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.manifest import Manifest

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

STEPS, ALONE = 50, 4
"""Steps a round, and rounds alone: 200 steps. A round is long enough that whoever catches up commits one window or two:
with rounds of 0.25 s it once committed several at once, and the first of its rounds overshot by 0.08."""
NOISE = 0.03
"""Nats per byte between two runs that differ in nothing but their data (0.011 was seen)."""
ALARM = re.compile(r"WARNING|ERROR|CRITICAL|Traceback|\bnorm\b|\bnan\b")


class Losses:
    """Held-out losses of the states that a daemon sealed, nats per byte."""

    def __init__(self, manifest: Manifest, home: Path) -> None:
        self._config = train_config(manifest, None)
        self._shards = load_shards(self._config.data)
        scope = Scope(run_id(manifest), CELL)
        self._store = StateStore(run_folder(home), scope, self._config.parameters)

    def after(self, number: int) -> float:
        """Of the state after a round."""
        checkpoint = self._store.read(number)
        assert checkpoint is not None
        return held_out_loss(checkpoint.params, self._config, self._shards)

    def adamw(self, manifest: Manifest, rounds: int) -> float:
        """Of plain training for as many steps, at the run's own rate."""
        return Baselines(manifest, self._config, self._shards).adamw(float(manifest.inner.lr), rounds)


def contributions(live: Live, peer: str) -> list[int]:
    """The rounds in which this peer's update counted."""
    return [number for number, entry in sealed(live.home.root).items() if entry["weights"].get(peer)]


def test_alone_for_200_steps_it_learns_and_who_joins_then_takes_part(tmp_path: Path) -> None:
    run, keys = small_run(tmp_path, steps=STEPS, codec="float32", guests=True)
    guest = Identity.from_seed(bytes(31) + b"\x09")
    manifest = parse(run.read_text())
    with together(tmp_path, keys, f"--run={run}", "--keep-checkpoints=1000") as (first,):
        until(lambda: len(sealed(first.home.root)) >= ALONE, 120, "200 steps are done")
        with together(tmp_path, [guest], f"--run={run}", seed=first) as (second,):
            until(lambda: bool(contributions(first, guest.peer)), 120, "the guest takes part")
            until(lambda: len(contributions(first, guest.peer)) >= 4, 120, "and goes on taking part")
            for each in (second, first):
                assert each.asked(signal.SIGTERM, 30) == 0
    for each in (first, second):
        assert not ALARM.search(each.log + each.complaints), each.log
    losses, joined = Losses(manifest, first.home.root), contributions(first, guest.peer)
    loss = {number: losses.after(number) for number in (1, 2, ALONE, joined[0] - 1, joined[0], joined[3])}
    plain = losses.adamw(manifest, ALONE)
    sys.stdout.write(f"\n{loss}, plain AdamW after {ALONE} rounds {plain:.4f}")
    assert loss[1] > loss[2] > loss[ALONE]
    assert loss[ALONE] < plain + NOISE
    assert loss[joined[0]] < loss[joined[0] - 1] + NOISE
    assert loss[joined[3]] < loss[joined[0] - 1] + NOISE
    logs = [sealed(each.home.root) for each in (first, second)]
    assert all(logs[0][number]["seal"] == logs[1][number]["seal"] for number in logs[0].keys() & logs[1].keys())
