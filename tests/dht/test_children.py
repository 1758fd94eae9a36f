"""Child processes: pauses between starts, lines of any length, and an end that comes whatever the child thinks."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from dht import children


def test_pauses_double_and_begin_anew_after_a_long_life() -> None:
    pauses = children.Pauses(0.25, 1.0)
    assert [pauses.take(steady=False) for _ in range(5)] == [0.0, 0.25, 0.5, 1.0, 1.0]
    assert [pauses.take(steady=each) for each in (True, False)] == [0.0, 0.25]


def test_a_line_that_is_too_long_is_left_out_and_the_next_is_read() -> None:
    async def scenario() -> list[str]:
        reader = asyncio.StreamReader(limit=8)
        reader.feed_data(b"one\n" + b"x" * 8 + b"xx\n\xfftwo \nend")
        reader.feed_eof()
        return [line async for line in children.lines(reader)]

    assert asyncio.run(scenario()) == ["one", "\ufffdtwo", "end"]


STUBBORN = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); sys.stdin.read()"


@pytest.mark.parametrize(("program", "ends_by"), [("print(1, flush=True); input()", 15), (STUBBORN, 9)])
def test_it_ends_by_the_first_signal_that_it_heeds(program: str, ends_by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "STOP_S", 0.5)

    async def scenario() -> int:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()  # it has said what it heeds
        await children.finish(process)
        assert process.returncode is not None
        children.send(process, signal.SIGKILL)  # says nothing of one that has ended
        return process.returncode

    assert asyncio.run(scenario()) == -ends_by
