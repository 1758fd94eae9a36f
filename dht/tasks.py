"""Background tasks that nobody waits for: what escapes from one is logged, and it begins again."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 60.0


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
