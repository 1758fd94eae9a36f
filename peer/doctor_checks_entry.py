"""The doctor on the way into a run: names, each address to join by, peers met before, and whether UDP gets through."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dht.knock import endpoint
from dht.probe import greets, speaks_quic
from dht.tasks import end

from .doctor import beside
from .doctor_report import Outcome, failed, passed, skipped, warned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

KNOCK_S = 3.0
"""For a connection, and as long again for the first word."""
QUIC_S = 2.0
NAME_S = 6.0
IPS = 4
"""Of one name, that are tried."""
SHOWN = 3
"""Of many that do not answer."""
ASKED_FOR_UDP = 4
"""Addresses that are asked for an answer over UDP."""
LOST = (
    "see first that this machine reaches the internet; if it does, that one is off or a firewall drops it: ask whoever"
    " runs it, or for a new invitation"
)
CLOSED = "murmur does not run there just now, or on another port: ask whoever runs it, or for a new invitation"
_FAMILIES: dict[int, str] = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}
_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN)
_HOSTS = {"ip4": socket.AF_INET, "ip6": socket.AF_INET6, "dns": 0, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}


def host_of(address: str) -> tuple[str, int] | None:
    """Host and family (0 = any) of a multiaddr; None for one that begins otherwise."""
    parts = address.split("/")
    return (parts[2], int(_HOSTS[parts[1]])) if len(parts) > 2 and parts[1] in _HOSTS else None


def quic_port(address: str) -> int | None:
    """The port of an address that is reached by QUIC."""
    parts = address.split("/")
    if len(parts) > 5 and parts[3] == "udp" and parts[4].isdecimal() and parts[5] in ("quic-v1", "quic"):
        return int(parts[4])
    return None


def names_in(addresses: Sequence[str]) -> list[str]:
    """Names, each once, that have to be resolved."""
    found = [each.split("/")[2] for each in addresses if each.startswith(("/dns/", "/dns4/", "/dns6/"))]
    return list(dict.fromkeys(found))


class Names:
    """Looks up each name once, for all who ask; ``close`` ends what is under way."""

    def __init__(self, within: float = NAME_S, look_up: Callable[..., Any] = socket.getaddrinfo) -> None:
        self._within, self._look_up = within, look_up
        self._asked: dict[str, asyncio.Task[list[tuple[int, str]]]] = {}

    async def ips(self, host: str, family: int = 0) -> list[str]:
        """IP addresses of a host, which may be one itself; raises socket.gaierror, UnicodeError."""
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            pass
        if host not in self._asked:
            self._asked[host] = asyncio.create_task(self._find(host), name=f"look up {host}")
        found = [ip for kind, ip in await asyncio.shield(self._asked[host]) if family in (0, kind)]
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, f"it has no {_FAMILIES.get(family, 'IP')} address")
        return list(dict.fromkeys(found))[:IPS]

    async def close(self) -> None:
        """Forget what was not answered yet."""
        await end(self._asked.values())

    async def _find(self, host: str) -> list[tuple[int, str]]:
        try:
            async with asyncio.timeout(self._within):
                found = await beside(lambda: self._look_up(host, None, type=socket.SOCK_STREAM))
        except TimeoutError as error:
            raise socket.gaierror(socket.EAI_AGAIN, f"no name server answered within {self._within:g} s") from error
        return [(int(each[0]), str(each[4][0])) for each in found]


async def name(host: str, names: Names) -> Outcome:
    """Whether a name has an address."""
    try:
        found = await names.ips(host)
    except (socket.gaierror, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        if getattr(error, "errno", 0) == socket.EAI_AGAIN:
            return failed(f"{host}: {why}", "look at the network, and at the name server in /etc/resolv.conf")
        return failed(f"{host}: {why}", "look at its spelling, or ask for a new invitation")
    return passed(f"{host} is {', '.join(found[:SHOWN])}")


@dataclass(frozen=True, slots=True)
class Door:
    """An address to enter by; ``seed``: what a daemon says of it, ``place``: who set it, empty where nobody did."""

    address: str
    seed: dict[str, Any] | None = None
    place: str = ""


async def entry(door: Door, names: Names, within: float = KNOCK_S) -> Outcome:
    """Whether somebody answers at an address."""
    address, seed, place = door.address, door.seed, door.place
    shown = short(address)
    if seed is not None and seed["state"] == "ok":
        return passed(f"{shown}: the daemon is in touch with it")
    outcome = await _knocked(address, names, within)
    again = f"; take it out of {place} if it is gone" if place and not place.startswith("--") else ""
    error = (seed["error"] if seed is not None else None) or outcome.evidence
    says = f" (the daemon: {error})" if error not in outcome.evidence else ""
    remedy = outcome.remedy and f"{outcome.remedy}{again}"
    return Outcome(outcome.result, f"{shown}: {outcome.evidence}{says}", remedy)


async def _knocked(address: str, names: Names, within: float) -> Outcome:
    where, tcp, quic = host_of(address), endpoint(address), quic_port(address)
    if where is None or (tcp is None and quic is None):
        return skipped("only a running daemon can try an address of this kind")
    try:
        found = await names.ips(*where)
    except (socket.gaierror, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return failed(f"its name has no address: {why}", "see what is said of that name")
    looks = (_tcp(each, tcp[1], within) if tcp else _quic(each, quic or 0, within) for each in found)
    outcomes = await asyncio.gather(*looks)
    return next((each for each in outcomes if each.result == "pass"), outcomes[0])


async def _tcp(host: str, port: int, within: float) -> Outcome:
    try:
        speaks = await greets(host, port, within=within)
    except TimeoutError:
        return failed(f"no answer within {within:g} s", LOST)
    except ConnectionRefusedError:
        return failed("connection refused: nobody listens there", CLOSED)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return failed(f"cannot be reached: {why}", "look at what is said of this machine's network")
    if not speaks:
        return failed("somebody listens there, and it is not murmur", CLOSED)
    return passed("answers")


async def _quic(host: str, port: int, within: float) -> Outcome:
    try:
        if await speaks_quic(host, port, within=within):
            return passed("answers over UDP")
    except ConnectionRefusedError:
        return failed("nobody listens there on UDP", CLOSED)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return failed(f"cannot be reached over UDP: {why}", "look at what is said of this machine's network")
    return failed(f"no answer over UDP within {within:g} s", f"UDP may be blocked on the way, or {LOST}")


async def met(doors: Sequence[Door], names: Names, within: float = KNOCK_S) -> Outcome:
    """Whether anybody whom this home has met before still answers: one of them is enough to find the others."""
    if not doors:
        return skipped("this home has met nobody of this run yet")
    found = await asyncio.gather(*(entry(each, names, within) for each in doors))
    alive = sum(each.result == "pass" for each in found)
    silent = [each.evidence for each in found if each.result != "pass"]
    many = f"{alive} of {len(doors)} address{'es' * (len(doors) > 1)} of peers met before answer{'s' * (alive == 1)}"
    text = "; ".join([many, *silent[:SHOWN]])
    if alive:
        return passed(text)
    return warned(text, "ask for a new invitation (`murmur invite` there), and join by it")


def udp_socket() -> socket.socket:
    """A socket as QUIC needs one; raises OSError."""
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


async def udp(
    addresses: Sequence[str],
    names: Names,
    *,
    own: frozenset[str] = frozenset(),
    socket_of: Callable[[], socket.socket] = udp_socket,
    within: float = QUIC_S,
) -> Outcome:
    """Whether UDP gets out and back: shown by an address that answers QUIC, and is none of this machine's ``own``.

    ``socket_of`` opens a socket.
    """
    try:
        with socket_of() as probe:
            probe.bind(("127.0.0.1", 0))
            probe.sendto(b"", probe.getsockname())
    except OSError as error:
        if error.errno in _NO_WAY:
            return skipped("not proven: there is no network")
        return failed(
            f"no UDP socket can be used: {error.strerror}", "look at the limits of this user and at the firewall here"
        )
    asked = list(dict.fromkeys(where for each in addresses if (where := _udp_endpoint(each)) is not None))
    answers = await asyncio.gather(*(_answering(where, names, own, within) for where in asked[:ASKED_FOR_UDP]))
    found = sorted(
        (each for each in answers if each is not None), key=lambda each: ipaddress.ip_address(each).is_private
    )
    if found:
        near = ", which proves it for this network only" if ipaddress.ip_address(found[0]).is_private else ""
        return passed(f"a peer at {found[0]} answered over it (QUIC){near}")
    why = "nobody who was asked answered over it" if answers else "there is nobody to ask"
    return skipped(f"not proven: {why}; it takes a peer that listens for QUIC")


def _udp_endpoint(address: str) -> tuple[str, int, int] | None:
    """Host, port, family where QUIC may answer: murmur takes the same port for TCP and UDP."""
    where, tcp = host_of(address), endpoint(address)
    port = quic_port(address) or (tcp[1] if tcp else None)
    return (where[0], port, where[1]) if where is not None and port is not None else None


async def _answering(where: tuple[str, int, int], names: Names, own: frozenset[str], within: float) -> str | None:
    """The address of this host from which QUIC was answered; this machine's own prove nothing."""
    host, port, family = where

    async def one(address: str) -> str | None:
        try:
            return address if await speaks_quic(address, port, within=within) else None
        except (OSError, OverflowError):
            return None

    try:
        found = [each for each in await names.ips(host, family) if each not in own]
    except (OSError, UnicodeError):
        return None
    return next((each for each in await asyncio.gather(*map(one, found)) if each is not None), None)


def short(address: str) -> str:
    """An address without most of its peer id."""
    head, separator, peer = address.rpartition("/p2p/")
    return f"{head} (…{peer[-6:]})" if separator else address
