"""How long a question to a peer and its answer take: libp2p's own ping, over the connection that frames take too.

Any libp2p node answers it, a relay as well, and 32 random bytes that come back cannot have been sent before they were
asked for: a peer can seem farther away than it is, never nearer.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Protocol

from protocols.errors import RemoteError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from protocols.ids import PeerId

    from .connections import Connection
    from .stream import Ends

PROTOCOL = "/ipfs/ping/1.0.0"
BYTES = 32
EVERY_S = 10.0
"""Between two pings of one peer."""
WITHIN_S = 5.0
"""For a stream, and all answers on it."""
AT_ONCE = 8
WEIGHT = 1 / 8
"""Of a new figure beside all before it (RFC 6298, 2.3)."""


class Opener(Protocol):
    """What of ``control.Control`` is needed."""

    async def open(self, peer: PeerId, protocol: str) -> Ends:
        """A bare stream."""


async def ping(control: Opener, peer: PeerId, *, within: float = WITHIN_S) -> float:
    """Seconds from a question to its answer; raises TransportError where none comes, RemoteError for a wrong one.

    The quicker of two counts; one before them also waits until both ends have agreed on the protocol.
    """
    try:
        async with asyncio.timeout(within):
            reader, writer = await control.open(peer, PROTOCOL)
            try:
                times = []
                for _ in range(3):
                    question = os.urandom(BYTES)
                    began = time.perf_counter()
                    writer.write(question)
                    if await reader.readexactly(BYTES) != question:
                        raise RemoteError(peer, "answered a ping with other bytes")
                    times.append(time.perf_counter() - began)
                return min(times[1:])
            finally:
                writer.transport.abort()
    except TimeoutError as error:
        raise TransportError(peer, f"answered no ping within {within:g} s") from error
    except (OSError, EOFError, RuntimeError) as error:  # uvloop: RuntimeError on a closed connection
        raise TransportError(peer, "hung up on a ping") from error


class RoundTrips:
    """Smoothed round-trip times of neighbours, over the way by which each is connected now; ``run`` is its task."""

    def __init__(
        self,
        control: Callable[[], Opener],
        neighbours: Callable[[], Iterable[PeerId]],
        ways: Callable[[], Mapping[PeerId, Connection]],
    ) -> None:
        self._control, self._neighbours, self._ways = control, neighbours, ways
        self._known: dict[PeerId, tuple[Connection | None, float]] = {}

    def of(self, peer: PeerId) -> float | None:
        """Seconds; None while it is not known over the present way."""
        way, seconds = self._known.get(peer, (None, None))
        return seconds if way == self._ways().get(peer) else None

    async def run(self) -> None:
        """Measure, for ever."""
        while True:
            await self.measure()
            await asyncio.sleep(EVERY_S)

    async def measure(self) -> None:
        """Ping every neighbour once; whoever does not answer keeps what is known of it."""
        near = list(self._neighbours())
        self._known = {peer: known for peer, known in self._known.items() if peer in near}
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(peer: PeerId) -> None:
            async with turns:
                way = self._ways().get(peer)
                try:
                    seconds = await ping(self._control(), peer)
                except (TransportError, RemoteError):
                    return
                if self._ways().get(peer) == way:
                    self.note(peer, way, seconds)

        async with asyncio.TaskGroup() as group:
            for peer in near:
                group.create_task(one(peer), name=f"ping {peer}")

    def note(self, peer: PeerId, way: Connection | None, seconds: float) -> None:
        """One figure more; of another way it is the first."""
        before, known = self._known.get(peer, (way, seconds))
        if before != way:
            known = seconds
        self._known[peer] = (way, known + WEIGHT * (seconds - known))
