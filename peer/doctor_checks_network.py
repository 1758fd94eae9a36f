"""The doctor on this machine's network: addresses, container bridges, IPv6, ports, and the router's help."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from dht.listening import claim_port
from dht.probe import NAT_PMP_PORT, SSDP, ask_nat_pmp, default_gateway, find_upnp
from protocols.errors import EnvironmentFault

from .doctor_interfaces import SHARED, Own, of_kind
from .doctor_report import Outcome, failed, passed, skipped, warned
from .screen import ports

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUTER_S = 2.0
"""For the router's answer to each of two questions."""
SHOWN = 3
"""Addresses in one line."""
ROUTES = Path("/proc/net/route")
LOOPBACK = "127.0.0.1"


def addresses(own: Sequence[Own], *, routed: bool) -> Outcome:
    """Whether there is a network at all; ``routed``: packets to the internet would leave this machine."""
    useful = of_kind(own, "public", "private", "shared")
    if not useful:
        bridges = of_kind(own, "bridge")
        only = f"only {_list(bridges)}, for containers" if bridges else "only this machine itself"
        return failed(
            f"no network: {only} can be reached", "connect a cable or Wi-Fi, and see with `ip address` that it is up"
        )
    if not routed:
        return warned(
            f"{_list(useful)}, and no way to the internet: only machines of this network can be reached",
            "see that the router is on and connected; `ip route` should show a line that begins with default",
        )
    public = of_kind(own, "public", version=4)
    if public:
        return passed(f"{_list(public)}, a public address")
    shared = of_kind(own, "shared")
    if shared:
        return passed(f"{_list(shared)}, an address inside the provider's own network (CGNAT)")
    private = of_kind(own, "private", version=4)
    return passed(f"{_list(private or useful)}, {'private: behind a router' if private else 'and no IPv4'}")


def container(own: Sequence[Own], *, inside: bool, port: int) -> Outcome:
    """Whether addresses lead to a container's bridge; ``port``: the one to publish, 0 = none chosen."""
    here = of_kind(own, "bridge", "private", "shared", version=4)
    if inside and here and not of_kind(own, "public", version=4):
        number = port or 4001
        return warned(
            f"this runs inside a container, where {_list(here)} means nothing to others",
            f"start the container with --network host, or with -p {number}:{number} -p {number}:{number}/udp, and"
            f" murmur with --p2p-port {number}",
        )
    if inside:
        return passed(
            "inside a container" + (" that has a public address" if of_kind(own, "public", version=4) else "")
        )
    if bridges := of_kind(own, "bridge", version=4):
        return passed(f"not in a container; {_list(bridges)} is a bridge for containers, which nobody outside reaches")
    return passed("not in a container, and no bridge for containers")


def ipv6(own: Sequence[Own], *, routed: bool) -> Outcome:
    """Whether IPv6 is there and leads somewhere."""
    public = of_kind(own, "public", version=6)
    if not public:
        return skipped("no public IPv6 address: peers meet over IPv4")
    if not routed:
        return warned(
            f"{_list(public)}, and no way to the internet over IPv6",
            "look at IPv6 in the router; until then peers meet over IPv4",
        )
    return passed(_list(public))


def port(host: str, wanted: int, status: dict[str, Any] | None) -> Outcome:
    """Whether peers can be taken on the port that was chosen."""
    if status is not None:
        held = ports([each for each in status["reach"]["addresses"] if "/p2p-circuit" not in each])  # a relay's own
        if held and (not wanted or str(wanted) in held):
            return passed(f"{', '.join(held)}, where this home's daemon listens")
    try:
        claim_port(host, wanted)
    except EnvironmentFault as fault:
        holder = _holder(wanted)
        return failed(f"{fault}{f' ({holder})' if holder else ''}", fault.remedy)
    if wanted:
        return passed(f"{wanted} is free for TCP and UDP")
    return passed("any free one; for a port forwarding in the router choose one with --p2p-port")


def api_port(wanted: int) -> Outcome:
    """Whether a daemon's local interface could listen on this port."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((LOOPBACK, wanted))
    except OSError as error:
        text = "is in use by another program" if error.errno == errno.EADDRINUSE else f"cannot be had: {error.strerror}"
        holder = _holder(wanted)
        return failed(
            f"port {wanted} {text}{f' ({holder})' if holder else ''}", "choose another with --api-port (0 = any)"
        )
    return passed(f"{wanted} is free")


def _holder(number: int) -> str:
    """The program that has a port, where this user may know it."""
    with contextlib.suppress(psutil.Error, OSError):
        for each in psutil.net_connections("inet"):
            listens = each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
            if listens and each.laddr and each.laddr.port == number and each.pid:
                return f"{psutil.Process(each.pid).name()}, process {each.pid}"
    return ""


async def upnp(
    own: Sequence[Own],
    wanted: int,
    *,
    target: tuple[str, int] = SSDP,
    gateway: tuple[str | None, int] = (None, NAT_PMP_PORT),
    within: float = ROUTER_S,
) -> Outcome:
    """Whether the router offers to let others in. ``target`` and ``gateway``: whom to ask by UPnP and by NAT-PMP."""
    if of_kind(own, "public", version=4):
        return skipped("not needed: this machine has a public address")
    if not of_kind(own, "private", "shared", "bridge", version=4):
        return skipped("no IPv4 network that a router could belong to")
    offers: dict[str, list[str]] = {}
    outside = None
    with contextlib.suppress(OSError):
        if (router := await find_upnp(target, within=within)) is not None:
            offers.setdefault(router, []).append("UPnP")
    host, number = gateway
    if host is not None:
        with contextlib.suppress(OSError):
            if (outside := await ask_nat_pmp(host, number, within=within)) is not None:
                offers.setdefault(host, []).append("NAT-PMP")
    if not offers:
        return warned(
            f"no router answered UPnP or NAT-PMP within {within:.0f} s",
            f"switch UPnP on in the router, or forward {f'port {wanted}' if wanted else 'a port (--p2p-port)'}, TCP and"
            " UDP, to this machine: others then reach it directly",
        )
    text = "; ".join(f"the router {each} offers {' and '.join(ways)}" for each, ways in offers.items())
    if outside is not None and not outside.is_global:
        whose = "the provider's own network (CGNAT)" if outside in SHARED else "another router"
        return warned(
            f"{text}, and its own outside address {outside} is not public: {whose} lies beyond it",
            "ask the provider for a public IPv4 address or IPv6, or set the first router to bridge mode",
        )
    return passed(text + (f"; its outside address is {outside}" if outside is not None else ""))


def gateway_of(routes: Path = ROUTES) -> str | None:
    """The router of the default route; None where there is none, or it cannot be seen."""
    try:
        return default_gateway(routes.read_text())
    except OSError:
        return None


def is_local(host: str) -> bool:
    """Whether a daemon that listens at this IPv4 address stays on this machine."""
    return ipaddress.ip_address(host).is_loopback


def _list(own: Sequence[Own]) -> str:
    more = f" and {len(own) - SHOWN} more" if len(own) > SHOWN else ""
    return ", ".join(map(str, own[:SHOWN])) + more
