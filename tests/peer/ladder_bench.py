"""A ladder with observers, p2pd and transport that the test has made."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from dht import reach
from dht.connections import Connection
from peer import reaching as module
from peer.reaching import Reaching, Surroundings
from protocols.errors import TransportError
from protocols.ids import PeerId
from protocols.reach import AskReach, Outcome, ReachReply, plan

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from dht.p2pd import P2pd
    from dht.transport import StreamTransport
    from peer.reporter import Reporter

OWN, LAN, FAR = PeerId("m-own"), PeerId("a-lan"), PeerId("b-far")
PORT = 4001
HOME = f"/ip4/192.168.1.7/tcp/{PORT}"
TCP_END = "/ip4/8.8.8.8/tcp/50000"
UDP_END = "/ip4/8.8.8.8/udp/50000/quic-v1"
LAN_END = f"/ip4/192.168.1.7/udp/{PORT}/quic-v1"
RELAY = "/ip4/9.9.9.9/tcp/4002/p2p/relay"
OTHER = "/ip4/9.9.9.8/tcp/4002/p2p/other"


class Bench:
    """Everything round one ladder, and what it was told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.port = PORT
        self.relays: tuple[str, ...] = ()
        self.by_quic: Container[PeerId] = ()
        self.listen: tuple[str, ...] = (HOME,)
        self.known: tuple[str, ...] = ()
        self.connected = {peer: Connection("direct", "quic", UDP_END) for peer in (LAN, FAR)}
        self.replies: dict[PeerId, tuple[str, str]] = {}
        """Observer → where it sees this peer, and what it finds there; TransportError from others."""
        self.asked: list[tuple[PeerId, tuple[str, ...]]] = []
        self.stood: list[bool] = []
        self.published: list[tuple[str, ...]] = []
        self.warned: list[str] = []
        self.records: dict[PeerId, tuple[str, ...]] = {}
        self.near: dict[PeerId, str] = {}
        self.knows_others = False
        self.redialled: list[tuple[PeerId, str, bool]] = []
        self.frozen: set[PeerId] = set()
        self.slow: dict[PeerId, tuple[str, ...]] = {}
        """Observer → addresses that p2pd has before it answers."""
        self.begun_again = 0
        monkeypatch.setattr(reach, "ask", self.ask)
        around = Surroundings(
            lambda: [LAN, FAR],
            lambda: self.known,
            lambda: self.published.append(self.reaching.addresses),
            self.stood.append,
            lambda: True,
            lambda peer: self.records.get(peer, ()),
            lambda: frozenset({FAR}),
            near=lambda peer: self.near.get(peer, ""),
            outside=lambda: self.knows_others,
        )
        self.reaching = Reaching(
            OWN,
            cast("P2pd", self),
            cast("StreamTransport", self),
            cast("Reporter", self),
            around,
            confined=False,
        )

    @property
    def routes(self) -> Bench:
        """Itself."""
        return self

    def ways(self) -> dict[PeerId, Connection]:
        """How peers are connected."""
        return self.connected

    async def listening(self) -> tuple[str, ...]:
        """p2pd's own addresses."""
        return self.listen

    async def redial(self, peer: PeerId, address: str, *, within: float, punched: bool) -> bool:
        """In vain."""
        assert within > 0
        self.redialled.append((peer, address, punched))
        return False

    async def count_connections(self) -> None:
        """Nothing to count."""

    def reserve_at(self, relays: Sequence[str], *, again: bool = False) -> bool:
        """As p2pd does."""
        self.relays = tuple(relays)
        self.begun_again += again
        return True

    def apply(self, event: object) -> None:
        """A status event."""

    def warn(self, code: str, text: str, remedy: str = "") -> None:
        """Noted."""
        self.warned.append(code)

    async def ask(self, _: object, peer: PeerId, addresses: Sequence[str] = ()) -> ReachReply:
        """In place of ``reach.ask``."""
        if addresses:
            self.asked.append((peer, tuple(addresses)))
        if peer in self.frozen:
            await asyncio.Event().wait()
        if peer in self.slow:
            self.listen = (*self.listen, *self.slow.pop(peer))
            for _ in range(10):
                await asyncio.sleep(0)
        if peer not in self.replies:
            raise TransportError(peer, "is away")
        observed, found = self.replies[peer]
        planned = plan(AskReach(tuple(addresses)), observed)
        return ReachReply(observed, tuple(Outcome(address, verdict or found) for address, verdict in planned))

    def turn(self) -> None:
        """One turn of the ladder, without its pause."""

        async def once() -> None:
            self.reaching._woken = asyncio.Event()  # the last one is of another loop
            running = asyncio.create_task(self.reaching.run())
            for _ in range(60):
                await asyncio.sleep(0)
            assert not running.done(), "it runs for ever"
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        asyncio.run(once())


@pytest.fixture(name="bench")
def bench_of_a_ladder(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(module, "SETTLE_S", -1.0)
    monkeypatch.setattr(module, "BREATH_S", 0.0)
    monkeypatch.setattr(module, "ROUTER_S", (-1.0, 1000.0))
    return Bench(monkeypatch)
