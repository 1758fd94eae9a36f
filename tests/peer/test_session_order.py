"""The session around a scripted machine: what is due first, one window at a time, what is refused is told."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import TYPE_CHECKING

import pytest

from peer.journal import Journal, SlotUsed
from protocols.errors import LocalError, RemoteError, TransportError
from protocols.messages import Body, Vote
from protocols.round.effects import Flood, Phase, Sign, Trouble, Window, Work
from tests.peer.stage import ME, NOTHING, OTHER, Stage, play, sealed, train
from tests.peer.test_state import SCOPE, chain

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.ids import PeerId
    from protocols.statements import Statement


def test_a_tick_comes_when_the_machine_wants_it_and_not_before(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        script, due = stage.script, stage.now() + 0.05
        script.due = due
        script.on_call = lambda name: setattr(script, "due", math.inf) if name == "tick" else None
        stage.begin()
        await script.until(lambda: "tick" in script.names())
        assert script.calls[-1][1] >= due
        await stage.end()
        assert script.names() == ["start", "tick"]

    play(scene())


def test_what_is_due_and_what_is_own_go_before_frames(tmp_path: Path) -> None:
    """Every frame takes a second of the machine's time; 200 of them wait when the session begins."""

    async def scene() -> None:
        stage = Stage(tmp_path)
        script, now = stage.script, [0.0]
        stage.now, script.due = (lambda: now[0]), 3.5

        def pass_time(name: str) -> None:
            now[0] += name == "payload"
            script.due = now[0] + 10 if name == "tick" else script.due

        script.on_call = pass_time
        stage.lines.changes = [([OTHER.peer], []), ([OTHER.peer], [OTHER.peer])]
        session = stage.session()
        frames = [asyncio.create_task(session.on_frame(OTHER.peer, "parts", bytes([number]))) for number in range(200)]
        await asyncio.sleep(0)
        session.on_neighbours(frozenset({OTHER.peer}))
        session.on_neighbours(frozenset({OTHER.peer}))
        stage.task = asyncio.create_task(session.run())
        await asyncio.gather(*frames)
        assert script.names()[:4] == ["start", "welcome", "left", "welcome"]
        assert script.names()[4:9] == ["payload"] * 4 + ["tick"]
        assert [value[0] for name, value in script.calls if name == "payload"] == list(range(200))
        assert script.names().count("tick") == 20
        await stage.end()

    play(scene())


def test_bytes_of_a_round_are_read_in_another_thread_and_only_these(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        threads: dict[str, int] = {}

        def read(_sender: PeerId, kind: str, payload: bytes) -> bytes:
            threads[kind] = threading.get_ident()
            return b"read " + payload

        stage.script.read = read
        session = stage.begin()
        for kind in ("parts", "want", "results"):
            await session.on_frame(OTHER.peer, kind, kind.encode())
        assert set(threads) == {"parts", "results"}
        assert threading.get_ident() not in threads.values()
        got = [value for name, value in stage.script.calls if name == "payload"]
        assert got == [b"read parts", b"want", b"read results"]
        await stage.end()

    play(scene())


def test_a_deadline_that_stays_in_the_past_starves_nobody(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        stage.script.due = -1.0
        session = stage.begin()
        async with asyncio.timeout(5):
            await asyncio.gather(*(session.on_frame(OTHER.peer, "parts", b"") for _ in range(300)))
        assert stage.script.names().count("payload") == 300
        await stage.end()

    play(scene())


def test_a_window_that_a_pause_has_made_useless_gives_way_to_the_one_that_is_asked_for(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        script = stage.script
        script.gives = {"start": [[train(1)]], "resume": [[], [train(5)]]}
        session = stage.begin()
        await script.until(lambda: stage.trains == [1])
        session.pause()
        session.resume()
        await script.until(lambda: "resume" in script.names())
        await asyncio.sleep(0)
        assert (stage.trains, stage.windows[1].cancelled()) == ([1], False), "the window in flight goes on"
        session.pause()
        session.resume()
        await script.until(lambda: script.names().count("resume") == 2)
        await script.until(lambda: stage.trains == [1, 5])
        assert stage.windows[1].cancelled()
        stage.windows[5].set_result(Window(NOTHING, 55, 100))
        await script.until(lambda: "trained" in script.names())
        assert script.calls[-1][1][1] == 55
        assert [each for each in script.names() if each in ("pause", "resume")] == ["pause", "resume"] * 2
        await stage.end()

    play(scene())


def test_one_window_at_a_time_and_no_head_cancels_it(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        script = stage.script
        script.gives = {"start": [[train(1)]], "payload": [[sealed()], [train(2)], [train(3)]]}
        session = stage.begin()
        for _ in range(3):
            await session.on_frame(OTHER.peer, "parts", b"")
        assert stage.trains == [1]
        stage.windows[1].set_result(Window(NOTHING, 11, 100))
        await script.until(lambda: "trained" in script.names())
        assert script.calls[-1] == ("trained", (chain()[0].head.seal, 11))
        await asyncio.sleep(0)
        assert stage.trains == [1, 3], "the newest base replaces the one that waited"
        stage.windows[3].set_result(Window(NOTHING, 33, 100))
        await script.until(lambda: script.names().count("trained") == 2)
        script.gives["payload"] = [[train(4)]]
        await session.on_frame(OTHER.peer, "parts", b"")
        await asyncio.sleep(0)
        assert stage.trains == [1, 3, 4]
        await stage.end()

    play(scene())


def test_the_last_round_ends_training_and_the_machine_is_told(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        script = stage.script
        stage.watcher.rounds = 1
        script.gives = {"start": [[train(1)]], "payload": [[sealed()], [train(2)]]}
        session = stage.begin()
        await asyncio.sleep(0)
        await session.on_frame(OTHER.peer, "parts", b"")
        assert script.names()[-1] == "finish" and session.stopping.is_set()
        await asyncio.sleep(0)
        assert stage.trains == [1] and stage.windows[1].cancelled()
        await session.on_frame(OTHER.peer, "parts", b"")
        assert stage.trains == [1] and not session.finished.is_set()
        script.all_ready = True
        await session.on_frame(OTHER.peer, "parts", b"")
        assert session.finished.is_set()
        await stage.end()

    play(scene())


@pytest.mark.parametrize("outdated", [True, False])
def test_a_computation_that_fails_ends_it_unless_its_round_is_over(tmp_path: Path, outdated: bool) -> None:
    def fail() -> object:
        raise ValueError("no such number")

    async def scene() -> None:
        stage = Stage(tmp_path)
        parent = chain()[2 if outdated else 0].head.seal
        bad, good = (Work(key, parent, b"", run) for key, run in (("encode", fail), ("gram", lambda: 7)))
        stage.script.gives = {"start": [[bad]], "payload": [[good]]}
        session = stage.begin()
        if not outdated:
            assert stage.task is not None
            with pytest.raises(LocalError, match="round 2, encode: no such number"):
                await stage.task
            return
        await session.on_frame(OTHER.peer, "parts", b"")
        await stage.script.until(lambda: "done" in stage.script.names())
        assert stage.script.calls[-1] == ("done", ("gram", 7))
        await stage.end()

    play(scene())


def test_a_slot_that_may_have_been_used_is_told_and_the_session_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def used(journal: Journal, body: Body, number: int) -> Statement:
        raise SlotUsed("may have signed another")

    async def scene() -> None:
        stage = Stage(tmp_path)
        monkeypatch.setattr(Journal, "sign", used)
        stage.script.gives = {"payload": [[Sign(Vote(1, chain()[0].head.seal))], [Phase(1, "train")]]}
        session = stage.begin()
        for _ in range(2):
            await session.on_frame(OTHER.peer, "parts", b"")
        assert stage.watcher.seen == [Trouble(ME.peer, "may have signed another; not signed"), Phase(1, "train")]
        assert "own" not in stage.script.names()
        await stage.end()

    play(scene())


def test_a_refused_own_input_is_told_and_floods_go_out(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        vote = Vote(1, chain()[0].head.seal)

        def refuse(name: str) -> None:
            if name == "welcome":
                raise RemoteError(OTHER.peer, "lies")

        stage.script.on_call = refuse
        stage.lines.changes = [([OTHER.peer], [])]
        stage.script.gives = {"payload": [[Flood(SCOPE.state(ME.peer, vote, ME.sign), None)]]}
        session = stage.begin()
        session.on_neighbours(frozenset({OTHER.peer}))
        await session.on_frame(OTHER.peer, "parts", b"")
        assert stage.watcher.seen == [Trouble(OTHER.peer, "lies")] and stage.lines.flooded == [vote]
        await stage.end()

    play(scene())


def test_bytes_of_a_round_that_come_after_the_end_are_no_defect(tmp_path: Path) -> None:
    async def scene() -> None:
        stage = Stage(tmp_path)
        session = stage.begin()
        await session.on_frame(OTHER.peer, "parts", b"")
        await stage.end()
        with pytest.raises(TransportError, match="had ended"):
            await session.on_frame(OTHER.peer, "parts", b"")

    play(scene())
