"""Killed at any point, or with a full disk, a peer goes on from its disk: one chain, one statement for each slot."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import shutil
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import pytest

from peer import session as module
from peer.journal import Journal
from peer.session import Session
from peer.state import StateStore
from peer.windows import Parts
from protocols.canonical import unpack
from protocols.errors import EnvironmentFault
from protocols.outer import state_root
from protocols.round.chain import seal_zero
from protocols.round.effects import Effect, Setting, Train, Window
from protocols.round.machine import Machine
from protocols.round.timing import Timing
from tests.peer.live import statements
from tests.peer.stage import ME, Watcher, play
from tests.peer.test_state import SCOPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from peer.outbox import Outbox
    from peer.state import Checkpoint
    from protocols.ids import Hash, PeerId

VALUES, PART = 500, 64
SETTING = Setting(
    values=VALUES, update_codec="int8", result_codec="int8", rule="mean", tolerated=1 / 3, lr=0.7, momentum=0.8,
    probation=0, open=True, part=PART,
)  # fmt: skip
LIVES = 10
"""Random rows of lives that are tried."""

T = TypeVar("T")
Slot = tuple[str, bytes]


class Killed(Exception):
    """Stands for kill -9."""


class Wire:
    """An outbox to nobody that keeps the statements which left."""

    def __init__(self) -> None:
        self.left: list[bytes] = []

    def flood(self, kind: str, payload: list[bytes], source: PeerId | None) -> None:
        self.left.append(SCOPE.decode(payload[0], sender="test").raw)

    def post(self, to: PeerId, kind: str, payload: list[bytes]) -> None:
        """Alone, nobody is there."""


class Mortal(Session):
    """A session that dies after so many effects and calls of the disk; inf: never."""

    life: float = float("inf")

    def _age(self) -> None:
        self.life -= 1
        if self.life <= 0:
            raise Killed

    async def _one_effect(self, effect: Effect) -> list[Effect]:
        self._age()
        return await super()._one_effect(effect)

    async def _on_disk(self, run: Callable[[], T]) -> T:
        result = await super()._on_disk(run)
        self._age()
        return result


class Life:
    """One start of a peer alone, from what its folder holds, until it has sealed up to round ``last``."""

    def __init__(self, folder: Path, last: int = 2, setting: Setting = SETTING) -> None:
        self.folder, self.last = folder, last
        self.watcher, self.wire = Watcher(), Wire()
        store = StateStore(folder, SCOPE, VALUES)
        found = store.load()
        if found is None:
            params = np.linspace(-1, 1, VALUES, dtype=np.float32)
            state, drift = (params, params * 0), params * 0
            ages: tuple[int, ...] = ()
            head = seal_zero(SCOPE, [ME.peer], state_root(*state))
        else:
            head, state, drift, ages = found.head, (found.params, found.momentum), found.drift, found.ages
        self.watcher.rounds = last - head.round
        self.journal = Journal(store.journal_path, SCOPE, ME.peer, ME.sign)
        machine = Machine(
            SCOPE, ME.peer, setting, head, state,
            signed_view=self.journal.signed_view, links=store.links(), ages=ages,
        )  # fmt: skip
        clock = asyncio.get_running_loop().time
        parts = Parts(SCOPE, machine, self.journal, store, self._train, clock, drift)
        self.session = Mortal(parts, self.watcher, cast("Outbox", self.wire))
        self.over = self.watcher.rounds <= 0

    async def _train(self, effect: Train) -> Window:
        drawn = np.random.default_rng(effect.round).standard_normal(VALUES, dtype=np.float32)
        return Window(effect.drift + drawn, 3, 300)

    async def live(self, life: float = float("inf")) -> bool:
        """Whether it reached its end, before it was killed."""
        if self.over:
            self.journal.close()
            return True
        self.session.life = life
        running = asyncio.create_task(self.session.run())
        finished = asyncio.create_task(self.session.finished.wait())
        await asyncio.wait({running, finished}, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        finished.cancel()
        (outcome, _) = await asyncio.gather(running, finished, return_exceptions=True)
        self.journal.close()
        assert isinstance(outcome, Killed | asyncio.CancelledError), outcome
        return not isinstance(outcome, Killed)

    @property
    def seals(self) -> dict[int, Hash]:
        return {each.head.round: each.head.seal for each in self.watcher.sealed}


class Past:
    """What a peer has sealed and signed over all its lives; contradictions fail the test."""

    def __init__(self) -> None:
        self.seals: dict[int, Hash] = {}
        self.signed: dict[Slot, bytes] = {}

    def add(self, life: Life) -> None:
        for number, seal in life.seals.items():
            assert self.seals.setdefault(number, seal) == seal, f"two seals of round {number}"
        now = statements(life.folder / "journal")
        assert self.signed.items() <= now.items(), "what was signed once is never signed otherwise"
        self.signed = now
        for raw in life.wire.left:
            fields = cast("dict[str, bytes]", unpack(raw))
            assert now[(str(fields["kind"]), fields["slot"])] == raw, "it left before it was in the journal"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that was written, so fsync makes no difference here."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


async def undisturbed(folder: Path, last: int) -> Past:
    life, past = Life(folder, last), Past()
    assert await life.live()
    past.add(life)
    assert sorted(past.seals) == list(range(1, last + 1))
    return past


def test_killed_at_each_single_point_of_two_rounds(tmp_path: Path) -> None:
    async def scene() -> None:
        expected = (await undisturbed(tmp_path / "undisturbed", 2)).seals
        for point in itertools.count(1):
            past, folder = Past(), tmp_path / str(point)
            first = Life(folder)
            reached = await first.live(point)
            past.add(first)
            second = Life(folder)
            assert await second.live()
            past.add(second)
            # A seal that was saved but not shown before the kill is in no life's list: the later ones build on it.
            assert past.seals.items() <= expected.items() and StateStore(folder, SCOPE, VALUES).read(2)
            found = StateStore(folder, SCOPE, VALUES).load()
            assert found is not None and found.head.seal == expected[2]
            shutil.rmtree(folder)
            if reached:
                assert point > 20, "there must be points at which it was killed"
                return

    play(scene())


def test_killed_again_and_again(tmp_path: Path) -> None:
    async def scene() -> None:
        expected = (await undisturbed(tmp_path / "undisturbed", 3)).seals
        for seed in range(LIVES):
            draw, past, folder = random.Random(seed), Past(), tmp_path / str(seed)
            for _ in range(6):
                life = Life(folder, 3)
                await life.live(draw.randint(1, 40))
                past.add(life)
            last = Life(folder, 3)
            assert await last.live()
            past.add(last)
            found = StateStore(folder, SCOPE, VALUES).load()
            assert found is not None and found.head.seal == expected[3], seed
            assert past.seals.items() <= expected.items(), seed
            shutil.rmtree(folder)

    play(scene())


def test_a_wall_clock_that_jumps_by_an_hour_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four starts with a steady clock, four whose clock jumps all the time and left files of any age behind."""
    draw, true = random.Random(1), time.time

    def age_at_random(folder: Path) -> None:
        for path in folder.iterdir():
            os.utime(path, (true() + draw.choice((-3600, 3600)),) * 2)

    async def starts(folder: Path) -> Past:
        past = Past()
        for last in (1, 2, 3, 4):
            life = Life(folder, last)
            assert await life.live()
            past.add(life)
            if folder.name == "jumping":
                age_at_random(folder)
        return past

    async def scene() -> None:
        steady = await starts(tmp_path / "steady")
        monkeypatch.setattr(time, "time", lambda: true() + draw.choice((-3600, 0, 3600)))
        jumping = await starts(tmp_path / "jumping")
        assert len(steady.seals) == 4
        assert (jumping.seals, jumping.signed) == (steady.seals, steady.signed)
        names = [sorted(path.name for path in (tmp_path / each).iterdir()) for each in ("jumping", "steady")]
        assert names[0] == names[1]

    play(scene())


@pytest.mark.parametrize("unsaved", [1, 3, 8])
def test_rounds_that_could_not_be_saved_before_a_kill_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsaved: int
) -> None:
    """The journal knows statements of views and parents that the disk's state does not: they stay what they were."""
    save = StateStore.save

    def refusing(store: StateStore, checkpoint: Checkpoint) -> None:
        if checkpoint.head.round > 1:
            raise EnvironmentFault("cannot write it", remedy="free some")
        save(store, checkpoint)

    async def scene() -> None:
        past, folder = Past(), tmp_path / "run"
        first = Life(folder, 1 + unsaved)
        with monkeypatch.context() as patched:
            patched.setattr(StateStore, "save", refusing)
            running = asyncio.create_task(first.session.run())
            await first.watcher.until(lambda: len(first.watcher.sealed) == 1 + unsaved)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            first.journal.close()
        past.add(first)
        # One view is lost, for its ready was signed on another head: no need to wait as long as in earnest.
        second, again = Life(folder, 4, replace(SETTING, timing=Timing(roster=0.1))), Past()
        again.signed = past.signed
        assert await second.live()
        again.add(second)
        found = StateStore(folder, SCOPE, VALUES).load()
        assert found is not None and found.head.round >= 4

    play(scene())


class Disk:
    """A small disk: a tmpfs where it can be mounted, else a number of writes after which fsync says that it is full."""

    def __init__(self, folder: Path, patched: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self.folder, self._patched = folder, patched
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
        self.mounted = os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0

    def fill(self, room: int) -> None:
        """Leave ``room`` pages of 4 kB."""
        if self.mounted:
            size = os.statvfs(self.folder)
            with (self.folder / "filler").open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, (size.f_bavail - room) * size.f_bsize))
            return

        def fsync(file: int) -> None:
            nonlocal room
            room -= 1
            if room < 0:
                raise OSError(errno.ENOSPC, "No space left on device")

        self._patched.setattr(os, "fsync", fsync)

    def free(self) -> None:
        """Room for everything again."""
        if self.mounted:
            (self.folder / "filler").unlink()
        else:
            self._patched.setattr(os, "fsync", lambda file: None)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", str(self.folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk", monkeypatch)
    yield made
    made.close()


@pytest.mark.parametrize("room", [0, 1, 2, 3, 4, 5, 6, 8, 10])
def test_a_disk_that_is_full_for_a_while(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """It fills when round 1 is sealed, in the middle of one write or another; the peer waits, or goes on in memory."""
    monkeypatch.setattr(module, "RETRY_S", (0.01, 0.02))

    async def scene() -> None:
        expected = await undisturbed(tmp_path / "undisturbed", 3)
        folder, copy = disk.folder / "run", tmp_path / "copy"
        life, past = Life(folder, 3), Past()

        async def play_on() -> None:
            await life.watcher.until(lambda: bool(life.watcher.sealed))
            disk.fill(room)
            await life.watcher.until(lambda: bool(life.watcher.disk) or len(life.watcher.sealed) == 3)
            shutil.copytree(folder, copy)
            disk.free()

        filling = asyncio.create_task(play_on())
        assert await life.live()
        await filling
        past.add(life)
        assert past.seals == expected.seals and past.signed == expected.signed
        assert room > 4 or any(life.watcher.disk), "it was full"
        for place in (copy, folder):  # as a crash at that moment, and as the end leaves it
            store = StateStore(place, SCOPE, VALUES)
            found = store.load()
            assert found is not None and expected.seals[found.head.round] == found.head.seal
            assert store.warnings == []
            Journal(place / "journal", SCOPE, ME.peer, ME.sign).close()
        assert found is not None and found.head.round == 3 and life.watcher.disk[-1:] in ([], [None])

    play(scene())
