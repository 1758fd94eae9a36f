"""Questions to strangers that need neither p2pd nor a key: does libp2p answer there, and does a router map ports.

What comes back is believed only as far as that somebody answers: nobody proves here who it is.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

TRIES = 2
"""Datagrams get lost."""
ANSWERS = 16
"""Datagrams that are looked at."""
_GREETING = b"\x13/multistream/1.0.0\n"
_QUIC_BYTES = 1200
"""A server answers no shorter first packet (RFC 9000, 14.1)."""
_NO_VERSION = bytes.fromhex("1a2a3a4a")
"""Reserved to force version negotiation (RFC 9000, 15): any server answers, and no connection comes to be."""
SSDP = ("239.255.255.250", 1900)
NAT_PMP_PORT = 5351
_GATEWAYS = tuple(f"urn:schemas-upnp-org:device:InternetGatewayDevice:{number}" for number in (1, 2))


async def greets(host: str, port: int, *, within: float) -> bool:
    """Whether who listens on TCP at this IP address speaks libp2p; ``within`` for the connection, and for the word.

    Raises OSError, TimeoutError when nobody listens.
    """
    async with asyncio.timeout(within):
        reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_GREETING)
        async with asyncio.timeout(within):
            return await reader.readexactly(len(_GREETING)) == _GREETING
    except (OSError, asyncio.IncompleteReadError):  # a TimeoutError is an OSError
        return False
    finally:
        writer.transport.abort()


async def speaks_quic(host: str, port: int, *, within: float) -> bool:
    """Whether a QUIC server answers on UDP at this IP address; raises OSError where the network refuses to send."""
    target, source = os.urandom(8), os.urandom(8)
    packet = b"\xc0" + _NO_VERSION + b"\x08" + target + b"\x08" + source
    expected = b"\0\0\0\0\x08" + source + b"\x08" + target  # version negotiation names both ids, swapped

    def fits(data: bytes, _: str) -> bool | None:
        return (bool(data[:1]) and data[0] >= 0x80 and data[1:].startswith(expected)) or None

    return await ask(packet.ljust(_QUIC_BYTES, b"\0"), (host, port), fits, within=within) is not None


async def find_upnp(target: tuple[str, int] = SSDP, *, within: float) -> str | None:
    """IP address of a router that offers UPnP port mapping, as it says itself; raises OSError."""
    lines = (
        "M-SEARCH * HTTP/1.1",
        f"HOST: {SSDP[0]}:{SSDP[1]}",
        'MAN: "ssdp:discover"',
        "MX: 1",
        f"ST: {_GATEWAYS[0]}",
    )
    packet = "".join(f"{line}\r\n" for line in (*lines, ""))

    def fits(data: bytes, sender: str) -> str | None:
        return sender if any(each.encode() in data for each in _GATEWAYS) else None

    return await ask(packet.encode(), target, fits, within=within)


async def ask_nat_pmp(gateway: str, port: int = NAT_PMP_PORT, *, within: float) -> ipaddress.IPv4Address | None:
    """The outside address of a router that speaks NAT-PMP (RFC 6886, 3.2); raises OSError."""

    def fits(data: bytes, _: str) -> ipaddress.IPv4Address | None:
        sound = len(data) == 12 and data[:4] == b"\x00\x80\x00\x00"
        return ipaddress.IPv4Address(data[8:]) if sound else None

    return await ask(b"\x00\x00", (gateway, port), fits, within=within)


async def ask(
    packet: bytes, where: tuple[str, int], fits: Callable[[bytes, str], T | None], *, within: float
) -> T | None:
    """Send a datagram, again if need be, and return the first thing that ``fits`` makes of an answer; None without.

    Nobody but who was asked can answer, unless it was a multicast address. Raises OSError where it cannot be sent, or
    comes back as undeliverable.
    """
    many = ipaddress.ip_address(where[0]).is_multicast
    loop = asyncio.get_running_loop()
    answers: asyncio.Queue[tuple[bytes, str] | OSError] = asyncio.Queue(ANSWERS)
    transport, _ = await loop.create_datagram_endpoint(
        lambda: _Answers(answers), local_addr=("0.0.0.0", 0) if many else None, remote_addr=None if many else where
    )
    try:
        for _ in range(TRIES):
            transport.sendto(packet, where if many else None)
            try:
                async with asyncio.timeout(within / TRIES):
                    while True:
                        found = await answers.get()
                        if isinstance(found, OSError):
                            raise found
                        if (value := fits(*found)) is not None:
                            return value
            except TimeoutError:
                continue
        return None
    finally:
        transport.abort()


class _Answers(asyncio.DatagramProtocol):
    """Keeps what comes, up to a limit."""

    def __init__(self, answers: asyncio.Queue[tuple[bytes, str] | OSError]) -> None:
        self._answers = answers

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self._keep((data, str(addr[0])))

    def error_received(self, exc: Exception) -> None:
        if isinstance(exc, OSError):
            self._keep(exc)

    def _keep(self, item: tuple[bytes, str] | OSError) -> None:
        if not self._answers.full():
            self._answers.put_nowait(item)


def default_gateway(table: str) -> str | None:
    """The IPv4 gateway of the default route in the text of ``/proc/net/route``; None where there is none."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        try:
            target, gateway, flags = (int(fields[column], 16) for column in (1, 2, 3))
        except (IndexError, ValueError):
            continue
        if target == 0 and flags & 2 and 0 < gateway < 1 << 32:
            return str(ipaddress.IPv4Address(gateway.to_bytes(4, "little")))
    return None
