"""This machine's addresses: which are public, which lead nowhere from outside, and whether this is a container."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal["public", "private", "shared", "bridge", "link", "loopback"]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

SHARED = ipaddress.IPv4Network("100.64.0.0/10")
"""Between a provider's customers and its own NAT (RFC 6598)."""
DOCKER = ipaddress.IPv4Network("172.17.0.0/16")
BRIDGED = ipaddress.IPv4Network("172.16.0.0/12")
"""From which docker takes the networks of its bridges."""
PROBED = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2000::1"}
"""Nobody's addresses, to which nothing is sent: the kernel only says which way it would go."""
_BRIDGES = re.compile(r"(docker|br-|veth|podman|cni|virbr|lxc|lxdbr|flannel|cali)")
_CONTAINER = re.compile(r"docker|containerd|kubepods|libpod|/lxc/|machine\.slice")


@dataclass(frozen=True, slots=True)
class Own:
    """An address of this machine."""

    interface: str
    address: Address
    kind: Kind

    def __str__(self) -> str:
        return f"{self.address} ({self.interface})"


def kind_of(interface: str, address: Address) -> Kind:
    """What an address is worth to others."""
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link"
    if address.version == 4 and address in SHARED:
        return "shared"
    if address.is_global:
        return "public"
    if _BRIDGES.match(interface) or address in DOCKER:
        return "bridge"
    return "private"


def own_addresses() -> tuple[Own, ...]:
    """The addresses of all interfaces that are up."""
    up = {name for name, each in psutil.net_if_stats().items() if each.isup}
    found = []
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if name in up and entry.family in (socket.AF_INET, socket.AF_INET6):
                address = ipaddress.ip_address(entry.address.partition("%")[0])
                found.append(Own(name, address, kind_of(name, address)))
    return tuple(found)


def has_route(family: socket.AddressFamily) -> bool:
    """Whether packets to the internet would leave this machine; none is sent."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((PROBED[family], 9))
    except OSError:
        return False
    return True


def in_container(root: Path = Path("/")) -> bool:
    """Whether this process runs inside a container, as far as ``root`` shows."""
    if any((root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        return True
    try:
        return _CONTAINER.search((root / "proc/1/cgroup").read_text()) is not None
    except OSError:
        return False


def is_contained() -> bool:
    """Whether a container's bridge stands before this process, by its address: some share their host's network.

    The host refuses what comes before this process has sent anything there.
    """
    return any(each.address in BRIDGED and not _BRIDGES.match(each.interface) for each in own_addresses())


def of_kind(addresses: Iterable[Own], *kinds: Kind, version: int | None = None) -> list[Own]:
    """Those of these kinds; ``version`` 4 or 6 only."""
    return [each for each in addresses if each.kind in kinds and version in (None, each.address.version)]
