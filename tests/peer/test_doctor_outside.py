"""The doctor on what others see: each kind of NAT, who gets in, relays; and a real lighthouse's entry on loopback."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from dht import reach
from dht.p2pd import P2pd, P2pdConfig
from dht.reachability import View, plan
from dht.transport import StreamTransport, TransportConfig
from peer import doctor_checks_outside as checks
from peer.doctor_checks_outside import Observer, Outside, Relay
from peer.identity import Identity
from tests.peer.test_doctor_network import AT_HOME, BRIDGED, LOOPBACK, PUBLIC, own
from tests.peer.test_screens import status

if TYPE_CHECKING:
    from pathlib import Path

A, B = (Identity.from_seed(each * 32).peer for each in (b"a", b"b"))
HOST = "8.8.4.4"


def seen(*ports: int, kind: str = "udp", found: str = "silent", host: str = HOST) -> Outside:
    """As this many observers tell of an end at port 4001."""
    tail = "/quic-v1" if kind == "udp" else ""
    ends = (f"/ip4/{host}/{kind}/{port}{tail}" for port in ports)
    return Outside(4001, tuple(Observer(peer, end, found) for peer, end in zip((A, B), ends, strict=False)))


@pytest.mark.parametrize(
    ("outside", "result", "says"),
    [
        (seen(4001, 4001), "pass", "keeps the port (2 peers see this machine at 8.8.4.4:4001): holes can be punched"),
        (seen(5001, 5001), "pass", "gives one port for all peers"),
        (seen(5001, 6001), "warn", "symmetric: it gives another port for each peer (4001 is seen as 8.8.4.4:5001"),
        (seen(4001), "pass", "one observer only"),
        (seen(5001), "warn", "4001 is seen as 8.8.4.4:5001, by one observer only"),
        (seen(4001, kind="tcp"), "skipped", "there is one, at 8.8.4.4; its kind shows over UDP only"),
        (seen(4001, host="192.168.1.9"), "skipped", "is inside this network too (sees 192.168.1.9)"),
        (Outside(4001, (Observer(A, "", "", "cannot be reached: dial"),)), "skipped", "nobody answered at 1 address"),
        (Outside(4001, (Observer(A, "", "", "refused us: private"),)), "skipped", f"…{A[-6:]} refused us: private"),
        (Outside(), "skipped", "there is nobody to ask"),
        (Outside(why="there is no network"), "skipped", "there is no network"),
    ],
)
def test_the_kind_of_nat_is_what_observers_show_and_no_more(outside: Outside, result: str, says: str) -> None:
    outcome = checks.nat(AT_HOME, outside, None)
    assert outcome.result == result and says in outcome.evidence
    assert (outcome.remedy is not None) == (result == "warn")


def test_no_nat_and_no_ipv4_need_no_observer() -> None:
    assert checks.nat(PUBLIC, Outside(), None).evidence == "none: 8.8.4.4 (eth0) is public"
    assert checks.nat(own(LOOPBACK), Outside(), None).result == "skipped"
    assert checks.nat(BRIDGED, seen(4001, 4001), None).result == "pass", "a container's bridge is a NAT too"


@pytest.mark.parametrize(
    ("ports", "result", "says"),
    [((5001, 6001), "warn", "symmetric NAT"), ((4001, 4001), "pass", "seen at /ip4/8.8.4.4/udp/4001/quic-v1")],
)
def test_a_daemon_tells_what_it_knows_where_nobody_answers_the_doctor(
    ports: tuple[int, ...], result: str, says: str
) -> None:
    """In the very words of the ladder."""
    ends = {each.peer: each.seen for each in seen(*ports).observers}
    said = plan(View(4001, (), frozenset({"192.168.1.5"}), ends, {})).evidence
    document = status(reach={"rung": "relayed", "evidence": list(said), "addresses": []})
    outcome = checks.nat(AT_HOME, Outside(why="there is nobody to ask"), document)
    assert outcome.result == result and says in outcome.evidence


@pytest.mark.parametrize(
    ("outside", "result", "says"),
    [
        (seen(4001, 4001, found="proven"), "pass", f"…{A[-6:]} reached this machine at 8.8.4.4, TCP port 4001"),
        (seen(4001, found="silent"), "warn", "tried 8.8.4.4, TCP port 4001: no answer"),
        (seen(4001, found="busy"), "warn", "not tried: too much was asked lately"),
        (seen(4001, found="proven", host="192.168.1.9"), "skipped", "is inside this network too"),
        (Outside(why="there is no network"), "skipped", "there is no network"),
    ],
)
def test_who_gets_in_is_who_has_tried(outside: Outside, result: str, says: str) -> None:
    outcome = checks.inbound(AT_HOME, outside)
    assert outcome.result == result and says in outcome.evidence
    firewall = checks.inbound(PUBLIC, seen(4001)).remedy or ""
    assert "firewall" in firewall and "UPnP" not in firewall


def test_relays_are_told_with_their_distance_and_who_holds_a_place() -> None:
    place = f"/ip4/8.8.8.8/tcp/4002/p2p/{A}/p2p-circuit/p2p/{B}"
    document = status(reach={"rung": "relayed", "evidence": [], "addresses": [place]})
    assert checks.relays_of(document) == [f"/ip4/8.8.8.8/tcp/4002/p2p/{A}"] and checks.relays_of(None) == []
    near, far = Relay(A, 0.0004, 0.0312), Relay(B, error="no answer within 3 s")
    both = checks.relays(Outside(1, seen(1).observers, (near, far)), document)
    assert both.result == "pass" and checks.NOT_MEASURED in both.evidence
    assert f"…{A[-6:]}: 31 ms there and back, connects in 0.4 ms, holds a place for this peer; …" in both.evidence
    assert f"…{B[-6:]} does not answer: no answer within 3 s" in both.evidence
    dead = checks.relays(Outside(1, seen(1).observers, (far,)), None)
    assert dead.result == "warn" and dead.remedy
    unasked = checks.relays(Outside(why="there is no network"), document)
    assert unasked.result == "pass" and "1 holds a place for this peer" in unasked.evidence
    assert "none is known" in checks.relays(seen(4001), None).evidence
    assert (
        "none could be looked for: there is no network"
        in checks.relays(Outside(why="there is no network"), None).evidence
    )
    direct = status(reach={"rung": "public", "evidence": [], "addresses": []})
    assert "not needed" in checks.relays(Outside(), direct).evidence


@pytest.mark.real
@pytest.mark.timeout(120)
def test_a_real_entry_tells_and_a_dead_one_is_told_of(tmp_path: Path) -> None:
    """On loopback, over QUIC; relays are pinged there too, for any libp2p node answers that."""

    async def nothing(*_: Any) -> None:
        return None

    async def scenario() -> Outside:
        async with P2pd(P2pdConfig(tmp_path, None, host="127.0.0.1", quic=True)) as p2pd:
            transport = StreamTransport(TransportConfig(bytes(32), "test", any_run=True), nothing)
            await transport.start(p2pd.control, in_rounds=False)
            try:
                await transport.serve(reach.PROTOCOL, reach.ReachServer().serve)
                (entry,) = (each for each in transport.addresses() if "/tcp/" in each)
                dead = f"/ip4/127.0.0.1/tcp/1/p2p/{A}"
                return await checks.ask(bytes(range(32)), 0, [entry, dead], [entry, dead])
            finally:
                await p2pd.retire()
                await transport.close()

    outside = asyncio.run(scenario())
    alive, dead = outside.observers
    assert alive.seen == f"/ip4/127.0.0.1/udp/{outside.port}/quic-v1" and alive.found == "proven", outside
    assert dead.peer == A and not dead.seen and dead.error
    near, silent = outside.relays
    assert near.rtt_s is not None and near.connect_s is not None and 0 < near.rtt_s < 5 and not near.error
    assert silent.rtt_s is None and "refused" in silent.error
    assert outside.ends() == [], "loopback is not the world"
