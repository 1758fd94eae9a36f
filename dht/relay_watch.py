"""The heartbeat to the relays that this peer reserves at or is connected through: one that falls silent is dropped.

libp2p by itself notices a frozen relay after 40 s (yamux), and until then this peer tells others to come through it.
With the connection go the reservation and all circuits, and what is left leads round that relay.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.errors import RemoteError, TransportError
from protocols.ids import PeerId, short

from .rtt import ping
from .tasks import end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .transport import StreamTransport

log = logging.getLogger(__name__)

LOOK_S = 1.0
BEAT_S = 4.0
"""Between heartbeats, each on a stream of its own: they cost a relay about a millisecond."""
SILENT_S = 12.0
"""Without an answer, and without a byte that came through it, a relay is frozen."""


@dataclass
class _Relay:
    """One that is connected."""

    heard: float
    """When it gave the last sign of life."""
    received: int
    """Bytes that have come from the peers behind it."""
    due: float
    beat: asyncio.Task[bool] | None = None


class RelayWatch:
    """One for each transport; ``run`` is its task."""

    def __init__(
        self,
        transport: StreamTransport,
        reserving: Callable[[], Sequence[str]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``reserving`` gives the addresses of the relays at which this peer reserves."""
        self._transport, self._reserving, self._clock = transport, reserving, clock
        self._relays: dict[PeerId, _Relay] = {}
        self._looked = clock()

    async def run(self) -> None:
        """Look for ever."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_S)
        finally:
            await end(beat for each in self._relays.values() if (beat := each.beat) is not None)

    async def look(self) -> None:
        """Send the heartbeats that are due, and close the connections with relays that have been silent too long."""
        now = self._clock()
        paused, self._looked = now - self._looked, now
        received = self._received()
        gone = [relay for relay in self._relays if relay not in received]
        await self._forget(gone)
        for relay, count in received.items():
            each = self._relays.setdefault(relay, _Relay(now, count, now))
            if paused > BEAT_S:  # this process stood still, which tells nothing about others
                each.heard = now
            self._hear(relay, each, count, now)
        silent = [relay for relay, each in self._relays.items() if now - each.heard > SILENT_S]
        await self._forget(silent)
        for relay in silent:
            log.warning("relay %s has been silent for %.0f s: going round it", short(relay), SILENT_S)
        await asyncio.gather(*(self._transport.control.disconnect(relay) for relay in silent))

    def _hear(self, relay: PeerId, each: _Relay, count: int, now: float) -> None:
        if each.beat is not None and each.beat.done():
            answered, each.beat = each.beat.result(), None
            each.heard = now if answered else each.heard
        if count > each.received:  # a heartbeat may wait behind a lot of bulk, and is not missed then
            each.heard = now
        each.received = count
        if each.beat is None and each.due <= now:
            each.due = now + BEAT_S
            each.beat = asyncio.create_task(self._beat(relay), name=f"heartbeat of relay {relay}")

    async def _forget(self, relays: Sequence[PeerId]) -> None:
        beats = [self._relays.pop(relay).beat for relay in relays]
        await end(beat for beat in beats if beat is not None)

    def _received(self) -> dict[PeerId, int]:
        """The relays that are connected and matter, and how many bytes have come from peers behind each."""
        ways, traffic = self._transport.routes.ways(), self._transport.traffic().peers
        found = {relay: 0 for address in self._reserving() if (relay := relay_of(address)) in ways}
        for peer, way in ways.items():
            if way.kind == "relayed" and (relay := relay_of(way.address)) in ways:
                found[relay] = found.get(relay, 0) + traffic.get(peer, (0, 0))[1]
        return found

    async def _beat(self, relay: PeerId) -> bool:
        """Whether it answers in time. A refusal is an answer: not every relay speaks this protocol."""
        try:
            await ping(self._transport.control, relay, within=SILENT_S)
        except RemoteError:
            return True
        except TransportError as error:
            return not isinstance(error.__cause__, TimeoutError)
        return True


def relay_of(address: str) -> PeerId:
    """The peer id of the relay in the address of one, or in that of a circuit."""
    return PeerId(address.partition("/p2p-circuit")[0].rpartition("/p2p/")[2])
