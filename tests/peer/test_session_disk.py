"""The session and a disk that refuses for a while: nothing is lost, nothing is said out of order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from peer import session as module
from peer.journal import Journal
from peer.state import StateStore
from protocols.ids import Hash
from protocols.messages import Body, Commit, Leg, Vote
from protocols.round.effects import Effect, Sign, Window
from tests.peer.stage import FULL, NOTHING, OTHER, Stage, play, sealed, train
from tests.peer.test_state import chain

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.statements import Statement


def test_what_the_disk_refuses_is_signed_later_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vote must not be signed after a later ready, however long the disk was full."""
    monkeypatch.setattr(module, "RETRY_S", (0.001, 0.01))

    async def scene() -> None:
        stage = Stage(tmp_path)
        script, parent = stage.script, chain()[0].head.seal
        script.window = Window(chain()[0].drift, 3, 300)
        commit = Commit(parent, Hash(bytes(32)), (Leg(parent, 2, 200), Leg(parent, 1, 100)), 0, True)
        bodies: list[Body] = [commit, *(Vote(view, parent) for view in (1, 2))]
        script.gives = {"payload": [[Sign(each)] for each in bodies]}
        append, full = Journal._append, [True]

        def refusing(journal: Journal, record: bytes) -> None:
            if full[0]:
                raise FULL
            append(journal, record)

        monkeypatch.setattr(Journal, "_append", refusing)
        session = stage.begin()
        for _ in bodies:
            await session.on_frame(OTHER.peer, "parts", b"")
        script.window = Window(NOTHING, 9, 900)
        await stage.watcher.until(lambda: stage.watcher.disk.count(FULL) >= 5)
        assert "own" not in script.names() and stage.store.journal_path.stat().st_size == 0
        full[0] = False
        await script.until(lambda: script.names().count("own") == 3)
        assert [value for name, value in script.calls if name == "own"] == bodies
        pending = stage.store.load_pending(parent)
        assert pending is not None and pending[1:] == (3, 300) and np.array_equal(pending[0], chain()[0].drift)
        await stage.watcher.until(lambda: stage.watcher.disk[-1] is None)
        await stage.end()

    play(scene())


def test_a_disk_that_takes_it_again_does_not_let_a_later_one_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", (0.05, 0.05))

    async def scene() -> None:
        stage = Stage(tmp_path)
        votes = [Vote(view, chain()[0].head.seal) for view in (1, 2)]
        stage.script.gives = {"payload": [[Sign(each)] for each in votes]}
        append, full = Journal._append, [True]

        def refusing(journal: Journal, record: bytes) -> None:
            if full[0]:
                raise FULL
            append(journal, record)

        monkeypatch.setattr(Journal, "_append", refusing)
        session = stage.begin()
        await session.on_frame(OTHER.peer, "parts", b"")
        full[0] = False
        await session.on_frame(OTHER.peer, "parts", b"")
        assert "own" not in stage.script.names()
        await stage.script.until(lambda: stage.script.names().count("own") == 2)
        assert [value for name, value in stage.script.calls if name == "own"] == votes
        await stage.end()

    play(scene())


def test_a_committed_update_is_taken_up_after_a_restart_and_only_then(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        parent = chain()[0].head.seal
        stage.store.save_pending(parent, 2, chain()[0].drift, (Leg(parent, 7, 700),))
        stage.script.gives = {"start": [[train(2)]], "payload": [[train(2)]]}
        session = stage.begin()
        await stage.script.until(lambda: "trained" in stage.script.names())
        assert stage.script.calls[-1] == ("trained", (parent, 7)) and stage.trains == []
        await session.on_frame(OTHER.peer, "parts", b"")
        await asyncio.sleep(0)
        assert stage.trains == [2], "the next window on the same base is another one"
        await stage.end()

    play(scene())


@pytest.mark.parametrize("room", [3, 64])
def test_bodies_of_a_round_that_is_over_and_more_than_can_wait_are_never_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(module, "UNSIGNED", room)
    monkeypatch.setattr(module, "RETRY_S", (0.05, 0.05))

    async def scene() -> None:
        stage = Stage(tmp_path)
        parent = chain()[0].head.seal
        votes = [Vote(view, parent) for view in range(1, 10)]
        first: list[Effect] = [*(Sign(each) for each in votes[:2]), sealed(), *(Sign(each) for each in votes[2:])]
        stage.script.gives = {"payload": [first]}
        sign, full = Journal.sign, [True]

        def refusing(journal: Journal, body: Body, number: int) -> Statement:
            if full[0]:
                raise FULL
            return sign(journal, body, number)

        monkeypatch.setattr(Journal, "sign", refusing)
        session = stage.begin()
        await session.on_frame(OTHER.peer, "parts", b"")
        full[0] = False
        await stage.script.until(lambda: ("own", votes[-1]) in stage.script.calls)
        await stage.end()
        assert [value for name, value in stage.script.calls if name == "own"] == votes[2:][-room:]

    play(scene())


def test_a_state_that_the_disk_refuses_stays_in_memory_and_is_saved_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", (0.05, 0.05))

    async def scene() -> None:
        stage = Stage(tmp_path)
        stage.script.gives = {"payload": [[sealed(1)], [sealed(2)]]}
        save, full, forgot = StateStore.save, [True], []

        def refusing(store: StateStore, checkpoint: Any) -> None:
            if full[0]:
                raise FULL
            save(store, checkpoint)

        monkeypatch.setattr(StateStore, "save", refusing)
        monkeypatch.setattr(Journal, "forget_before", lambda journal, number: forgot.append(number))
        session = stage.begin()
        for _ in range(2):
            await session.on_frame(OTHER.peer, "parts", b"")
        assert [each.head.round for each in stage.watcher.sealed] == [2, 3], "it goes on"
        assert stage.watcher.disk == [FULL, FULL] and forgot == [] and stage.store.load() is None
        full[0] = False
        await stage.watcher.until(lambda: stage.watcher.disk[-1] is None)
        found = stage.store.load()
        assert found is not None and found.head.round == 3 and forgot == [3]
        await stage.end()

    play(scene())
