"""The session with its real machine, journal and store: whatever fails surfaces, nothing hangs, nothing is left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest

from peer import session as module
from peer.journal import Journal
from peer.session import Session
from peer.state import StateStore
from peer.windows import Parts
from protocols.errors import EnvironmentFault, LocalError, RemoteError
from protocols.ids import Hash, PeerId
from protocols.messages import Vote
from protocols.outer import state_root
from protocols.round.chain import seal_zero
from protocols.round.effects import Final, Phase, Sealed, Setting, Told, Train, Trouble, Window
from protocols.round.machine import Machine
from protocols.statements import Scope
from tests.peer.stage import ME, OTHER, Watcher, play
from tests.peer.test_state import SCOPE, VALUES

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

SETTING = Setting(
    values=VALUES, update_codec="int8", result_codec="int8", rule="mean", tolerated=1 / 3, lr=0.7, momentum=0.8,
    probation=0, open=True,
)  # fmt: skip


async def train(effect: Train) -> Window:
    """Any fixed function of the parent."""
    drawn = np.random.default_rng(effect.round).standard_normal(VALUES, dtype=np.float32)
    return Window(effect.drift + drawn, 3, 300)


class Bench:
    """Everything a session needs, in one folder, for one or two founders."""

    def __init__(self, folder: Path, founders: int = 1) -> None:
        self.store = StateStore(folder, SCOPE, VALUES)
        found = self.store.load()
        if found is None:
            params = np.linspace(-1, 1, VALUES, dtype=np.float32)
            state, drift = (params, params * 0), params * 0
            ages: tuple[int, ...] = ()
            head = seal_zero(SCOPE, [ME.peer, OTHER.peer][:founders], state_root(*state))
        else:
            head, state, drift, ages = found.head, (found.params, found.momentum), found.drift, found.ages
        self.journal = Journal(self.store.journal_path, SCOPE, ME.peer, ME.sign)
        signed, links = self.journal.signed_view, self.store.links()
        self.machine = Machine(SCOPE, ME.peer, SETTING, head, state, signed_view=signed, links=links, ages=ages)
        self.drift = drift
        self.started_from = head.round

    def session(self, watcher: Watcher, trainer: Callable[[Train], Coroutine[None, None, Window]] = train) -> Session:
        parts = Parts(
            SCOPE, self.machine, self.journal, self.store, trainer, asyncio.get_running_loop().time, self.drift
        )
        return Session(parts, watcher, None)


async def finished(session: Session) -> None:
    """Run a session until its last seal is final."""
    task = asyncio.create_task(session.run())
    waiting = asyncio.create_task(session.finished.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert waiting.done(), task.exception()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_rounds_are_sealed_saved_and_final(tmp_path: Path) -> None:
    async def scene() -> None:
        watcher, bench = Watcher(3), Bench(tmp_path)
        await finished(bench.session(watcher))
        assert [each.head.round for each in watcher.sealed] == [1, 2, 3]
        assert [each.round for each in watcher.seen if isinstance(each, Final)] == [1, 2, 3]
        found = bench.store.load()
        assert found is not None and found.head == watcher.sealed[-1].head
        assert np.array_equal(found.drift, watcher.sealed[-1].drift) and found.drift.any()

    play(scene())


def test_a_restart_goes_on_with_its_drift_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    async def scene() -> None:
        whole, first, second = Watcher(4), Watcher(2), Watcher(2)
        await finished(Bench(tmp_path / "whole").session(whole))
        await finished(Bench(tmp_path / "halves").session(first))
        bench = Bench(tmp_path / "halves")
        assert bench.started_from == 2
        await finished(bench.session(second))
        assert [each.head.seal for each in first.sealed + second.sealed] == [each.head.seal for each in whole.sealed]

    play(scene())


@pytest.mark.parametrize("error", [LocalError("the trainer failed"), EnvironmentFault("no memory"), OSError("odd")])
def test_what_the_trainer_raises_ends_the_session(tmp_path: Path, error: Exception) -> None:
    async def failing(effect: Train) -> Window:
        raise error

    async def scene() -> None:
        with pytest.raises(type(error)) as caught:
            await Bench(tmp_path).session(Watcher(), failing).run()
        assert caught.value is error

    play(scene())


def test_an_update_that_is_not_finite_is_shown_and_thrown_away(tmp_path: Path) -> None:
    async def poisoned(effect: Train) -> Window:
        return Window(np.full(VALUES, np.nan, dtype=np.float32), 3, 300)

    async def scene() -> None:
        watcher, bench = Watcher(1), Bench(tmp_path)
        await finished(bench.session(watcher, poisoned))
        assert any(isinstance(each, Trouble) and "thrown away" in each.text for each in watcher.seen)
        assert np.array_equal(watcher.sealed[0].params, np.linspace(-1, 1, VALUES, dtype=np.float32))
        assert not watcher.sealed[0].drift.any()

    play(scene())


def test_work_that_fails_ends_the_session_and_nothing_is_signed(tmp_path: Path) -> None:
    async def short(effect: Train) -> Window:
        return Window(np.zeros((VALUES, 1), dtype=np.float32), 3, 300)

    async def scene() -> None:
        with pytest.raises(LocalError, match="round 1, encode: "):
            await Bench(tmp_path).session(Watcher(), short).run()

    play(scene())
    assert (tmp_path / "journal").stat().st_size == 0


@pytest.mark.parametrize("where", ["effect", "sealed"])
def test_what_the_observer_raises_ends_the_session(tmp_path: Path, where: str) -> None:
    class Clumsy(Watcher):
        def on_effect(self, effect: Told) -> None:
            if where == "effect" and isinstance(effect, Phase) and effect.name == "commit":
                raise KeyError("clumsy")

        async def on_sealed(self, effect: Sealed) -> bool:
            raise KeyError("clumsy")

    async def scene() -> None:
        with pytest.raises(KeyError, match="clumsy"):
            await Bench(tmp_path).session(Clumsy()).run()

    play(scene())


def test_a_disk_that_refuses_from_the_start_signs_nothing_until_it_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", (0.001, 0.01))

    async def scene() -> None:
        watcher, bench = Watcher(2), Bench(tmp_path / "run")
        bench.store.folder = tmp_path / "run" / "journal"  # a file: nothing can be saved below it
        session = bench.session(watcher)
        finishing = asyncio.create_task(finished(session))
        await watcher.until(lambda: len(watcher.disk) >= 3)
        assert (tmp_path / "run" / "journal").stat().st_size == 0
        bench.store.folder = tmp_path / "run"
        await finishing
        found = bench.store.load()
        assert found is not None and found.head.round == 2 and watcher.disk[-1] is None

    play(scene())


def test_a_cancelled_session_leaves_no_task_even_in_the_middle_of_training(tmp_path: Path) -> None:
    async def scene() -> None:
        training, ended = asyncio.Event(), asyncio.Event()

        async def endless(effect: Train) -> Window:
            training.set()
            try:
                return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]
            finally:
                ended.set()

        task = asyncio.create_task(Bench(tmp_path).session(Watcher(), endless).run())
        await training.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    play(scene())


def test_what_a_liar_sends_goes_back_to_the_transport_and_the_session_lives(tmp_path: Path) -> None:
    async def scene() -> None:
        watcher = Watcher(1)
        session = Bench(tmp_path).session(watcher)
        task = asyncio.create_task(session.run())
        foreign = Scope(bytes(32), "model").state(OTHER.peer, Vote(1, Hash(bytes(32))), OTHER.sign)
        for kind, payload, why in [
            ("statement", b"garbage", "malformed statement"),
            ("statement", foreign.encode(), "another run"),
            ("parts", b"garbage", "malformed|garbage|parts"),
            ("parts", b"", "."),
            ("surprise", b"", "is not a frame of a round"),
        ]:
            with pytest.raises(RemoteError, match=why) as caught:
                await session.on_frame(OTHER.peer, kind, payload)
            assert caught.value.peer == OTHER.peer
        await session.finished.wait()
        assert len(watcher.sealed) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    play(scene())


def test_frames_wait_their_turn_and_are_dealt_with_in_order(tmp_path: Path) -> None:
    """Frames come before the session runs; each handler returns only once the machine has had its frame."""

    async def scene() -> None:
        watcher = Watcher(1)
        session = Bench(tmp_path, founders=2).session(watcher)
        order: list[int] = []

        async def hand_in(number: int) -> None:
            with pytest.raises(RemoteError):
                await session.on_frame(PeerId(OTHER.peer), "surprise", b"")
            order.append(number)

        frames = [asyncio.create_task(hand_in(number)) for number in range(300)]  # more than may wait
        await asyncio.sleep(0)
        assert order == []
        task = asyncio.create_task(session.run())
        await asyncio.gather(*frames)
        assert order == list(range(300))
        assert sum(isinstance(each, Trouble) for each in watcher.seen) == 300
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    play(scene())
