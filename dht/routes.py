"""By which connections peers are reached: directly, through a hole that was punched, or through a relay."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from protocols.errors import TransportError

from .connections import Connection, quic_of, ways
from .control import Control, in_time

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from protocols.ids import PeerId

log = logging.getLogger(__name__)


class Owner(Protocol):
    """What of a transport is needed."""

    @property
    def peer(self) -> PeerId:
        """This peer."""

    @property
    def control(self) -> Control:
        """Requests to the p2pd attached now."""

    def hurry(self, peer: PeerId) -> None:
        """Open the streams with ``peer`` now."""


class Routes:
    """Of one transport."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._ways: dict[PeerId, Connection] = {}
        self._punched: set[PeerId] = set()
        self._held: dict[PeerId, asyncio.Event] = {}
        self.by_quic: Container[PeerId] = ()
        """Peers to be dialled over QUIC first: they then see the UDP end that holes are punched with."""

    def ways(self) -> dict[PeerId, Connection]:
        """How each peer is connected, as of the last ``look``."""
        return self._ways

    async def look(self) -> list[PeerId]:
        """Ask p2pd for its connections; the peer of each. Raises TransportError."""
        ends = await self._owner.control.connected(self._owner.peer)
        peers = [peer for peer, _ in ends]
        self._punched.intersection_update(peers)
        self._ways = ways(ends, self._punched)
        return peers

    async def listening(self) -> tuple[str, ...]:
        """p2pd's own addresses now, circuits and mapped ones included; raises TransportError."""
        return await self._owner.control.listening(self._owner.peer)

    async def dial(self, peer: PeerId, addresses: Sequence[str]) -> None:
        """Let p2pd reach ``peer`` at these multiaddrs; raises TransportError."""
        quic_first = peer in self.by_quic
        if quic_first:
            addresses = [*addresses, *(quic for each in addresses if (quic := quic_of(each)))]
        await self._owner.control.dial(peer, addresses, quic_first=quic_first)

    async def redial(
        self, peer: PeerId, address: str, *, within: float, punched: bool = True, after: float = 0.0
    ) -> bool:
        """Drop all connections with ``peer`` and, ``after`` s later, dial this address; whether it is reached in time.

        p2pd also dials what else it knows of the peer, which is no success where that leads through a relay. Whether
        this side's dial opened the connection or the other's makes no difference. Meanwhile no link brings the old
        connection back; afterwards they all open their streams anew. Raises TransportError while another call of it is
        under way with this peer.
        """
        if peer in self._held:
            raise TransportError(peer, "is being dialled already")
        held = self._held[peer] = asyncio.Event()
        try:
            if not (punched and await self._reached(peer, "quic")):  # the other's dial may have come in already
                await self._owner.control.disconnect(peer)
                await asyncio.sleep(after)
                await self._dial_only(peer, address, within)
            if punched:
                self._punched.add(peer)
            else:
                self._punched.discard(peer)
            if await self._reached(peer):
                return True
            self._punched.discard(peer)
        except TransportError as error:
            log.info("not reached without the relay: %s", error)
        finally:
            del self._held[peer]
            held.set()
            self._owner.hurry(peer)
        return False

    async def _dial_only(self, peer: PeerId, address: str, within: float) -> None:
        try:
            async with in_time(peer, within):
                await self._owner.control.dial(peer, [address])
        except TransportError as error:
            log.info("not dialled without the relay: %s", error)

    async def _reached(self, peer: PeerId, transport: str = "") -> bool:
        await self.look()
        way = self._ways.get(peer)
        return way is not None and way.kind != "relayed" and transport in way.transport

    async def free(self, peer: PeerId) -> None:
        """Returns when no hole to ``peer`` is being punched; that takes a few seconds at most."""
        if (held := self._held.get(peer)) is not None:
            await held.wait()
