"""A trace replayed in memory gives the seals that were traced, byte for byte, or the check says where it does not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from peer.options import SwarmOptions
from peer.settings import CELL, round_setting, train_config
from peer.start_state import fresh_state
from peer.state import StateStore
from peer.swarm.launch import keys, local_manifest
from peer.swarm.replay import HEADER, replay_check
from peer.virtual import Plan, QuickScope, World
from peer.virtual.plan import draw
from protocols.manifest import render, run_id
from protocols.messages import Leg
from protocols.round.effects import Train, Window

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.ids import PeerId

OPTIONS = SwarmOptions(peers=2, seed=3, rounds=2, size="nano")


def write(folder: Path) -> None:
    """What ``write_trace`` leaves, of a virtual swarm in place of daemons."""
    identities = keys(OPTIONS)
    manifest = local_manifest(OPTIONS, identities)
    config = train_config(manifest, None)
    scope = QuickScope(run_id(manifest), CELL)
    stores = {
        each.peer: StateStore(folder / f"peer-{index}", scope, config.parameters)
        for index, each in enumerate(identities)
    }

    def trainer(peer: PeerId, effect: Train) -> Window | None:
        if effect.round > OPTIONS.rounds:
            return None
        drift = effect.drift + draw(peer, effect.parent, len(effect.base))
        stores[peer].save_pending(effect.parent, effect.round, drift, [Leg(effect.parent, 25, 1000)])
        return Window(drift, 25, 1000)

    state = fresh_state(config.size, config.context, config.seed)
    setting = round_setting(manifest, config.parameters)
    plan = Plan(scope=scope, setting=setting, founders=identities, state=state, trainer=trainer)
    world = World(9, OPTIONS.peers, OPTIONS.rounds, plan=replace(plan, keep=0))
    world.run().require()
    proposals = [[sealed.head.proposal for sealed in world.peers[each.peer].sealed] for each in identities]
    seals = {str(index): [each.raw.hex() for each in own if each is not None] for index, own in enumerate(proposals)}
    header = {"schema": 1, "seed": OPTIONS.seed, "peers": OPTIONS.peers, "seals": seals}
    (folder / "run.toml").write_text(render(manifest))
    (folder / HEADER).write_text(json.dumps({**header, "seconds": {"0": {"1": 3.0, "2": 4.0}, "1": {"1": 9.0}}}))


def test_the_same_windows_give_the_same_seals_at_another_pace(tmp_path: Path) -> None:
    write(tmp_path)
    assert replay_check(tmp_path) == {"name": "replay_identical", "ok": True, "detail": ""}
    header = json.loads((tmp_path / HEADER).read_text())
    header["seals"]["1"].pop()
    (tmp_path / HEADER).write_text(json.dumps(header))
    found = replay_check(tmp_path)
    assert not found["ok"] and "peer 1: 2 seals in memory, 1 of the daemon, 1 equal" in found["detail"]
