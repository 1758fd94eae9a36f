"""A background task that fails is heard of and begins again."""

from __future__ import annotations

import asyncio
import logging

import pytest

from dht.tasks import end, keep_going


def test_failed_task_is_logged_and_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        runs = 0

        async def run() -> None:
            nonlocal runs
            runs += 1
            if runs < 4:
                raise KeyError(f"defect {runs}")

        began = asyncio.get_running_loop().time()
        await keep_going(run, "look about", pauses_s=(0.01, 0.02))
        assert runs == 4
        assert 0.04 < asyncio.get_running_loop().time() - began < 5, "0.01 + 0.02 + 0.02 s of pauses"

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == ["the task 'look about' failed and begins again"] * 3
    assert "KeyError: 'defect 2'" in caplog.text


def test_cancelled_task_ends() -> None:
    async def scenario() -> None:
        task = keep_going(asyncio.Event().wait, "wait")  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())


def test_a_task_ends_though_a_library_swallows_its_cancellation() -> None:
    async def scenario() -> None:
        swallowed = 0

        async def deaf() -> None:
            nonlocal swallowed
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    swallowed += 1
                    if swallowed == 3:
                        raise

        async def failing() -> None:
            raise KeyError("long over")

        tasks = [asyncio.create_task(deaf()), asyncio.create_task(failing())]
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await end(tasks)
        assert tasks[0].cancelled() and isinstance(tasks[1].exception(), KeyError) and swallowed == 3

    asyncio.run(scenario())
