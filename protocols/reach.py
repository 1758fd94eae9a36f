"""Frames of ``/murmur/1/reach``: a peer asks another from where it is seen, and which addresses lead to it.

A request is ``ask-reach``, the reply to it ``reach``; one of each on a stream. Whoever answers dials no other IP
address than the one from which the asker's own connection comes: so nobody can be made to dial a third machine, nor
one inside a home, unless the asker is seen there itself.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from .canonical import pack, unpack
from .errors import RemoteError
from .shapes import list_of, record, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .canonical import Value

IP: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"

MAX_ASKED = 4
"""Addresses of one request."""
MAX_CHARS = 64
"""Of an address: the longest has 62."""

PROVEN = "proven"
"""The peer was there. Whoever dialled had been written to before: a NAT that lets in any port of an address that was
written to, as few do, would keep out others."""
CLOSED = "closed"
SILENT = "silent"
FOREIGN = "foreign"
STRANGER = "stranger"
UNABLE = "unable"
ELSEWHERE = "elsewhere"
UNSEEN = "unseen"
BUSY = "busy"

WORDS = MappingProxyType(
    {
        PROVEN: "the peer answers there",
        CLOSED: "nobody listens there",
        SILENT: "no answer",
        FOREIGN: "what answers there does not speak libp2p",
        STRANGER: "another peer listens there",
        UNABLE: "the network has no way there",
        ELSEWHERE: "not tried: it is not the IP address from which the peer is seen",
        UNSEEN: "not tried: the peer is not seen from an IP address of its own, as through a relay",
        BUSY: "not tried: too much was asked lately",
    }
)
"""What was found at an address, and what that means."""

_ASKED = re.compile(r"(?:/(ip[46])/([0-9a-f.:]{2,45}))?/tcp/([0-9]{1,5})", re.ASCII)
_SEEN = re.compile(
    r"/(ip[46])/([0-9a-f.:]{2,45})/(tcp|udp)/([0-9]{1,5})(/quic-v1)?(?:/p2p/[0-9A-Za-z]{1,64})?", re.ASCII
)


class Endpoint(NamedTuple):
    """A TCP port, and the IP address; None: the one from which the asker is seen."""

    ip: IP | None
    port: int


@dataclass(frozen=True, slots=True)
class AskReach:
    """Addresses, each ``/ip4|ip6/IP/tcp/PORT`` or ``/tcp/PORT`` (where the asker is seen), at most ``MAX_ASKED``.

    Without any it only asks from where the asker is seen.
    """

    addresses: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for what no peer answers."""
        if len(self.addresses) > MAX_ASKED or len(set(self.addresses)) != len(self.addresses):
            raise ValueError(f"more than {MAX_ASKED} addresses, or one twice")
        for each in self.addresses:
            endpoint(each)

    def encode(self) -> bytes:
        """The payload."""
        return pack({"addresses": list(self.addresses)})

    @classmethod
    def decode(cls, payload: bytes, *, sender: str) -> AskReach:
        """Parse a request of ``sender``; raises RemoteError."""
        addresses = cast("tuple[str, ...]", _fields(payload, _ASK, "ask-reach", sender)["addresses"])
        try:
            return cls(addresses)
        except ValueError as error:
            raise RemoteError(sender, f"malformed ask-reach: {error}") from error


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found at one address: one of ``WORDS``. A bare ``/tcp/PORT`` is completed where it was dialled."""

    address: str
    found: str


@dataclass(frozen=True, slots=True)
class ReachReply:
    """From where the asker's connection comes, as ``seen`` puts it, and what was found, in the order of the request."""

    observed: str
    outcomes: tuple[Outcome, ...]

    def encode(self) -> bytes:
        """The payload."""
        outcomes: list[Value] = [{"address": each.address, "found": each.found} for each in self.outcomes]
        return pack({"observed": self.observed, "outcomes": outcomes})

    @classmethod
    def decode(cls, payload: bytes, ask: AskReach, *, sender: str) -> ReachReply:
        """Parse the reply of ``sender`` to ``ask``; raises RemoteError, also where it does not fit the request."""
        fields = _fields(payload, _REPLY, "reach", sender)
        reply = cls(cast("str", fields["observed"]), cast("tuple[Outcome, ...]", fields["outcomes"]))
        expected = plan(ask, reply.observed)
        if len(expected) != len(reply.outcomes):
            raise RemoteError(sender, f"tells of {len(reply.outcomes)} addresses where {len(expected)} were asked for")
        for (address, verdict), outcome in zip(expected, reply.outcomes, strict=True):
            fits = outcome.found == verdict if verdict else outcome.found not in _NOT_DIALLED
            if outcome.address != address or not fits:
                raise RemoteError(sender, f"tells of {outcome.address}, {outcome.found}, where {address} was asked for")
        return reply


def endpoint(address: str) -> Endpoint:
    """Parse an address of a request; raises ValueError. Each has one spelling only."""
    match = _ASKED.fullmatch(address)
    if match is None:
        raise ValueError("is not /ip4|ip6/IP/tcp/PORT or /tcp/PORT")
    version, host, port = match.groups()
    return Endpoint(_ip(version, host) if host else None, _port(port))


def seen(multiaddr: str) -> str:
    """The end of a connection as ``/ip4|ip6/IP/tcp/PORT`` or ``/ip4|ip6/IP/udp/PORT/quic-v1``.

    "" where it tells nothing about the peer, as through a relay, or where nobody can be dialled.
    """
    match = _SEEN.fullmatch(multiaddr)
    if match is None:
        return ""
    version, host, transport, port, quic = match.groups()
    if (transport == "udp") != bool(quic):
        return ""
    try:
        ip: IP = ipaddress.ip_address(host)
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip, version = ip.ipv4_mapped, "ip4"
        _ip(version, str(ip))
        return f"{_at(ip)}/{transport}/{_port(port)}{quic or ''}"
    except ValueError:
        return ""


def seen_ip(observed: str) -> IP | None:
    """The IP address in what ``seen`` returned; None in ""."""
    return ipaddress.ip_address(observed.split("/")[2]) if observed else None


def plan(ask: AskReach, observed: str) -> list[tuple[str, str]]:
    """Each address of a request, completed where the asker is seen at ``observed``, and why it is not dialled or ""."""
    ip = seen_ip(observed)
    found = []
    for address in ask.addresses:
        asked = endpoint(address)
        if ip is None:
            found.append((address, UNSEEN))
        elif asked.ip is None:
            found.append((_at(ip) + address, ""))
        else:
            found.append((address, "" if asked.ip == ip else ELSEWHERE))
    return found


def _at(ip: IP) -> str:
    return f"/ip{ip.version}/{ip}"


def _ip(version: str, host: str) -> IP:
    """An address that one machine can have, in its only spelling; link-local ones need an interface's name."""
    ip = ipaddress.ip_address(host)
    if f"ip{ip.version}" != version or str(ip) != host:
        raise ValueError("is not an IP address in its usual form")
    mapped = isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None
    if mapped or ip.is_unspecified or ip.is_multicast or ip.is_link_local or host == "255.255.255.255":
        raise ValueError("is no IP address that can be dialled")
    return ip


def _port(digits: str) -> int:
    port = int(digits)
    if not 0 < port < 1 << 16 or str(port) != digits:
        raise ValueError("has no port from 1 to 65535")
    return port


def _fields(payload: bytes, checks: Mapping[str, object], kind: str, sender: str) -> dict[str, object]:
    try:
        return record(unpack(payload, depth=3, items=MAX_ASKED), checks)  # type: ignore[arg-type]
    except ValueError as error:
        raise RemoteError(sender, f"malformed {kind}: {error}") from error


def _address(value: object) -> str:
    address = text(MAX_CHARS)(value)
    endpoint(address)
    return address


def _observed(value: object) -> str:
    observed = text(MAX_CHARS)(value)
    if seen(observed) != observed:
        raise ValueError("is not the end of a connection")
    return observed


def _found(value: object) -> str:
    if type(value) is not str or value not in WORDS:
        raise ValueError("is no known word")
    return value


def _outcome(value: object) -> Outcome:
    fields = record(value, {"address": _address, "found": _found})
    return Outcome(cast("str", fields["address"]), cast("str", fields["found"]))


_NOT_DIALLED = frozenset({ELSEWHERE, UNSEEN})
_ASK = {"addresses": list_of(text(MAX_CHARS), MAX_ASKED)}
_REPLY = {"observed": _observed, "outcomes": list_of(_outcome, MAX_ASKED)}
