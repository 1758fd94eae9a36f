"""Where p2pd and the relay listen: of IPv4 and IPv6 what the machine has, at one port that nobody else holds."""

from __future__ import annotations

import errno
import ipaddress
import socket
from contextlib import ExitStack

from protocols.errors import EnvironmentFault

EVERYWHERE, EVERYWHERE_6 = "0.0.0.0", "::"
_TRIES = 20


def hosts_of(listen: str) -> tuple[str, ...]:
    """The IP addresses to bind for ``listen``: for ``0.0.0.0`` every address of both families, IPv4 first."""
    return (EVERYWHERE, EVERYWHERE_6) if listen == EVERYWHERE and has_ipv6() else (listen,)


def has_ipv6() -> bool:
    """Whether the kernel has IPv6 at all; there may be no address of it but loopback's."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind((EVERYWHERE_6, 0))
    except OSError:
        return False
    return True


def is_confined(listen: str) -> bool:
    """Whether who listens there stays on this machine."""
    return ipaddress.ip_address(listen).is_loopback


def at(host: str) -> str:
    """An IP address as a multiaddr: ``/ip4/…`` or ``/ip6/…``."""
    return f"/ip{ipaddress.ip_address(host).version}/{host}"


def claim_port(listen: str, port: int) -> int:
    """A port free for TCP and UDP at each of ``hosts_of(listen)``: ``port``, or any when it is 0.

    Raises EnvironmentFault. Asked before p2pd starts, because two p2pd of one user share a TCP port without complaint
    (SO_REUSEPORT).
    """
    hosts = hosts_of(listen)
    for _ in range(1 if port else _TRIES):
        claimed = port
        with ExitStack() as stack:
            try:
                for host in hosts:
                    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                        claimed = _bind(stack, kind, host, claimed)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise EnvironmentFault(
                        f"cannot listen on {host} port {port}: {error.strerror}",
                        remedy="choose another address with --listen, or another port with --p2p-port (0 = any)",
                    ) from error
            else:
                return claimed
    raise EnvironmentFault(
        f"port {port} is in use by another program" if port else "found no port free for both TCP and UDP",
        remedy="stop that program, or choose another port with --p2p-port (0 = any)",
    )


def _bind(stack: ExitStack, kind: socket.SocketKind, host: str, port: int) -> int:
    """The port that a socket got, which ``stack`` closes; raises OSError."""
    is_six = ":" in host
    each = stack.enter_context(socket.socket(socket.AF_INET6 if is_six else socket.AF_INET, kind))
    if is_six:
        each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # as p2pd and the relay do: each family by itself
    if kind == socket.SOCK_STREAM:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections in TIME_WAIT don't matter
    each.bind((host, port))
    return int(each.getsockname()[1])
