"""How the ladder leaves relays: holes, and who asks for one when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dht.connections import Connection
from dht.links import Refused
from peer import reaching as module
from protocols.errors import TransportError
from protocols.ids import PeerId
from protocols.reach import BUSY, PROVEN, SILENT
from tests.peer.ladder_bench import FAR, HOME, LAN, LAN_END, RELAY, TCP_END, UDP_END, Bench, bench_of_a_ladder

if TYPE_CHECKING:
    import pytest

__all__ = ["bench_of_a_ladder"]


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
