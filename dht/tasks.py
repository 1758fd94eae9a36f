"""Background tasks that nobody waits for: begun anew where something escapes from one, and ended for certain."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 60.0
AGAIN_S = 0.5
"""Before a task that was cancelled and goes on is cancelled again."""


def keep_going(
    run: Callable[[], Awaitable[None]],
    name: str,
    *,
    pauses_s: tuple[float, float] = (FIRST_PAUSE_S, LAST_PAUSE_S),
) -> asyncio.Task[None]:
    """A task called ``name`` that runs ``run`` until it returns, anew after each failure; the owner cancels it.

    ``pauses_s``: the first and the longest pause, seconds; a run that lasted longer than the longest starts over.
    """
    return asyncio.create_task(_keep_going(run, name, pauses_s), name=name)


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until all are done, whatever they end with.

    hivemind swallows a cancellation that comes at the wrong moment, so one that goes on is cancelled again.
    """
    ending = list(tasks)
    left = {task for task in ending if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
    await asyncio.gather(*ending, return_exceptions=True)


async def _keep_going(run: Callable[[], Awaitable[None]], name: str, pauses_s: tuple[float, float]) -> None:
    clock = asyncio.get_running_loop().time
    first, last = pauses_s
    pause = first
    while True:
        began = clock()
        try:
            return await run()
        except Exception:  # a defect: it must be seen, and the daemon should not go on without this task
            log.exception("the task %r failed and begins again", name)
        if clock() - began > last:
            pause = first
        await asyncio.sleep(pause)
        pause = min(2 * pause, last)
