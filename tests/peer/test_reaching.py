"""The ladder carried out, with observers, p2pd and transport that the test has made."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest

from dht import reach
from dht.connections import Connection
from dht.links import Refused
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
        self.near: dict[PeerId, str] = {}
        self.knows_others = False
        self.redialled: list[tuple[PeerId, str, bool]] = []
        self.frozen: set[PeerId] = set()
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
        if peer not in self.replies:
            raise TransportError(peer, "is away")
        observed, found = self.replies[peer]
        planned = plan(AskReach(tuple(addresses)), observed)
        return ReachReply(observed, tuple(Outcome(address, verdict or found) for address, verdict in planned))

    def turn(self) -> None:
        """One turn of the ladder, without its pause."""

        async def once() -> None:
            running = asyncio.create_task(self.reaching.run())
            for _ in range(60):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        asyncio.run(once())


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(module, "SETTLE_S", -1.0)
    monkeypatch.setattr(module, "BREATH_S", 0.0)
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


def test_an_observer_that_is_frozen_holds_up_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, this peer told others for up to 20 s more to come through a relay that was frozen too."""
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    monkeypatch.setattr(module, "BREATH_S", 0.0)
    bench.frozen.add(LAN)
    bench.replies[FAR] = (UDP_END, PROVEN)
    bench.turn()
    assert bench.published == [(f"/ip4/8.8.8.8/tcp/{PORT}/p2p/{OWN}",)]
    assert [peer for peer, _ in bench.asked] == [LAN, FAR], "and is not asked again meanwhile"


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


def test_a_reservation_that_is_lost_is_taken_anew_in_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """p2pd itself does not go back to a relay that it has lost (for an hour)."""
    clock = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    bench.replies[FAR], bench.known = (UDP_END, SILENT), (RELAY, OTHER)
    bench.turn()
    assert set(bench.relays) == {RELAY, OTHER}
    first = module.REPLACE_S[0]
    bench.listen = (HOME, f"{RELAY}/p2p-circuit", f"{OTHER}/p2p-circuit")
    bench.turn()
    bench.listen, bench.known = (HOME, f"{RELAY}/p2p-circuit"), (RELAY,)
    clock[0] += 3 * first
    bench.turn()
    assert bench.begun_again == 0, "nobody else is known"
    bench.known = (RELAY, OTHER)
    for pause, count in ((1.0, 0), (first, 1), (first, 1), (first + 1.0, 2)):
        clock[0] += pause
        bench.turn()
        assert bench.begun_again == count, "ever more rarely"
    assert bench.relays == (RELAY, OTHER), "those that serve come first"
    third = OTHER.replace("other", "third")
    bench.known = (RELAY, OTHER, third)
    clock[0] += 5 * first
    bench.turn()
    assert bench.relays == (RELAY, third), "one that never failed is preferred"


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
        return False

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


def test_a_peer_that_was_not_ready_is_asked_again_sooner_and_no_turn_is_lost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    clock = [time.monotonic()]

    async def punch(peer: PeerId, *, lead: bool = False) -> bool:
        asked.append(lead)
        raise TransportError(peer, "has no UDP")

    bench.connected[PeerId("z-larger")] = Connection("relayed", "tcp", RELAY)
    bench.replies[FAR] = (UDP_END, SILENT)
    punching: Any = bench.reaching._puncher
    monkeypatch.setattr(punching, "punch", punch)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for pause in (0.0, 1.0, 0.5, 2.0, 0.5):
        clock[0] += pause
        bench.turn()
    assert asked == [False, False, False], "after 0, 1.2 and 2.4 s more"


def test_while_a_hole_is_dialled_no_try_is_forgotten(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, whoever was found unconnected in between was asked for holes as often as at first, for ever."""
    asked: list[PeerId] = []
    clock = [time.monotonic()]

    async def punch(peer: PeerId, *, lead: bool = False) -> bool:
        asked.append(peer)
        return False

    larger, relayed = PeerId("z-larger"), Connection("relayed", "tcp", RELAY)
    bench.connected[larger] = relayed
    bench.replies[FAR] = (UDP_END, SILENT)
    punching: Any = bench.reaching._puncher
    monkeypatch.setattr(punching, "punch", punch)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    bench.turn()
    del bench.connected[larger]
    bench.turn()
    bench.connected[larger] = relayed
    bench.turn()
    assert asked == [larger]
    del bench.connected[larger]
    clock[0] += module.MISSED_S
    bench.turn()
    bench.connected[larger] = relayed
    bench.turn()
    assert asked == [larger, larger], "another connection, after a while"


def test_p2pds_own_restart_makes_nobody_unknown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It drops all connections when it begins to reserve: what observers found holds until they can be asked again."""
    clock = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    bench.replies[FAR], bench.known = (TCP_END, SILENT), (RELAY,)
    bench.turn()
    assert bench.relays == (RELAY,)
    bench.connected, before = {}, bench.connected
    bench.listen = (HOME, LAN_END, f"{RELAY}/p2p-circuit")
    bench.turn()
    assert (
        "others come through 1 relay(s)" in bench.reaching.plan.evidence
        and FAR in bench.by_quic
        and bench.stood == [False]
    )
    assert bench.reaching._udp_end() == ""
    bench.connected, bench.replies[FAR] = before, (UDP_END, BUSY)
    bench.turn()
    assert bench.reaching._udp_end() == UDP_END, "known before the address was dialled again"
    bench.connected = {}
    clock[0] += module.MISSED_S
    bench.turn()
    assert bench.reaching.plan.rung == "unknown"


def test_whoever_refuses_us_is_not_asked_for_holes_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[PeerId] = []
    clock = [time.monotonic()]

    async def punch(peer: PeerId, *, lead: bool = False) -> bool:
        asked.append(peer)
        raise Refused(peer, "belongs to another run")

    bench.connected[PeerId("z-larger")] = Connection("relayed", "tcp", RELAY)
    bench.replies[FAR] = (UDP_END, SILENT)
    punching: Any = bench.reaching._puncher
    monkeypatch.setattr(punching, "punch", punch)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for _ in range(10):
        bench.turn()
        clock[0] += 30.0
    assert len(asked) == 1


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


def test_a_neighbour_is_dialled_in_the_house_whatever_way_it_was_reached_first(bench: Bench) -> None:
    """Also two that relays connect, neither of which can be dialled from outside: of them the smaller id begins."""
    ends = {"relayed": RELAY, "punched": UDP_END, "direct": TCP_END}
    far = {PeerId(f"z-{kind}"): Connection(kind, "tcp", end) for kind, end in ends.items()}  # type: ignore[arg-type]
    smaller, here = PeerId("c-smaller"), PeerId("z-here")
    bench.connected |= far | {
        smaller: Connection("relayed", "tcp", RELAY),
        here: Connection("direct", "tcp", "/ip4/192.168.1.8/tcp/50123"),
    }
    bench.near = {peer: f"/ip4/192.168.1.8/tcp/{PORT}/p2p/{peer}" for peer in (*far, smaller, here)}
    bench.records = dict.fromkeys(far, (f"/ip4/8.8.4.4/tcp/{PORT}/p2p/z",))
    bench.turn()
    assert sorted(bench.redialled) == sorted((peer, bench.near[peer], False) for peer in far)


@pytest.mark.parametrize(("known", "connected"), [(False, False), (True, False), (False, True)])
def test_what_a_neighbour_proves_is_told_while_nobody_outside_is_known(
    bench: Bench, known: bool, connected: bool
) -> None:
    bench.knows_others, outside = known, known or connected
    bench.connected[LAN] = Connection("direct", "tcp", "/ip4/192.168.1.8/tcp/50123")
    if not connected:
        del bench.connected[FAR]
    bench.replies[LAN] = (LAN_END, PROVEN)
    bench.turn()
    assert bench.reaching.addresses == (() if outside else (f"{HOME}/p2p/{OWN}",))
