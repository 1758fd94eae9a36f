"""The ladder carried out, with observers, p2pd and transport that the test has made."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest

from dht import reach
from dht.connections import Connection
from peer import reaching as module
from peer.reaching import Reaching, Surroundings
from protocols.errors import TransportError
from protocols.ids import PeerId
from protocols.reach import BUSY, PROVEN, SILENT, AskReach, Outcome, ReachReply, plan

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
        self.redialled: list[tuple[PeerId, str, bool]] = []
        monkeypatch.setattr(reach, "ask", self.ask)
        around = Surroundings(
            lambda: [LAN, FAR],
            lambda: self.known,
            lambda: self.published.append(self.reaching.addresses),
            self.stood.append,
            lambda: True,
            lambda peer: self.records.get(peer, ()),
            lambda: frozenset({FAR}),
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

    def reserve_at(self, relays: Sequence[str]) -> bool:
        """As p2pd does."""
        self.relays = tuple(relays)
        return True

    def apply(self, event: object) -> None:
        """A status event."""

    def warn(self, code: str, text: str, remedy: str = "") -> None:
        """Noted."""
        self.warned.append(code)

    async def ask(self, _: object, peer: PeerId, addresses: Sequence[str]) -> ReachReply:
        """In place of ``reach.ask``."""
        self.asked.append((peer, tuple(addresses)))
        if peer not in self.replies:
            raise TransportError(peer, "is away")
        observed, found = self.replies[peer]
        planned = plan(AskReach(tuple(addresses)), observed)
        return ReachReply(observed, tuple(Outcome(address, verdict or found) for address, verdict in planned))

    def turn(self) -> None:
        """One turn of the ladder, without its pause."""

        async def once() -> None:
            running = asyncio.create_task(self.reaching.run())
            for _ in range(20):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        asyncio.run(once())


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(module, "SETTLE_S", -1.0)
    monkeypatch.setattr(module, "ROUTER_S", (-1.0, 1000.0))
    return Bench(monkeypatch)


def test_a_proven_address_is_told_once_with_this_peers_id(bench: Bench) -> None:
    bench.replies[FAR] = (UDP_END, PROVEN)
    bench.turn()
    assert bench.asked == [(LAN, (f"/tcp/{PORT}",)), (FAR, (f"/tcp/{PORT}",))]
    assert bench.published == [(f"/ip4/8.8.8.8/tcp/{PORT}/p2p/{OWN}",)]
    assert bench.reaching.plan.rung == "mapped" and bench.reaching.stands and not bench.stood
    bench.turn()
    assert len(bench.published) == 1
    assert [peer for peer, _ in bench.asked] == [LAN, FAR], "nobody is asked again so soon"


def test_only_peers_with_a_direct_connection_are_asked(bench: Bench) -> None:
    bench.connected = {FAR: Connection("relayed", "tcp", RELAY), LAN: Connection("punched", "quic", UDP_END)}
    bench.turn()
    assert not bench.asked


def test_behind_a_nat_it_says_that_it_cannot_be_dialled_and_later_that_it_can(bench: Bench) -> None:
    bench.replies[FAR], bench.known = (UDP_END, SILENT), (RELAY,)
    bench.turn()
    assert bench.reaching.plan.rung == "none" and bench.stood == [False] and not bench.reaching.stands
    assert bench.relays == (RELAY,) and FAR in bench.by_quic and LAN not in bench.by_quic
    bench.listen = (HOME, f"{RELAY}/p2p-circuit")
    bench.turn()
    assert bench.published == [(f"{RELAY}/p2p-circuit/p2p/{OWN}",)] and bench.stood == [False]
    bench.replies[FAR] = (UDP_END, PROVEN)
    bench.listen = (f"/ip4/192.168.1.8/tcp/{PORT}", f"{RELAY}/p2p-circuit")  # another network: all are asked anew
    bench.turn()
    assert bench.stood == [False, True] and FAR not in bench.by_quic


def test_a_busy_observer_changes_nothing_that_it_has_told(bench: Bench) -> None:
    bench.replies[FAR] = (UDP_END, PROVEN)
    bench.turn()
    bench.replies[FAR], bench.listen = (UDP_END, BUSY), ()
    bench.turn()
    assert len(bench.asked) == 4 and bench.reaching.plan.rung == "mapped" and len(bench.published) == 1


def test_a_relay_that_serves_is_kept_when_another_one_is_found(bench: Bench) -> None:
    bench.replies[FAR], bench.known = (UDP_END, SILENT), (RELAY,)
    bench.turn()
    bench.listen, bench.known = (HOME, f"{RELAY}/p2p-circuit"), (OTHER, RELAY)
    bench.turn()
    assert bench.relays == (RELAY,) and bench.reaching.plan.relays == (RELAY, OTHER)


def test_it_reserves_only_after_the_router_had_time_to_open_a_port(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROUTER_S", (1000.0, 1000.0))
    bench.replies[FAR], bench.known = (UDP_END, SILENT), (RELAY,)
    bench.turn()
    assert not bench.relays and bench.reaching.plan.relays == (RELAY,)
    monkeypatch.setattr(module, "ROUTER_S", (-1.0, 1000.0))
    bench.turn()
    assert bench.relays == (RELAY,)


def test_it_reserves_only_after_what_the_router_opened_has_been_asked_about(bench: Bench) -> None:
    bench.replies[FAR] = (UDP_END, SILENT)
    bench.turn()
    bench.listen, bench.known = (HOME, "/ip4/8.8.8.8/tcp/5555"), (RELAY,)
    bench.replies[FAR] = (UDP_END, BUSY)
    bench.turn()
    assert not bench.relays
    bench.replies[FAR], bench.listen = (UDP_END, SILENT), (*bench.listen, "/ip4/192.168.1.9/tcp/1")
    bench.turn()
    assert bench.relays == (RELAY,)


def test_holes_are_punched_with_an_end_out_in_the_world_only(bench: Bench) -> None:
    bench.replies[LAN] = (LAN_END, PROVEN)
    bench.turn()
    assert bench.reaching._udp_end() == "", "the other side would refuse it as a lie"
    bench.replies[FAR], bench.listen = (UDP_END, SILENT), ()
    bench.turn()
    assert bench.reaching._udp_end() == UDP_END


def test_one_of_two_relayed_peers_asks_for_a_hole_ever_more_rarely_and_leads_by_turns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[PeerId, bool]] = []
    clock = [time.monotonic()]

    async def punch(peer: PeerId, *, lead: bool = False) -> bool:
        asked.append((peer, lead))
        raise TransportError(peer, "no hole")

    smaller, larger = PeerId("c-smaller"), PeerId("z-larger")
    bench.connected |= dict.fromkeys((smaller, larger), Connection("relayed", "tcp", RELAY))
    bench.replies[FAR] = (UDP_END, SILENT)
    punching: Any = bench.reaching._puncher
    monkeypatch.setattr(punching, "punch", punch)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    first = module.PUNCH_RETRY_S[0]
    for pause in (0.0, first - 1.0, 2.0, 2 * first - 2.0, 3.0):
        clock[0] += pause
        bench.turn()
    assert asked == [(larger, False), (larger, True), (larger, False)]


def test_whoever_meets_nobody_is_warned_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.connected = {}
    later = time.monotonic() + 60.0
    monkeypatch.setattr(time, "monotonic", lambda: later)
    monkeypatch.setattr(psutil, "net_if_addrs", dict)
    bench.turn()
    bench.turn()
    assert bench.reaching.plan.rung == "none" and bench.warned == ["reach"]


def test_who_cannot_be_dialled_dials_whom_a_relay_connected_it_with_though_it_can_be(bench: Bench) -> None:
    """Before, a public peer that came first through a relay stayed relayed, and was asked for holes for ever."""
    smaller, larger, hidden = PeerId("c-smaller"), PeerId("z-larger"), PeerId("zz-hidden")
    open_at = f"/ip4/8.8.4.4/tcp/{PORT}/p2p/z"
    bench.connected |= dict.fromkeys((smaller, larger, hidden), Connection("relayed", "tcp", RELAY))
    bench.records = dict.fromkeys((smaller, larger), (f"{RELAY}/p2p-circuit/p2p/z", open_at))
    bench.records[hidden] = (f"{RELAY}/p2p-circuit/p2p/zz",)
    bench.replies[FAR] = (TCP_END, SILENT)
    bench.turn()
    bench.turn()
    assert sorted(bench.redialled) == [(smaller, open_at, False), (larger, open_at, False)], "once, then after a pause"
    bench.redialled.clear()
    bench.replies[FAR] = (UDP_END, PROVEN)
    bench.reaching._holes.clear()
    bench.reaching._observers.clear()
    bench.turn()
    bench.reaching._holes.clear()
    bench.redialled.clear()
    bench.turn()
    assert bench.reaching.plan.direct and bench.redialled == [(larger, open_at, False)], "of two, the smaller id begins"
