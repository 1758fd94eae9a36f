"""What a relay grants and what it refuses: numbers, who holds what, why somebody was refused. Pure: no clock.

Whoever may use a relay is a stranger to it, and peer ids are free: so everything is counted in total, by peer and by
internet address (an IPv6 subscriber is its /64).
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from protocols.errors import ConfigError

from .limits import Buckets, Rate

WINDOW = 256 << 10
"""Bytes that a peer may send on a new stream before anybody has read one: yamux lets us give no less."""
WINDOW_MOST = 2 << 20
"""The most that one direction of a circuit is given, while there are few."""
BUFFERS = 64 << 20
"""Bytes that all circuits together may have waiting here; whoever sends more then is cut off."""

_OPTIONAL = {"circuit_s", "circuit_bytes", "circuit_rate", "total_rate"}


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """A relay's limits; None means that there is none. The counts may be 0."""

    circuit_s: float | None = 7200.0
    """Seconds that one circuit lasts at most."""
    circuit_bytes: int | None = 8 << 30
    """Bytes that one circuit carries at most, in each direction."""
    circuit_rate: float | None = 25e6
    """Bytes a second of one circuit, both directions together."""
    total_rate: float | None = 50e6
    """Bytes a second of all circuits, shared alike among those that have something to send."""
    reservation_s: float = 3600.0
    """Seconds after which a reservation must have been renewed. A peer has one, however often it asks."""
    reservations: int = 256
    reservations_ip: int = 32
    circuits: int = 512
    circuits_peer: int = 64
    """Circuits that begin or end at one peer."""
    circuits_ip: int = 128
    """Circuits that begin or end at one address."""
    connections: int = 512
    connections_ip: int = 64
    requests_ip: float = 4.0
    """Requests a second from one address in the long run, to reserve and to open circuits each; twenty times as many
    at once."""

    @classmethod
    def parse(cls, value: Any) -> RelayLimits:
        """From a JSON object, where what is not named keeps its default; raises ConfigError."""
        known = {field.name for field in fields(cls)}
        if not isinstance(value, dict) or not value.keys() <= known:
            raise ConfigError("limits of a relay that are none", remedy=f"known ones: {', '.join(sorted(known))}")
        for name, each in value.items():
            if each is None and name in _OPTIONAL:
                continue
            low = 1 if name.endswith(("rate", "_s", "_bytes", "requests_ip")) else 0
            if isinstance(each, bool) or not isinstance(each, int | float) or not low <= each < float("inf"):
                raise ConfigError(
                    f"limit {name} of a relay is no number: {each!r}", remedy=f"give a number from {low} up"
                )
        return cls(**value)


class Refusal(StrEnum):
    """Why somebody was refused."""

    NOT_ALLOWED = "not allowed"
    RATE = "rate of requests"
    CONNECTIONS = "connections"
    CONNECTIONS_IP = "connections of an address"
    RESERVATIONS = "reservations"
    RESERVATIONS_IP = "reservations of an address"
    NO_RESERVATION = "no reservation"
    CIRCUITS = "circuits"
    CIRCUITS_PEER = "circuits of a peer"
    CIRCUITS_IP = "circuits of an address"
    RELAYED = "relayed"


@dataclass(frozen=True, slots=True)
class End:
    """One end of a circuit, or whoever reserves: a peer at an address, as ``address_key`` tells it."""

    peer: str
    ip: str
    relayed: bool = False
    """Whether it comes over another relay itself."""


class Admission:
    """Connections, reservations and circuits of one relay."""

    def __init__(self, limits: RelayLimits) -> None:
        self.limits = limits
        self.refused: Counter[Refusal] = Counter()
        self.allowed: frozenset[str] | None = None
        """Peers that may reserve; None: everybody."""
        rate = Rate(limits.requests_ip, 20 * limits.requests_ip)
        self._requests: Buckets[str] = Buckets(rate)
        self._to_reserve: Buckets[str] = Buckets(rate)  # whoever dials a lot keeps nobody in its house from reserving
        self._connections: Counter[str] = Counter()
        self._reservations: dict[str, tuple[str, float]] = {}  # peer: address, end
        self._circuits: dict[int, tuple[End, End]] = {}
        self._by_peer: Counter[str] = Counter()
        self._by_ip: Counter[str] = Counter()
        self.opened = 0
        """Circuits, since the start."""

    @property
    def connections(self) -> int:
        """How many are open."""
        return self._connections.total()

    @property
    def circuits(self) -> int:
        """How many are open."""
        return len(self._circuits)

    def reservations(self, now: float) -> int:
        """How many are valid."""
        self._expire(now)
        return len(self._reservations)

    def connect(self, ip: str) -> Refusal | None:
        """A connection from this address; None: admitted, to be given back with ``disconnect``."""
        if self.connections >= self.limits.connections:
            return self._refuse(Refusal.CONNECTIONS)
        if self._connections[ip] >= self.limits.connections_ip:
            return self._refuse(Refusal.CONNECTIONS_IP)
        self._connections[ip] += 1
        return None

    def disconnect(self, ip: str) -> None:
        """One that was admitted is closed."""
        _less(self._connections, ip)

    def reserve(self, who: End, now: float) -> Refusal | float:
        """When the new or renewed reservation ends, or why there is none."""
        if not self._to_reserve.take(who.ip, now):
            return self._refuse(Refusal.RATE)
        if who.relayed:
            return self._refuse(Refusal.RELAYED)
        if self.allowed is not None and who.peer not in self.allowed:
            return self._refuse(Refusal.NOT_ALLOWED)
        self._expire(now)
        others = [ip for peer, (ip, _) in self._reservations.items() if peer != who.peer]
        if len(others) >= self.limits.reservations:
            return self._refuse(Refusal.RESERVATIONS)
        if others.count(who.ip) >= self.limits.reservations_ip:
            return self._refuse(Refusal.RESERVATIONS_IP)
        end = now + self.limits.reservation_s
        self._reservations[who.peer] = (who.ip, end)
        return end

    def leave(self, peer: str) -> None:
        """Its last connection is closed: nobody can be led to it any more."""
        self._reservations.pop(peer, None)

    def allow(self, peers: frozenset[str] | None) -> None:
        """From now on only these may reserve, and others lose what they have; None: everybody."""
        self.allowed = peers
        if peers is not None:
            self._reservations = {peer: held for peer, held in self._reservations.items() if peer in peers}

    def open(self, source: End, target: End, now: float) -> Refusal | int:
        """The number of a new circuit, to be given back with ``close``, or why there is none."""
        if not self._requests.take(source.ip, now):
            return self._refuse(Refusal.RATE)
        if source.relayed or target.relayed:
            return self._refuse(Refusal.RELAYED)
        self._expire(now)
        if target.peer not in self._reservations or target.peer == source.peer:
            return self._refuse(Refusal.NO_RESERVATION)
        if len(self._circuits) >= self.limits.circuits:
            return self._refuse(Refusal.CIRCUITS)
        if any(self._by_peer[end.peer] >= self.limits.circuits_peer for end in (source, target)):
            return self._refuse(Refusal.CIRCUITS_PEER)
        if any(self._by_ip[end.ip] >= self.limits.circuits_ip for end in (source, target)):
            return self._refuse(Refusal.CIRCUITS_IP)
        self.opened += 1
        self._circuits[self.opened] = (source, target)
        self._by_peer.update({source.peer, target.peer})
        self._by_ip.update({source.ip, target.ip})
        return self.opened

    def close(self, circuit: int) -> None:
        """The circuit is over; nothing happens when it was before."""
        source, target = self._circuits.pop(circuit, (None, None))
        if source is not None and target is not None:
            for peer in {source.peer, target.peer}:
                _less(self._by_peer, peer)
            for ip in {source.ip, target.ip}:
                _less(self._by_ip, ip)

    def window(self) -> int:
        """Bytes that each direction of a circuit may have waiting here at present."""
        return max(WINDOW, min(WINDOW_MOST, BUFFERS // (8 * max(1, len(self._circuits)))))

    def _refuse(self, why: Refusal) -> Refusal:
        self.refused[why] += 1
        return why

    def _expire(self, now: float) -> None:
        for peer in [peer for peer, (_, end) in self._reservations.items() if end <= now]:
            del self._reservations[peer]


def _less(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]


def address_key(address: str) -> str:
    """What counts as one internet address: an IPv4 address, or the /64 of an IPv6 one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is None:
            return str(ipaddress.ip_network((ip, 64), strict=False))
        ip = ip.ipv4_mapped
    return str(ip)
