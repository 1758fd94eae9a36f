"""Runs the doctor's checks beside one another: each has a deadline of its own, and none can end the others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from .doctor_report import Finding, Outcome, failed
from .exits import told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

WITHIN_S = 5.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Check:
    """One look at one thing, ``within`` so many seconds. What escapes from ``look`` is a failure of that thing."""

    id: str
    title: str
    look: Callable[[], Awaitable[Outcome]]
    within: float = WITHIN_S


async def examine(checks: Sequence[Check], on_pending: Callable[[list[str]], None] = lambda _: None) -> list[Finding]:
    """All findings, in the order of the checks, which run at the same time; returns when the last one is over.

    ``on_pending`` hears the titles of those that are under way, at the start and whenever one is over.
    """
    pending = {each.id: each.title for each in checks}
    on_pending(list(pending.values()))

    async def one(check: Check) -> Finding:
        try:
            return await _finding(check)
        finally:
            del pending[check.id]
            on_pending(list(pending.values()))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(each), name=f"check {each.id}") for each in checks]
    return [task.result() for task in tasks]


async def _finding(check: Check) -> Finding:
    began = time.monotonic()
    try:
        async with asyncio.timeout(check.within) as deadline:
            outcome = await check.look()
    except Exception as error:  # whatever it is, it says something about this one thing, and the others go on
        if isinstance(error, TimeoutError) and deadline.expired():
            outcome = failed(
                f"no result within {check.within:.0f} s",
                "the machine may be overloaded, or what was asked hangs: try again",
            )
        else:
            known = told(error)
            outcome = failed(str(known), known.remedy or "`murmur log` may show more")
    seconds = round(time.monotonic() - began, 3)
    return Finding(check.id, check.title, outcome.result, outcome.evidence, outcome.remedy, seconds)


async def beside(call: Callable[[], T]) -> T:
    """What ``call`` returns, from a thread that nobody waits for at the end.

    A resolver or a dead file system can hold a call for minutes, and asyncio's own threads hold the process with it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(put: Callable[[], None]) -> None:
        if not future.done():
            put()

    def run() -> None:
        try:
            put = partial(future.set_result, call())
        except Exception as error:
            put = partial(future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: it was given up
            loop.call_soon_threadsafe(settle, put)

    threading.Thread(target=run, name="doctor", daemon=True).start()
    return await future
