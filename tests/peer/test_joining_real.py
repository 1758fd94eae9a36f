"""Real daemons give their state to one that comes with an invitation: slowly, until they die, or with lies.

FC09, FC10 and FC12. The donors' machines are wrapped (``tests/peer/donor.py``); the model is nano, in small chunks.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from peer.models.layout import parameter_count
from tests.peer.donor import CHUNK_BYTES
from tests.peer.live import Live, address, home_of, murmur, run_folder, sealed, small_run, until
from tests.peer.test_joining import NEAR, STRANGER, accepted, invitation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from peer.identity import Identity

pytestmark = [pytest.mark.real, pytest.mark.timeout(150)]

OLD = 18
"""A newcomer replays up to 16 rounds; after this one it loads the state as of round 16."""
CHUNKS = 2 * -(-4 * parameter_count("nano", 32) // CHUNK_BYTES)
"""40: half of the parameters, half of the momentum."""


class Town:
    """Founders that give to newcomers, and whoever comes."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.founders: list[Live] = []
        self.keys: list[Identity] = []

    def begin(self, *habits: tuple[str, ...]) -> None:
        """Start a founder with each of these habits; all train until they have sealed round ``OLD``."""
        run, self.keys = small_run(self.folder, founders=len(habits), seconds=1, guests=True)
        for key, each in zip(self.keys, habits, strict=True):
            join = (f"--join={address(self.founders[0])}",) if self.founders else ()
            self.founders.append(self.start(key, each, f"--run={run}", *join))
        until(lambda: max(sealed(self.founders[0].home.root), default=0) >= OLD, 90, f"{OLD} rounds are sealed")

    def start(self, key: Identity, habits: Sequence[str], *options: str) -> Live:
        """A daemon."""
        name = f"home-{key.peer[-4:]}"
        program = (sys.executable, "-m", "tests.peer.donor", f"--notes={self.folder / f'{key.peer}.notes'}", *habits)
        return self._stack.enter_context(murmur(home_of(self.folder, key, name), *NEAR, *options, program=program))

    def come(self, through: Live) -> Live:
        """A stranger with an invitation, and with nothing in its home but its key."""
        return self.start(STRANGER, (), f"--join={invitation(through)}")

    def notes(self, peer: str, what: str) -> list[dict[str, Any]]:
        """Each thing of this kind that a peer has noted: at (unix seconds), peer (the other one), indices."""
        path = self.folder / f"{peer}.notes"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        found = [json.loads(each) for each in lines if each.endswith("\n")]
        return [each for each in found if each["what"] == what]

    def came(self) -> list[tuple[str, int]]:
        """(donor, index) of every chunk that reached the stranger."""
        return [(each["peer"], *each["indices"]) for each in self.notes(STRANGER.peer, "came")]

    def asked(self) -> list[tuple[str, int]]:
        """(donor, index) of every chunk that the stranger asked for."""
        pairs = [(key.peer, each) for key in self.keys for each in self.notes(key.peer, "asked")]
        return [(donor, index) for donor, each in pairs for index in each["indices"]]


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with contextlib.ExitStack() as stack:
        yield Town(tmp_path, stack)


def joined(town: Town, guest: Live) -> dict[str, Any]:
    """Wait until the newcomer's update counts; the entry of the one round whose state it loaded."""
    witness = town.founders[-1]
    until(
        lambda: bool(accepted(witness.home.root, STRANGER)) or guest.process.poll() is not None,
        60, "the newcomer's update counts",
    )  # fmt: skip
    logs = [sealed(each.home.root) for each in (guest, witness)]
    (loaded,) = [each for each in logs[0].values() if each["synced"]]
    assert loaded["round"] >= 16 and min(logs[0]) == loaded["round"], "it jumped there, once"
    both = logs[0].keys() & logs[1].keys()
    assert len(both) > 1 and all(logs[0][each]["state_hash"] == logs[1][each]["state_hash"] for each in both)
    rounds = sorted(logs[0])
    assert rounds == list(range(rounds[0], rounds[-1] + 1)), "and replayed every round since"
    return loaded


def test_fc09_a_download_longer_than_three_rounds_is_done_once(town: Town) -> None:
    town.begin(*[("--seconds=1",)] * 3)
    guest = town.come(town.founders[0])
    loaded = joined(town, guest)
    chunks = [index for _, index in town.came()]
    assert sorted(chunks) == list(range(CHUNKS)), "every chunk once"
    assert {donor for donor, _ in town.came()} == {key.peer for key in town.keys}
    began = min(each["at"] for key in town.keys for each in town.notes(key.peer, "asked"))
    meanwhile = [each for each in sealed(town.founders[0].home.root).values() if began < each["unix"] < loaded["unix"]]
    assert len(meanwhile) > 3


def test_fc10_a_donor_that_is_killed_costs_what_was_under_way_from_it(town: Town) -> None:
    town.begin(*[("--seconds=0.5",)] * 4)
    guest = town.come(town.founders[3])
    until(lambda: len(town.came()) >= 0.7 * CHUNKS or guest.process.poll() is not None, 60, "70 % are here")
    dead = town.keys[1].peer
    town.founders[1].process.send_signal(signal.SIGKILL)
    came = town.came()
    assert dead in {donor for donor, _ in came}
    joined(town, guest)
    asked, came = town.asked(), town.came()
    lost = {index for donor, index in asked if donor == dead} - {index for donor, index in came if donor == dead}
    assert {index for _, index in came} == set(range(CHUNKS)) and lost
    for index in range(CHUNKS):
        others = [donor for donor, each in asked if each == index and donor != dead]
        assert len(others) == (index in lost or (dead, index) not in asked), f"chunk {index}"


def test_fc12_who_shows_a_far_round_and_who_gives_nan_are_named_and_change_nothing(town: Town) -> None:
    town.begin(("--lie=chain",), ("--lie=state",), ("--seconds=0.3",))
    far, nan, honest = (key.peer for key in town.keys)
    guest = town.come(town.founders[0])
    joined(town, guest)
    assert town.notes(far, "lied")
    shown = [*(each["text"] for each in guest.status()["warnings"]), *guest.log.splitlines()]
    assert any(far in each and "does not follow" in each for each in shown)
    assert any(nan in each and "not of seal" in each for each in shown)
    chunks = [index for donor, index in town.came() if donor == honest]
    assert sorted(chunks) == list(range(CHUNKS))
    for live in (guest, *town.founders):
        assert live.asked(signal.SIGTERM, 20) == 0
        vectors = load_file(max(run_folder(live.home.root).glob("round-*.safetensors")))
        assert all(np.isfinite(each).all() for each in vectors.values())
