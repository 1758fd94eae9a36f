"""A pause is the owner's wish: kept over restarts, ended by the clock or by a word, obeyed by trainer and rounds."""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer import status as st_
from peer.control import Control
from peer.pausing import LONGEST_S, PauseFile, checked, is_on
from peer.reporter import Reporter
from peer.status import Pause
from peer.worker import Worker
from protocols.errors import ConfigError, EnvironmentFault, LocalError

if TYPE_CHECKING:
    from pathlib import Path


def reporter() -> Reporter:
    return Reporter(st_.Status(version="1", protocol=1, peer="12D3KooWabc", since=0.0), as_json=False)


@given(
    st.floats(0, 2e9),
    st.one_of(st.none(), st.floats(1e-3, LONGEST_S)),
    st.floats(0, 4e9),
)
def test_a_pause_holds_until_its_end_also_in_the_file(since: float, length: float | None, now: float) -> None:
    import tempfile
    from pathlib import Path

    pause = Pause(since, None if length is None else since + length)
    with tempfile.TemporaryDirectory() as folder:
        file = PauseFile(Path(folder) / "pause.json")
        file.save(pause)
        holds = length is None or now < since + length
        assert is_on(pause, now) is holds
        assert file.load(now) == (pause if holds else None)
        file.save(None)
        file.save(None)
        assert file.load(now) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"since":1}', '{"since":"x","until":null}', '{"since":1,"until":[]}'])
def test_a_file_that_says_nothing_is_no_pause(tmp_path: Path, text: str) -> None:
    (tmp_path / "pause.json").write_text(text)
    assert PauseFile(tmp_path / "pause.json").load(0.0) is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, LONGEST_S + 1])
def test_a_pause_has_a_length_that_makes_sense(seconds: float) -> None:
    with pytest.raises(ConfigError, match="a pause of"):
        checked(seconds)


def test_a_home_that_cannot_be_written_refuses_the_pause(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="cannot write"):
        PauseFile(tmp_path / "nowhere" / "pause.json").save(Pause(1.0))


def test_a_pause_outlives_the_daemon_and_ends_by_a_word(tmp_path: Path) -> None:
    async def scenario() -> None:
        told = reporter()
        control = Control(tmp_path / "pause.json", told)
        worker = Worker(threads=1)
        await control.steer_trainer(worker)
        assert not worker.paused
        answer = await control.pause("")
        assert (answer["state"], answer["pause"]["until"]) == ("paused", None)
        assert worker.paused
        assert told.status.pause is not None
        assert control.reason == st_.Reason("user", "by you, until `murmur resume`")

        again = reporter()
        second = Control(tmp_path / "pause.json", again)
        assert second.paused
        assert again.status.pause == told.status.pause
        newer = Worker(threads=1)
        await second.steer_trainer(newer)
        assert newer.paused
        await second.resume()
        assert not newer.paused
        assert again.status.pause is None
        assert not Control(tmp_path / "pause.json", reporter()).paused

    asyncio.run(scenario())


def test_a_paused_daemon_keeps_no_memory_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[bool] = []
    monkeypatch.setattr("peer.control.give_back", lambda: given_back.append(True))

    async def scenario() -> None:
        control = Control(tmp_path / "pause.json", reporter())
        await control.rest()
        assert not given_back
        await control.pause("")
        assert len(given_back) == 1
        await control.rest()  # after a round that it has followed
        assert len(given_back) == 2

    asyncio.run(scenario())


def test_a_pause_with_a_time_ends_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "pause.json"
    path.write_text(json.dumps({"schema": 1, "since": time.time(), "until": time.time() + 0.2}))

    async def scenario() -> None:
        control = Control(path, reporter())
        worker = Worker(threads=1)
        await control.steer_trainer(worker)
        assert worker.paused
        clock = asyncio.create_task(control.run())
        async with asyncio.timeout(10):
            await worker._wanted.wait()
        clock.cancel()
        await asyncio.gather(clock, return_exceptions=True)
        assert not path.exists()

    asyncio.run(scenario())


def test_what_is_no_time_is_refused_and_so_is_a_pause_at_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        control = Control(tmp_path / "pause.json", reporter())
        for text in ("soon", "-1", "nan", "0"):
            with pytest.raises(ConfigError):
                await control.pause(text)
        assert not control.paused
        assert control.finish() == {"schema": 1, "state": "stopping", "under_way": False}
        with pytest.raises(LocalError, match="about to end"):
            await control.pause("60")

    asyncio.run(scenario())
