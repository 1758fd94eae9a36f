"""What p2pd and the relay have in common as our child processes: their end, their words, the pauses between starts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STOP_S = 2.0
"""For a child to end after each signal."""


def send(process: asyncio.subprocess.Process, ask: signal.Signals) -> None:
    """Send a signal, unless it has ended."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, ask)  # Popen.send_signal would reap it behind asyncio's back


async def finish(process: asyncio.subprocess.Process, *asks: signal.Signals) -> None:
    """Send these signals until it ends, and reap it."""
    for ask in asks or (signal.SIGTERM, signal.SIGKILL):
        send(process, ask)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await process.wait()
            return


async def lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Its lines without their ends, until it closes; one that is longer than the reader's limit is left out."""
    while True:
        try:
            line = await stream.readline()
        except ValueError:  # longer than any line worth reading
            continue
        if not line:
            return
        yield line.decode(errors="replace").strip()


class Pauses:
    """Seconds before each next start: none after a long life, then ``first``, doubling up to ``last``."""

    def __init__(self, first: float, last: float) -> None:
        self._first, self._last, self._next = first, last, 0.0

    def take(self, *, steady: bool) -> float:
        """The pause to make now; ``steady``: the child has lived long."""
        pause = 0.0 if steady else self._next
        self._next = min(max(2 * pause, self._first), self._last)
        return pause
