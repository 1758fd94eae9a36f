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
"""Streams of one peer and protocol: one in use, one that replaces it, one whose last frame is still being handled."""


class Door:
    """The tasks that serve inbound streams, by peer."""

    def __init__(self, members: Callable[[], frozenset[PeerId]]) -> None:
        self._members = members
        self._open: dict[asyncio.Task[Any], tuple[PeerId, str]] = {}
        self._greeting: dict[tuple[PeerId, str], FrameStream] = {}
        self.refused = 0
        """How many streams were turned away or gave way to a newer one before they had said hello."""

    def enter(self, peer: PeerId, protocol: str, task: asyncio.Task[Any]) -> bool:
        """Take in a stream that ``task`` serves; False when too many are open."""
        holders, members = self._open.values(), self._members()
        full = peer not in members and sum(each not in members for each, _ in holders) >= MAX_STRANGERS
        if full or sum(each == (peer, protocol) for each in holders) >= MAX_EACH:
            self.refused += 1
            return False
        self._open[task] = (peer, protocol)
        return True

    def leave(self, task: asyncio.Task[Any]) -> None:
        """The stream that ``task`` served is closed."""
        self._open.pop(task, None)

    @contextlib.contextmanager
    def greeting(self, stream: FrameStream, protocol: str) -> Iterator[None]:
        """While inside, no hello has come yet; of one protocol and peer only the newest such stream stays open."""
        key = (stream.peer, protocol)
        older = self._greeting.get(key)
        if older is not None:
            self.refused += 1
            older.abort("replaced by a newer stream")
        self._greeting[key] = stream
        try:
            yield
        finally:
            if self._greeting.get(key) is stream:
                del self._greeting[key]

    async def clear(self) -> None:
        """Cancel and await every task."""
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
