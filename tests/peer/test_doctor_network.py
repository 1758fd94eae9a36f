"""The doctor on addresses, containers, ports, the router and the addresses to join by; all traffic on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from dht.p2pd import P2pd, P2pdConfig
from peer import doctor_checks_entry as entering
from peer import doctor_checks_network as checks
from peer.doctor_checks_entry import Door, Names
from peer.doctor_interfaces import Own, has_route, in_container, kind_of, own_addresses
from peer.identity import Identity
from tests.dht.test_probe import OFFER, replying
from tests.peer.test_screens import status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from peer.doctor_report import Outcome

HOST = "127.0.0.1"
PEER = Identity.from_seed(bytes(32)).peer


def own(*found: tuple[str, str]) -> list[Own]:
    """Addresses on interfaces."""
    pairs = [(name, ipaddress.ip_address(text)) for name, text in found]
    return [Own(name, address, kind_of(name, address)) for name, address in pairs]


LOOPBACK = ("lo", "127.0.0.1")
AT_HOME = own(LOOPBACK, ("wlan0", "192.168.1.5"), ("wlan0", "fe80::1"))
PUBLIC = own(LOOPBACK, ("eth0", "8.8.4.4"))
BRIDGED = own(LOOPBACK, ("eth0", "172.17.0.2"))


@pytest.mark.parametrize(
    ("interface", "address", "kind"),
    [
        ("eth0", "8.8.8.8", "public"),
        ("eth0", "2600::1", "public"),
        ("wlan0", "10.0.0.7", "private"),
        ("wlan0", "fd00::7", "private"),
        ("ppp0", "100.64.3.4", "shared"),
        ("docker0", "172.17.0.1", "bridge"),
        ("eth0", "172.17.0.2", "bridge"),
        ("br-0a1b2c", "172.20.0.1", "bridge"),
        ("virbr0", "192.168.122.1", "bridge"),
        ("bridge0", "192.168.122.1", "private"),
        ("eth0", "169.254.1.1", "link"),
        ("lo", "::1", "loopback"),
    ],
)
def test_what_an_address_is_worth(interface: str, address: str, kind: str) -> None:
    assert kind_of(interface, ipaddress.ip_address(address)) == kind


def test_this_machine_s_own_addresses_are_seen() -> None:
    found = own_addresses()
    assert any(each.kind == "loopback" for each in found) or not found
    assert isinstance(has_route(socket.AF_INET), bool)


@pytest.mark.parametrize(
    ("found", "routed", "result", "evidence"),
    [
        (own(LOOPBACK), False, "fail", "only this machine itself"),
        (own(LOOPBACK, ("docker0", "172.17.0.1")), False, "fail", "for containers"),
        (AT_HOME, False, "warn", "no way to the internet"),
        (AT_HOME, True, "pass", "192.168.1.5 (wlan0), private: behind a router"),
        (PUBLIC, True, "pass", "8.8.4.4 (eth0), a public address"),
        (own(("ppp0", "100.64.3.4")), True, "pass", "CGNAT"),
        (own(("eth0", "2600::1")), True, "pass", "no IPv4"),
    ],
)
def test_a_network_or_none(found: list[Own], routed: bool, result: str, evidence: str) -> None:
    outcome = checks.addresses(found, routed=routed)
    assert outcome.result == result and evidence in outcome.evidence


def test_a_container_s_bridge_is_recognised_from_both_sides() -> None:
    within = checks.container(BRIDGED, inside=True, port=0)
    assert within.result == "warn" and "172.17.0.2 (eth0) means nothing to others" in within.evidence
    assert "-p 4001:4001 -p 4001:4001/udp" in (within.remedy or "")
    assert "-p 7:7" in (checks.container(BRIDGED, inside=True, port=7).remedy or "")
    beside = checks.container([*AT_HOME, *own(("docker0", "172.17.0.1"))], inside=False, port=0)
    assert beside.result == "pass" and "172.17.0.1 (docker0) is a bridge" in beside.evidence
    assert checks.container(PUBLIC, inside=True, port=0).result == "pass"
    assert checks.container(AT_HOME, inside=False, port=0).result == "pass"


def test_a_container_is_known_by_what_it_leaves(tmp_path: Path) -> None:
    assert not in_container(tmp_path)
    (tmp_path / "proc/1").mkdir(parents=True)
    group = tmp_path / "proc/1/cgroup"
    for text, inside in (("0::/init.scope\n", False), ("0::/docker/0a1b\n", True), ("1:cpu:/kubepods/x\n", True)):
        group.write_text(text)
        assert in_container(tmp_path) is inside
    group.write_text("0::/\n")
    (tmp_path / ".dockerenv").touch()
    assert in_container(tmp_path)


def test_ipv6_is_there_or_leads_nowhere_or_is_not_needed() -> None:
    found = own(("eth0", "2600::1"))
    assert checks.ipv6(found, routed=True).result == "pass"
    assert checks.ipv6(found, routed=False).result == "warn"
    assert checks.ipv6(AT_HOME, routed=False).result == "skipped"


def test_a_port_is_free_taken_or_our_own() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        taken = checks.port(HOST, port, None)
        assert taken.result == "fail" and f"port {port} is in use by another program" in taken.evidence
        assert f"process {os.getpid()}" in taken.evidence and "--p2p-port" in (taken.remedy or "")
        assert checks.api_port(port).result == "fail"
        ours = status(reach={"rung": "unknown", "evidence": [], "addresses": [f"/ip4/192.168.1.5/tcp/{port}"]})
        assert checks.port(HOST, port, ours).evidence == f"{port}, where this home's daemon listens"
        assert checks.port(HOST, 0, ours).result == "pass"
    assert checks.port(HOST, port, None).evidence == f"{port} is free for TCP and UDP"
    assert checks.api_port(port).result == checks.port(HOST, 0, None).result == "pass"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind((HOST, 0))
        assert checks.port(HOST, udp.getsockname()[1], None).result == "fail", "QUIC needs the same port"


def answer_of(address: str) -> bytes:
    return b"\x00\x80\x00\x00\x00\x00\x00\x09" + ipaddress.IPv4Address(address).packed


@pytest.mark.parametrize(
    ("outside", "result", "evidence"),
    [
        ("8.8.4.4", "pass", "the router 127.0.0.1 offers UPnP and NAT-PMP; its outside address is 8.8.4.4"),
        ("100.64.1.1", "warn", "the provider's own network (CGNAT) lies beyond it"),
        ("192.168.0.7", "warn", "another router lies beyond it"),
    ],
)
def test_a_router_that_maps_ports_and_what_lies_beyond_it(outside: str, result: str, evidence: str) -> None:
    async def main() -> Outcome:
        async with replying(lambda _: OFFER) as upnp, replying(lambda _: answer_of(outside)) as pmp:
            return await checks.upnp(AT_HOME, 0, target=(HOST, upnp), gateway=(HOST, pmp), within=1)

    outcome = asyncio.run(main())
    assert outcome.result == result and evidence in outcome.evidence


def test_a_router_that_maps_nothing_and_none_at_all() -> None:
    async def main() -> Outcome:
        async with replying(lambda _: None) as silent:
            return await checks.upnp(AT_HOME, 4001, target=(HOST, silent), gateway=(HOST, silent), within=0.1)

    outcome = asyncio.run(main())
    assert outcome.result == "warn" and "port 4001, TCP and UDP" in (outcome.remedy or "")
    for found in (PUBLIC, own(LOOPBACK)):
        assert asyncio.run(checks.upnp(found, 0)).result == "skipped"


@asynccontextmanager
async def looking(*known: tuple[str, str], error: int = socket.EAI_NONAME) -> AsyncIterator[Names]:
    """Names of a world with only these in it."""

    def look_up(host: str, *_: Any, **__: Any) -> list[Any]:
        found = [(socket.AF_INET, 1, 6, "", (address, 0)) for name, address in known if name == host]
        if not found:
            raise socket.gaierror(error, "Name or service not known")
        return found

    names = Names(look_up=look_up)
    try:
        yield names
    finally:
        await names.close()


def entered(address: str, seed: dict[str, Any] | None = None, place: str = "", within: float = 2.0) -> Outcome:
    async def main() -> Outcome:
        async with looking(("here.example", HOST)) as names:
            return await entering.entry(Door(address, seed, place), names, within)

    return asyncio.run(main())


def test_an_address_where_murmur_listens_and_the_same_by_its_name_and_by_udp(tmp_path: Path) -> None:
    async def main() -> list[Outcome]:
        async with (
            P2pd(P2pdConfig(tmp_path, None, host=HOST, quic=True)) as p2pd,
            looking(("a.example", HOST)) as names,
        ):
            heads = (f"/ip4/{HOST}/tcp", "/dns4/a.example/tcp", f"/ip4/{HOST}/udp")
            ends = ("", "", "/quic-v1")
            addresses = [f"{head}/{p2pd.port}{end}/p2p/{PEER}" for head, end in zip(heads, ends, strict=True)]
            found = [await entering.entry(Door(each), names) for each in addresses]
            own = await entering.udp(addresses[:1], names, own=frozenset({HOST}))
            assert own.result == "skipped", "this machine's own answer says nothing of the network"
            return [*found, await entering.udp(addresses[:1], names), await entering.met([Door(addresses[0])], names)]

    by_ip, by_name, by_udp, udp, met = asyncio.run(main())
    assert {each.result for each in (by_ip, by_name, by_udp, udp, met)} == {"pass"}
    assert by_ip.evidence.endswith(f"(…{PEER[-6:]}): answers") and by_udp.evidence.endswith("answers over UDP")
    assert udp.evidence == f"a peer at {HOST} answered over it (QUIC), which proves it for this network only"
    assert met.evidence == "1 of 1 address of peers met before answers"


def test_each_way_of_not_being_there_has_its_own_words() -> None:
    with socket.create_server((HOST, 0)) as server:
        free = server.getsockname()[1]
    refused = entered(f"/ip4/{HOST}/tcp/{free}/p2p/{PEER}", place="/home/x/config.toml")
    assert refused.result == "fail" and "connection refused: nobody listens there" in refused.evidence
    assert (refused.remedy or "").endswith("; take it out of /home/x/config.toml if it is gone")
    quic = entered(f"/ip4/{HOST}/udp/{free}/quic-v1/p2p/{PEER}")
    assert quic.result == "fail" and "nobody listens there on UDP" in quic.evidence
    unknown = entered(f"/dns4/gone.example/tcp/1/p2p/{PEER}")
    assert unknown.result == "fail" and "its name has no address: Name or service not known" in unknown.evidence
    assert "it has no IPv6 address" in entered(f"/dns6/here.example/tcp/1/p2p/{PEER}").evidence
    assert entered(f"/dns4/here.example/tcp/{free}/p2p/{PEER}").evidence.endswith("nobody listens there")
    assert entered(f"/dnsaddr/x.example/p2p/{PEER}").result == "skipped"
    seed = {"address": "x", "state": "failed", "error": "its clock is 9.0 s ahead of ours", "retry_s": 4.0}
    assert "(the daemon: its clock is 9.0 s ahead" in entered(f"/ip4/{HOST}/tcp/{free}/p2p/{PEER}", seed).evidence
    assert entered(f"/ip4/{HOST}/tcp/{free}/p2p/{PEER}", {**seed, "state": "ok"}).result == "pass"


def test_an_address_that_swallows_everything_fails_within_its_deadline() -> None:
    with socket.create_server((HOST, 0), backlog=0) as full, contextlib.ExitStack() as stack:
        for _ in range(2):  # the queue is full then, and Linux drops what more comes
            each = stack.enter_context(socket.socket())
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        outcome = entered(f"/ip4/{HOST}/tcp/{full.getsockname()[1]}/p2p/{PEER}", within=0.3)
    assert outcome.result == "fail" and "no answer within 0.3 s" in outcome.evidence
    assert "firewall" in (outcome.remedy or "")


def test_a_server_of_another_kind_is_not_murmur() -> None:
    with socket.create_server((HOST, 0)) as silent:
        outcome = entered(f"/ip4/{HOST}/tcp/{silent.getsockname()[1]}/p2p/{PEER}", within=0.2)
    assert outcome.result == "fail" and "it is not murmur" in outcome.evidence


def test_udp_over_which_nobody_answers_is_not_called_broken() -> None:
    async def main(addresses: list[str]) -> Outcome:
        async with looking() as names:
            return await entering.udp(addresses, names, within=0.1)

    for addresses in ([], [f"/ip4/{HOST}/tcp/9/p2p/{PEER}"], [f"/dns4/gone.example/tcp/9/p2p/{PEER}"]):
        outcome = asyncio.run(main(addresses))
        assert outcome.result == "skipped" and "a peer that listens for QUIC" in outcome.evidence


def test_a_udp_socket_that_nobody_may_open_fails() -> None:
    def refused() -> socket.socket:
        raise PermissionError(1, "Operation not permitted")

    async def main() -> Outcome:
        async with looking() as names:
            return await entering.udp([], names, socket_of=refused)

    outcome = asyncio.run(main())
    assert outcome.result == "fail" and "Operation not permitted" in outcome.evidence


@pytest.mark.parametrize(
    ("error", "remedy"),
    [(socket.EAI_NONAME, "spelling"), (socket.EAI_AGAIN, "/etc/resolv.conf")],
    ids=["none", "again"],
)
def test_a_name_without_an_address_says_whose_fault_it_is(error: int, remedy: str) -> None:
    async def main() -> tuple[Outcome, Outcome]:
        async with looking(("here.example", HOST), error=error) as names:
            return await entering.name("here.example", names), await entering.name("gone.example", names)

    found, lost = asyncio.run(main())
    assert (found.result, found.evidence) == ("pass", f"here.example is {HOST}")
    assert lost.result == "fail" and remedy in (lost.remedy or "")


def test_a_name_is_looked_up_once_and_never_waited_for_too_long() -> None:
    asked: list[str] = []

    release = threading.Event()

    def never(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        release.wait()
        return []

    async def main() -> list[Outcome]:
        names = Names(within=0.2, look_up=never)
        try:
            door = Door(f"/dns4/slow.example/tcp/1/p2p/{PEER}")
            return list(await asyncio.gather(entering.name("slow.example", names), entering.entry(door, names)))
        finally:
            release.set()
            await names.close()

    name, entry = asyncio.run(main())
    assert name.result == entry.result == "fail"
    assert "no name server answered within 0.2 s" in name.evidence and "no name server answered" in entry.evidence
    assert asked == ["slow.example"]


def test_names_are_taken_from_addresses_once() -> None:
    given = [f"/dns4/a.example/tcp/1/p2p/{PEER}", f"/dns6/a.example/tcp/2/p2p/{PEER}", f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}"]
    assert entering.names_in(given) == ["a.example"]
