"""Ways to peers between real nodes on loopback; and a connection that is dropped for another one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest

from dht.routes import Routes
from protocols.errors import TransportError
from protocols.ids import PeerId

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from dht.control import Control

    OpenNode = Callable[..., AbstractAsyncContextManager[Any]]


PEER = PeerId("12D3KooWPeer")
UDP_END = "/ip4/8.8.8.8/udp/4001/quic-v1"
CIRCUIT = "/ip4/9.9.9.9/tcp/4002/p2p/R/p2p-circuit"


def at(node: Any, transport: str) -> str:
    """Where a node listens."""
    [address] = [each for each in node.transport.addresses() if f"/{transport}/" in each]
    return str(address)


async def look(node: Any, peer: Any) -> tuple[str, str] | None:
    """Kind and transport of the way to ``peer``."""
    await node.transport.routes.look()
    way = node.transport.routes.ways().get(peer)
    return None if way is None else (way.kind, way.transport)


def test_a_way_is_known_from_a_look_and_gone_with_its_connection(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1, quic=True) as one:
            async with open_node(2, quic=True) as two:
                peer = two.transport.peer
                assert await look(one, peer) is None
                await one.transport.connect(peer, [at(two, "tcp"), at(two, "udp")])
                assert await look(one, peer) == ("direct", "tcp")
                assert await look(two, one.transport.peer) == ("direct", "tcp")
                assert at(one, "tcp").rpartition("/p2p/")[0] in await one.transport.routes.listening()
            await one.until(lambda: peer not in one.neighbours)
            assert await look(one, peer) is None

    asyncio.run(scenario())


def test_quic_comes_first_where_holes_are_punched(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1, quic=True) as one, open_node(2, quic=True) as two:
            one.transport.routes.by_quic = {two.transport.peer}
            await one.transport.connect(two.transport.peer, [at(two, "tcp")])
            assert await look(one, two.transport.peer) == ("direct", "quic")

    asyncio.run(scenario())


def test_streams_go_on_over_the_connection_that_was_dialled_instead(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1, quic=True) as one, open_node(2, quic=True) as two:
            peer = two.transport.peer
            await one.transport.connect(peer, [at(two, "tcp")])
            assert await one.transport.routes.redial(peer, at(two, "udp"), within=5)
            await one.until(lambda: peer in one.neighbours)
            assert await look(one, peer) == ("punched", "quic")
            await one.transport.send(peer, "ping", [])
            await one.transport.routes.free(peer)

    asyncio.run(scenario())


def test_a_dial_without_an_answer_ends_and_the_old_addresses_serve_again(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1, quic=True) as one, open_node(2, quic=True) as two:
            peer = two.transport.peer
            await one.transport.connect(peer, [at(two, "tcp")])
            frozen = psutil.Process(two.p2pd.pid)
            frozen.suspend()
            redial = asyncio.create_task(one.transport.routes.redial(peer, at(two, "udp"), within=1))
            await one.until(lambda: peer not in one.neighbours)
            free = asyncio.create_task(one.transport.routes.free(peer))
            await asyncio.sleep(0)
            assert not free.done(), "nothing is dialled while a hole is punched"
            assert not await redial
            await free
            frozen.resume()
            await one.until(lambda: peer in one.neighbours)

    asyncio.run(scenario())


class Owner:
    """A transport whose p2pd has one peer, at ``end``, and fails to dial when there is none."""

    def __init__(self, end: str) -> None:
        self.peer, self.end = PEER, end
        self.hurried: list[PeerId] = []
        self.told: list[str] = []

    @property
    def control(self) -> Control:
        """Itself."""
        return cast("Control", self)

    def hurry(self, peer: PeerId) -> None:
        """Noted."""
        self.hurried.append(peer)

    async def disconnect(self, peer: PeerId) -> None:
        """Noted."""
        self.told.append("disconnect")

    async def dial(self, peer: PeerId, addresses: Sequence[str]) -> None:
        """Noted."""
        self.told += addresses
        if not self.end:
            raise TransportError(peer, "cannot be reached")

    async def connected(self, own: PeerId) -> list[tuple[PeerId, str]]:
        """Through the relay, and once it was dialled at the one end."""
        end = self.end if self.told else CIRCUIT
        return [(PEER, end)] if end else []


def test_a_hole_that_is_left_for_an_address_is_one_no_more() -> None:
    owner = Owner(UDP_END)
    routes = Routes(owner)
    for punched, kind in ((True, "punched"), (False, "direct")):
        assert asyncio.run(routes.redial(PEER, UDP_END, within=1, punched=punched))
        assert routes.ways()[PEER].kind == kind


@pytest.mark.parametrize(("end", "worked"), [(UDP_END, True), (CIRCUIT, False), ("", False)])
def test_a_hole_is_one_only_without_a_relay(end: str, worked: bool) -> None:
    owner = Owner(end)
    routes = Routes(owner)
    assert asyncio.run(routes.redial(PEER, UDP_END, within=1)) is worked
    assert owner.told == ["disconnect", UDP_END] and owner.hurried == [PEER]
    assert [each.kind for each in routes.ways().values()] == (["punched" if worked else "relayed"] if end else [])
    asyncio.run(routes.free(PEER))
