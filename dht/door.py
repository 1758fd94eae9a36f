"""Who may open a stream to us: bounds what peers that we never asked for can make us hold.

Every open stream costs a read buffer and one payload. Members of the run are bounded by their number; all others
share ``MAX_STRANGERS`` streams, so that strangers keep no member out.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from protocols.ids import PeerId

    from .stream import FrameStream

MAX_STRANGERS = 128
"""Streams of all peers that are no members."""

MAX_EACH = 3
"""Streams of one peer: one in use, one that replaces it, and one whose last frame is still being handled."""


class Door:
    """The tasks that serve inbound streams, by peer."""

    def __init__(self, members: Callable[[], frozenset[PeerId]]) -> None:
        self._members = members
        self._open: dict[asyncio.Task[Any], PeerId] = {}
        self._greeting: dict[PeerId, FrameStream] = {}
        self.refused = 0
        """How many streams were turned away or gave way to a newer one before they had said hello."""

    def enter(self, peer: PeerId, task: asyncio.Task[Any]) -> bool:
        """Take in a stream that ``task`` serves; False when too many are open."""
        holders, members = self._open.values(), self._members()
        full = peer not in members and sum(each not in members for each in holders) >= MAX_STRANGERS
        if full or sum(each == peer for each in holders) >= MAX_EACH:
            self.refused += 1
            return False
        self._open[task] = peer
        return True

    def leave(self, task: asyncio.Task[Any]) -> None:
        """The stream that ``task`` served is closed."""
        self._open.pop(task, None)

    @contextlib.contextmanager
    def greeting(self, stream: FrameStream) -> Iterator[None]:
        """While inside, no hello has come yet; of one peer only the newest such stream stays open."""
        older = self._greeting.get(stream.peer)
        if older is not None:
            self.refused += 1
            older.abort("replaced by a newer stream")
        self._greeting[stream.peer] = stream
        try:
            yield
        finally:
            if self._greeting.get(stream.peer) is stream:
                del self._greeting[stream.peer]

    async def clear(self) -> None:
        """Cancel and await every task."""
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
