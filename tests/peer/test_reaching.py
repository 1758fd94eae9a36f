"""The ladder carried out, with observers, p2pd and transport that the test has made."""

from __future__ import annotations

import time

import psutil
import pytest

from dht.connections import Connection
from peer import reaching as module
from protocols.ids import PeerId
from protocols.reach import BUSY, PROVEN, SILENT
from tests.peer.ladder_bench import (
    FAR,
    HOME,
    LAN,
    LAN_END,
    OTHER,
    OWN,
    PORT,
    RELAY,
    TCP_END,
    UDP_END,
    Bench,
    bench_of_a_ladder,
)

__all__ = ["bench_of_a_ladder"]


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


def test_what_the_router_opens_while_an_observer_dials_is_asked_about_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the answer to the first question put off the next one for a minute: the home was relayed for good."""
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    opened = "/ip4/8.8.8.8/tcp/5555"
    bench.replies[FAR], bench.slow[FAR] = (UDP_END, SILENT), (opened,)
    bench.turn()
    assert [asked for peer, asked in bench.asked if peer == FAR] == [(f"/tcp/{PORT}",), (f"/tcp/{PORT}", opened)]


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
