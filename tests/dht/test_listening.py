"""Both families at one port, and IPv4 alone where the kernel has no other."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from dht import listening
from protocols.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable

V4, V6 = socket.AF_INET, socket.AF_INET6
pytestmark = pytest.mark.skipif(not listening.has_ipv6(), reason="the kernel has no IPv6")


@pytest.fixture
def no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel started with ``ipv6.disable=1``."""
    real: Callable[..., socket.socket] = socket.socket

    def made(family: int, kind: int) -> socket.socket:
        if family == V6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, kind)

    monkeypatch.setattr(socket, "socket", made)


def taken(family: socket.AddressFamily, kind: socket.SocketKind, port: int) -> socket.socket:
    """A program that holds the port in one family."""
    holder = socket.socket(family, kind)
    if family == V6:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    holder.bind(("::" if family == V6 else "0.0.0.0", port))
    if kind == socket.SOCK_STREAM:
        holder.listen()
    return holder


def test_everywhere_is_both_families_and_any_other_address_itself() -> None:
    assert listening.hosts_of("0.0.0.0") == ("0.0.0.0", "::")
    for host in ("::", "127.0.0.1", "::1", "2001:db8::7"):
        assert listening.hosts_of(host) == (host,)


def test_without_ipv6_everywhere_is_ipv4(no_ipv6: None) -> None:
    assert listening.hosts_of("0.0.0.0") == ("0.0.0.0",)
    assert listening.claim_port("0.0.0.0", 0) > 0
    with pytest.raises(EnvironmentFault, match="cannot listen on :: port 0"):
        listening.claim_port("::", 0)


@pytest.mark.parametrize("family", [V4, V6])
@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_port_is_claimed_in_both_families(family: socket.AddressFamily, kind: socket.SocketKind) -> None:
    port = listening.claim_port("0.0.0.0", 0)
    assert listening.claim_port("0.0.0.0", port) == port
    with taken(family, kind, port):
        with pytest.raises(EnvironmentFault, match=f"port {port} is in use"):
            listening.claim_port("0.0.0.0", port)
        if family == V4:
            assert listening.claim_port("::", port) == port


@pytest.mark.parametrize(
    ("listen", "is_local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("fd00::1", False)],
)
def test_loopback_stays_on_this_machine(listen: str, is_local: bool) -> None:
    assert listening.is_confined(listen) is is_local


def test_addresses_become_multiaddrs() -> None:
    assert (listening.at("8.8.8.8"), listening.at("2001:db8::7")) == ("/ip4/8.8.8.8", "/ip6/2001:db8::7")
