"""Agreements to punch a hole: who may ask, how often, and never two with one peer at once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from dht.limits import PUNCHES, PUNCHES_ALL
from dht.punch import Puncher
from dht.routes import Routes
from peer.identity import Identity
from protocols.errors import TransportError
from protocols.ids import PeerId
from protocols.punch import Punch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OWN, THEIRS = "/ip4/11.22.33.4/udp/4001/quic-v1", "/ip4/11.22.33.5/udp/4001/quic-v1"
CIRCUIT = "/ip4/11.22.33.9/tcp/4002/p2p/relay/p2p-circuit"


def _peer(number: int) -> PeerId:
    return PeerId(Identity.from_seed(number.to_bytes(32, "big")).peer)


class Stream:
    """A peer that offers THEIRS, then gives the signal."""

    def __init__(self, peer: PeerId, address: str = CIRCUIT) -> None:
        self.peer, self.address = peer, address
        self.sent: list[str] = []
        self._says = [Punch(THEIRS), Punch()]

    async def receive(self) -> tuple[str, bytes]:
        await asyncio.sleep(0)
        return "punch", self._says.pop(0).encode()

    async def send(self, kind: str, payload: list[bytes]) -> None:
        self.sent.append(Punch.decode(payload[0], sender="us").address)


class Control:
    """p2pd, which answers when ``answers`` is set."""

    def __init__(self) -> None:
        self.dialled: list[str] = []
        self.answers = asyncio.Event()

    async def connected(self, own: PeerId) -> list[tuple[PeerId, str]]:
        return []

    async def disconnect(self, peer: PeerId) -> None:
        await asyncio.sleep(0)

    async def dial(self, peer: PeerId, addresses: list[str]) -> None:
        self.dialled += addresses
        await self.answers.wait()


class Transport:
    """As much of one as there is need of."""

    def __init__(self) -> None:
        self.peer, self.control = _peer(0), Control()
        self.hurried: list[PeerId] = []
        owner: Any = self
        self.routes = Routes(owner)

    def hurry(self, peer: PeerId) -> None:
        self.hurried.append(peer)

    @contextlib.asynccontextmanager
    async def call(self, peer: PeerId, protocol: str) -> AsyncIterator[Stream]:
        yield Stream(peer)


def _puncher(transport: Transport) -> Puncher:
    given: Any = transport
    return Puncher(given, lambda: OWN, done=lambda *_: None, clock=lambda: 0.0)


async def _serve(puncher: Puncher, stream: Stream) -> bool:
    """Whether it was agreed to dial."""
    given: Any = stream
    with contextlib.suppress(TransportError):
        await puncher._serve(given)
    return stream.sent == [OWN]


def test_only_a_peer_behind_a_relay_is_dialled_where_it_says() -> None:
    async def scenario() -> None:
        transport = Transport()
        puncher = _puncher(transport)
        assert not await _serve(puncher, Stream(_peer(1), "/ip4/11.22.33.5/tcp/4001"))
        assert not await _serve(puncher, Stream(_peer(1), ""))
        assert await _serve(puncher, Stream(_peer(1)))
        await puncher.close()

    asyncio.run(scenario())


def test_all_strangers_together_have_few_packets_sent() -> None:
    async def scenario() -> None:
        puncher = _puncher(Transport())
        agreed = [await _serve(puncher, Stream(_peer(number))) for number in range(1, 60)]
        assert PUNCHES.burst < sum(agreed) == PUNCHES_ALL.burst
        await puncher.close()

    asyncio.run(scenario())


def test_two_agreements_with_one_peer_make_one_dial_and_leave_nothing_held() -> None:
    """Before, the second one broke the first one's end: whoever waited for the hole waited for ever."""

    async def scenario() -> None:
        transport = Transport()
        puncher, peer = _puncher(transport), _peer(1)
        before = asyncio.all_tasks()
        await asyncio.gather(*(_serve(puncher, Stream(peer)) for _ in range(2)))
        with pytest.raises(TransportError, match="already"):
            await puncher.punch(peer)
        await asyncio.sleep(0.01)
        assert transport.control.dialled == [f"{THEIRS}/p2p/{peer}"]
        with pytest.raises(TransportError, match="already"):
            await transport.routes.redial(peer, THEIRS, within=1.0)
        waits = asyncio.create_task(transport.routes.free(peer))
        transport.control.answers.set()
        async with asyncio.timeout(1):
            await waits
        assert transport.hurried == [peer]
        await puncher.close()
        assert asyncio.all_tasks() == before

    asyncio.run(scenario())
