"""Dialled back by real nodes on loopback; and what one asker, one address and all of them may ask for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from dht import limits as lim
from dht import reach
from dht.dialback import Unproven
from dht.reach import PROTOCOL, ReachServer, ask
from peer.identity import Identity
from protocols.errors import RemoteError, TransportError
from protocols.reach import BUSY, CLOSED, ELSEWHERE, MAX_ASKED, PROVEN, STRANGER, UNSEEN, AskReach, Outcome, ReachReply

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from dht.stream import FrameStream
    from protocols.ids import PeerId

    OpenNode = Callable[..., AbstractAsyncContextManager[Any]]

ASKER = Identity.from_seed(b"a" * 32).peer
HERE = "/ip4/203.0.113.5/tcp/50000"
MOST = tuple(f"/tcp/{port}" for port in range(1, MAX_ASKED + 1))


def test_a_peer_is_told_which_of_its_addresses_lead_to_it(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as one, open_node(2) as two, open_node(3) as third:
            await two.transport.serve(PROTOCOL, ReachServer().serve)
            asked = [
                f"/ip4/127.0.0.1/tcp/{one.p2pd.port}",
                f"/tcp/{third.p2pd.port}",
                f"/ip4/127.0.0.2/tcp/{one.p2pd.port}",
                "/tcp/1",
            ]
            reply = await ask(one.transport, two.transport.peer, asked, at=two.transport.addresses())
            assert reply.outcomes == (
                Outcome(asked[0], PROVEN),
                Outcome(f"/ip4/127.0.0.1{asked[1]}", STRANGER),
                Outcome(asked[2], ELSEWHERE),
                Outcome("/ip4/127.0.0.1/tcp/1", CLOSED),
            )
            assert reply.observed.startswith("/ip4/127.0.0.1/tcp/")
            again = await ask(one.transport, two.transport.peer)
            assert again == ReachReply(reply.observed, ()), "asked without any, on the same connection"
            with pytest.raises(TransportError, match="protocols not supported"):
                await ask(two.transport, third.transport.peer, at=third.transport.addresses())
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_who_asks_for_what_nobody_may_is_hung_up_on_and_nothing_is_dialled(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as one, open_node(2) as two:
            network = Network()
            await two.transport.serve(PROTOCOL, ReachServer(prove=network.prove).serve)
            at = two.transport.addresses()
            with pytest.raises(ValueError):
                await ask(one.transport, two.transport.peer, ["/dns4/example.org/tcp/1"], at=at)
            with pytest.raises(TransportError):
                async with one.transport.call(two.transport.peer, PROTOCOL, at) as stream:
                    await stream.send("ask-reach", [b"\x81\xa9addresses\x91\xa7/tcp/99\x00"])
                    await stream.receive()
            assert two.transport.hang_ups == 1 and not network.dialled

    asyncio.run(scenario())


@dataclass
class Network:
    """Stands for what is dialled; everybody is where it says, once ``open``."""

    open: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    dialled: list[tuple[str, PeerId]] = field(default_factory=list)
    now: float = 1000.0

    async def prove(self, address: str, peer: PeerId) -> None:
        """What ``dialback.prove`` does."""
        self.dialled.append((address, peer))
        self.begun.set()
        await self.open.wait()
        if address.endswith("/tcp/4"):
            raise Unproven(peer, address, CLOSED)


@dataclass
class Stream:
    """One stream of an asker, seen at ``address``: what it says and what it is told."""

    address: str = HERE
    peer: PeerId = ASKER
    says: tuple[str, bytes] = ("ask-reach", AskReach(MOST).encode())
    told: list[tuple[str, bytes]] = field(default_factory=list)

    async def receive(self) -> tuple[str, bytes]:
        """The request."""
        return self.says

    async def send(self, kind: str, payload: Sequence[bytes]) -> None:
        """The reply."""
        self.told.append((kind, b"".join(payload)))

    async def asks(self, server: ReachServer) -> list[str]:
        """Serve it; what was found."""
        await server.serve(cast("FrameStream", self))
        [(kind, payload)] = self.told
        assert kind == "reach"
        reply = ReachReply.decode(payload, AskReach.decode(self.says[1], sender=self.peer), sender="us")
        return [each.found for each in reply.outcomes]


def served() -> tuple[Network, ReachServer]:
    """A server before a network where everything answers at once."""
    network = Network()
    network.open.set()
    return network, ReachServer(prove=network.prove, clock=lambda: network.now)


def peer(number: int) -> PeerId:
    """One of many."""
    return Identity.from_seed(number.to_bytes(32, "big")).peer


def test_only_the_address_where_the_asker_is_seen_is_dialled() -> None:
    async def scenario() -> None:
        network, server = served()
        own = ("/ip4/203.0.113.5/tcp/9", "/ip4/192.168.1.1/tcp/80", "/ip4/127.0.0.1/tcp/22", "/tcp/4")
        says = ("ask-reach", AskReach(own).encode())
        assert await Stream(says=says).asks(server) == [PROVEN, ELSEWHERE, ELSEWHERE, CLOSED]
        assert sorted(network.dialled) == [("/ip4/203.0.113.5/tcp/4", ASKER), ("/ip4/203.0.113.5/tcp/9", ASKER)]
        relayed = f"{HERE}/p2p/{peer(5)}/p2p-circuit"
        for address in (relayed, ""):
            assert await Stream(address, says=says).asks(server) == [UNSEEN] * 4
        assert len(network.dialled) == 2

    asyncio.run(scenario())


def test_one_asker_is_answered_once_at_a_time_and_so_many_addresses_a_while() -> None:
    async def scenario() -> None:
        network, server = served()
        network.open.clear()
        first = asyncio.create_task(Stream().asks(server))
        await network.begun.wait()
        assert await Stream().asks(server) == [BUSY] * 4
        assert [(gauge.in_use, gauge.refused) for gauge in server.gauges()] == [(1, 1)]
        network.open.set()
        assert await first == [PROVEN] * 3 + [CLOSED]
        answers = [await Stream().asks(server) for _ in range(5)]
        assert [BUSY not in each for each in answers] == [True, True, False, False, False], "twelve addresses at once"
        network.now += MAX_ASKED / lim.REACH_EACH.per_s
        assert BUSY not in await Stream().asks(server)
        assert [gauge.in_use for gauge in server.gauges()] == [0]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("address", "most"),
    [
        (lambda number: HERE, lim.REACH_PLACE.burst),
        (lambda number: f"/ip6/2001:db8::{number:x}/tcp/9", lim.REACH_PLACE.burst),
        (lambda number: f"/ip4/203.0.113.{number}/tcp/9", lim.REACH.burst),
    ],
    ids=["one address", "one IPv6 /64", "all together"],
)
def test_free_keys_make_nobody_dial_more(address: Callable[[int], str], most: float) -> None:
    async def scenario() -> None:
        network, server = served()
        for number in range(1, 40):
            await Stream(address(number), peer(number)).asks(server)
        assert len(network.dialled) == most
        if most < lim.REACH.burst:
            assert BUSY not in await Stream("/ip4/198.51.100.1/tcp/9", peer(99)).asks(server), "others are not kept out"

    asyncio.run(scenario())


def test_so_many_are_answered_at_once_and_a_cancelled_one_leaves_its_place() -> None:
    async def scenario() -> None:
        network, server = served()
        network.open.clear()
        one = ("ask-reach", AskReach(("/tcp/1",)).encode())
        streams = [Stream(f"/ip4/203.0.113.{number}/tcp/9", peer(number), one) for number in range(1, 19)]
        tasks = [asyncio.create_task(each.asks(server)) for each in streams[:-1]]
        assert await tasks[lim.REACH_AT_ONCE] == [BUSY]
        for task in tasks[:3]:
            task.cancel()
        await asyncio.gather(*tasks[:3], return_exceptions=True)
        assert [gauge.in_use for gauge in server.gauges()] == [lim.REACH_AT_ONCE - 3]
        network.open.set()
        assert await streams[-1].asks(server) == [PROVEN]
        assert await asyncio.gather(*tasks[3 : lim.REACH_AT_ONCE]) == [[PROVEN]] * (lim.REACH_AT_ONCE - 3)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_what_is_no_request_is_the_askers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mute(Stream):
        async def receive(self) -> tuple[str, bytes]:
            await asyncio.Future()
            raise AssertionError

    async def scenario() -> None:
        _, server = served()
        for says in (("bytes", b""), ("ask-reach", b""), ("ask-reach", b"\x80")):
            with pytest.raises(RemoteError):
                await Stream(says=says).asks(server)
        monkeypatch.setattr(reach, "REQUEST_S", 0.05)
        with pytest.raises(TransportError, match="asked nothing"):
            await Mute().asks(server)

    asyncio.run(scenario())


def test_whoever_answers_something_else_is_named_and_waited_for_no_longer(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as one, open_node(2) as two:
            answers = [
                ("reach", ReachReply("", (Outcome("/tcp/1", UNSEEN),)).encode()),
                ("reach", b"?"),
                ("bytes", b""),
            ]

            async def serve(stream: FrameStream) -> None:
                await stream.receive()
                if answers:
                    kind, payload = answers.pop()
                    await stream.send(kind, [payload])
                await stream.receive()

            await two.transport.serve(PROTOCOL, serve)
            other, at = two.transport.peer, two.transport.addresses()
            for text in ("a bytes frame", "malformed reach", "tells of 1 addresses where 0"):
                with pytest.raises(RemoteError, match=text):
                    await ask(one.transport, other, at=at)
            with pytest.raises(TransportError, match=f"{other}: did not tell within 0 s"):
                await ask(one.transport, other, at=at, within=0.3)

    asyncio.run(scenario())
