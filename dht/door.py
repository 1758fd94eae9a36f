"""Who may open a stream to us: bounds what peers that we never asked for can make us hold.

Every open stream costs a read buffer and one payload. Members of the run are bounded by their number; all others
share ``limits.STREAMS``, so that strangers keep no member out.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

from .limits import STREAMS, STREAMS_EACH, Gauge
from .tasks import end

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from protocols.ids import PeerId

    from .guard import Guard
    from .stream import FrameStream


class Door:
    """The tasks that serve inbound streams, by peer and protocol."""

    def __init__(self, guard: Guard) -> None:
        """``guard`` says how often each peer may knock."""
        self._guard = guard
        self._open: dict[asyncio.Task[Any], tuple[PeerId, str]] = {}
        self._counts: Counter[tuple[PeerId, str]] = Counter()
        self._greeting: dict[tuple[PeerId, str], FrameStream] = {}
        self._strangers = Gauge("streams", STREAMS, "streams of strangers, all of whom together had too many open")
        self._each = Gauge("streams_peer", STREAMS_EACH, "streams of peers that had too many open")

    @property
    def refused(self) -> int:
        """How many streams found no room, or gave way to a newer one before they had said hello."""
        return self._strangers.refused + self._each.refused

    def enter(self, peer: PeerId, protocol: str, task: asyncio.Task[Any], *, address: Callable[[], str] = str) -> bool:
        """Take in a stream that ``task`` serves; False when its peer knocks too often or too many are open."""
        if not self._guard.greets(peer, address):
            return False
        if self._counts[peer, protocol] >= STREAMS_EACH:
            self._each.refused += 1
        elif not self._guard.is_member(peer) and self._of_strangers() >= STREAMS:
            self._strangers.refused += 1
        else:
            self._open[task] = (peer, protocol)
            self._counts[peer, protocol] += 1
            return True
        return False

    def leave(self, task: asyncio.Task[Any]) -> None:
        """The stream that ``task`` served is closed."""
        key = self._open.pop(task, None)
        if key is not None:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]

    @contextlib.contextmanager
    def greeting(self, stream: FrameStream, protocol: str) -> Iterator[None]:
        """While inside, no hello has come yet; of one protocol and peer only the newest such stream stays open."""
        key = (stream.peer, protocol)
        older = self._greeting.get(key)
        if older is not None:
            self._each.refused += 1
            older.abort("replaced by a newer stream")
        self._greeting[key] = stream
        try:
            yield
        finally:
            if self._greeting.get(key) is stream:
                del self._greeting[key]

    def gauges(self) -> list[Gauge]:
        """What is open, and what found no room."""
        self._strangers.in_use = self._of_strangers()
        self._each.in_use = max(self._counts.values(), default=0)
        return [self._strangers, self._each]

    async def clear(self) -> None:
        """Cancel and await every task."""
        await end(self._open)

    def _of_strangers(self) -> int:
        return sum(not self._guard.is_member(peer) for peer, _ in self._open.values())
