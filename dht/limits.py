"""Numbers for everything a stranger can make us do, and the counters that hold them. Pure: the clock is an argument.

A *stranger* is a peer that is no member of the run. Peer ids are free, so whatever one stranger may use up is far less
than what all of them may together; where the address is known, peers of one range (IPv4 /24, IPv6 /64) share a
number in between. Members have numbers of their own, which strangers never touch.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

K = TypeVar("K", bound="Hashable")


@dataclass(frozen=True, slots=True)
class Rate:
    """So many a second in the long run, and ``burst`` at once."""

    per_s: float
    burst: float


CONNECTIONS = 512
"""Connections that p2pd keeps before it closes some, down to ``CONNECTIONS_KEPT``; members' are the last to go."""
CONNECTIONS_KEPT = 256
CONNECTION_GRACE_S = 20
"""p2pd closes no connection younger than this: time for a hello. Its own default, 120 s, would let strangers hold
any number of connections for two minutes."""

STREAMS = 128
"""Streams of all strangers: each costs a read buffer of 64 KiB and at most one payload."""
STREAMS_EACH = 3
"""Of one peer and protocol: one in use, one that replaces it, and one whose last frame is still being handled."""

HELLO_BYTES = 1024
"""Before a peer has told protocol and run; libp2p has authenticated it by then."""
HELLO_S = 10.0

HANDSHAKES = Rate(32, 128)
"""Of all strangers: one costs about 0.5 ms of p2pd and daemon together."""
HANDSHAKES_RANGE = Rate(16, 64)
"""Of the strangers of one address range."""
HANDSHAKES_EACH = Rate(4, 32)
"""Of one stranger: a newcomer opens a stream for the rounds and some for state and data."""
HANDSHAKES_MEMBER = Rate(16, 64)

FRAMES = Rate(400, 2000)
"""Of all strangers: a statement's signature takes about 0.1 ms to check. Whoever sends more is read more slowly."""
FRAMES_EACH = Rate(50, 500)
FRAMES_MEMBER = Rate(2000, 20_000)
BYTES = Rate(32 << 20, 128 << 20)
BYTES_EACH = Rate(8 << 20, 32 << 20)
BYTES_MEMBER = Rate(1 << 30, 4 << 30)

REQUESTS = Rate(50, 300)
"""Directory requests of all strangers, longer ones counted once more for each 1024 bytes: each record in one costs a
signature check, and an answer may be as long as ``RECORD_BYTES``."""
REQUESTS_EACH = Rate(4, 40)
REQUESTS_MEMBER = Rate(200, 4000)
STORE_BYTES = 64 << 10
"""Of a request to store: a record of 16 kB and what surrounds it, or some hundred usual ones."""
FIND_BYTES = 512
"""Of any other request: some twenty keys, each of which is answered with all the records under it."""

RECORDS = 4096
"""Peers whose records a node holds, one each."""
RECORD_BYTES = 3 << 20
"""Of all these records: they travel in one answer, and libp2p's daemon takes none above 4 MiB."""
RUNS = 64
"""Runs of which an entry node that serves any keeps records: ``RECORD_BYTES`` for each."""
SIGNATURES = 256
"""Records of strangers in one answer, drawn by lot, whose signatures are checked: each takes about 0.15 ms of the event
loop. The others are dropped, and have their chance in the next look-up; members' and those known already are free."""
PUNCHES = Rate(0.1, 3)
"""Times that one peer may have us drop its connection and dial it."""
PUNCHES_ALL = Rate(1, 16)
"""Of all peers: each sends a few packets of 1200 bytes to wherever the peer says that it is."""
SMALL_FRAME = 4096
"""Bytes of the largest frame that is paced even on streams that we opened ourselves."""

REACH = Rate(8, 64)
"""Addresses dialled back for all askers: each costs 3 ms of two processes, and a socket for five seconds at most."""
REACH_PLACE = Rate(0.5, 16)
"""Of the askers seen at one IPv4 address, or in one IPv6 /64: it is there that what they ask for arrives."""
REACH_EACH = Rate(0.1, 12)
"""Of one asker: whoever's network changed asks anew, for as many as a request holds."""
REACH_AT_ONCE = 16
"""Requests that are answered at the same time, one for each peer."""

PENALTY_S = 30.0
"""For a stranger that broke the protocol, doubled each time."""
PENALTY_MOST_S = 3600.0
FORGIVEN_S = 3600.0
"""After so long without another offence, one of them is forgotten."""
PENALISED = 1024
PATIENCE = Rate(1, 100)
"""Refusals that a stranger may run into; more of them are an offence in themselves."""
HANG_UPS = Rate(1, 1)
"""Of one stranger's connections: a new one costs it as much as us, about 3.5 ms."""
TRACKED = 4096
"""Peers, or address ranges, whose use of a rate is remembered."""
LINE_S = 60.0
"""Between two log lines about one peer's refusals."""


class Bucket:
    """What is left of a rate for one user of it."""

    __slots__ = ("_left", "_rate", "_since")

    def __init__(self, rate: Rate, now: float) -> None:
        self._rate, self._left, self._since = rate, float(rate.burst), now

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Use ``amount`` of it; False, and nothing is used, when less is left."""
        self._refill(now)
        if self._left < amount:
            return False
        self._left -= amount
        return True

    def owe(self, now: float, amount: float = 1.0) -> float:
        """Use ``amount`` in any case; the seconds until that is paid for."""
        self._refill(now)
        self._left -= amount
        return max(0.0, -self._left / self._rate.per_s)

    def is_full(self, now: float) -> bool:
        """Whether nothing of it was used lately."""
        self._refill(now)
        return self._left >= self._rate.burst

    def _refill(self, now: float) -> None:
        if now > self._since:
            self._left = min(self._rate.burst, self._left + (now - self._since) * self._rate.per_s)
            self._since = now


class Buckets(Generic[K]):
    """A bucket for each user, ``TRACKED`` of them at most: whoever used its own longest ago gives way."""

    def __init__(self, rate: Rate, most: int = TRACKED) -> None:
        self._rate, self._most = rate, most
        self._buckets: dict[K, Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, user: K, now: float) -> Bucket:
        """The bucket of ``user``."""
        bucket = self._buckets.pop(user, None)
        if bucket is None:
            bucket = Bucket(self._rate, now)
            while len(self._buckets) >= self._most:
                del self._buckets[next(iter(self._buckets))]
        self._buckets[user] = bucket
        return bucket

    def take(self, user: K, now: float, amount: float = 1.0) -> bool:
        """``Bucket.take`` of this user's."""
        return self.of(user, now).take(now, amount)


class Penalties(Generic[K]):
    """Who is refused, and until when; a bounded number of offenders is remembered."""

    def __init__(self, most: int = PENALISED) -> None:
        self._most = most
        self._offences: dict[K, tuple[int, float, float]] = {}  # how many, refused until, last offence

    def __len__(self) -> int:
        return len(self._offences)

    def punish(self, user: K, now: float) -> float:
        """Another offence; the seconds for which ``user`` is refused from now on."""
        count, _, last = self._offences.pop(user, (0, 0.0, now))
        count = max(0, count - int((now - last) / FORGIVEN_S)) + 1
        while len(self._offences) >= self._most:
            del self._offences[min(self._offences, key=lambda each: self._offences[each][1])]
        length = float(min(PENALTY_MOST_S, PENALTY_S * 2 ** min(count - 1, 16)))
        self._offences[user] = (count, now + length, now)
        return length

    def left(self, user: K, now: float) -> float:
        """Seconds for which ``user`` is still refused; 0 when it is not."""
        found = self._offences.get(user)
        if found is None:
            return 0.0
        count, until, last = found
        if now - last > FORGIVEN_S * count:
            del self._offences[user]
        return max(0.0, until - now)

    def current(self, now: float) -> int:
        """How many are refused now."""
        return sum(until > now for _, until, _ in self._offences.values())


@dataclass(slots=True)
class Gauge:
    """One limit as ``murmur status`` shows it."""

    name: str
    limit: float
    what: str
    """What was refused, for a person: ``{refused} ...``."""
    in_use: float | None = 0
    """None: it is a rate, or not known."""
    refused: int = 0

    def enter(self) -> bool:
        """Take one; False, and counted as refused, when ``limit`` are in use. To be given back with ``leave``."""
        if self.in_use is not None and self.in_use >= self.limit:
            self.refused += 1
            return False
        self.in_use = (self.in_use or 0) + 1
        return True

    def leave(self) -> None:
        """Give one back."""
        self.in_use = max(0, (self.in_use or 0) - 1)


def range_of(multiaddr: str) -> str | None:
    """The address range that a remote peer's multiaddr lies in: IPv4 /24 or IPv6 /64.

    None where it tells nothing about the peer: through a relay (the address is the relay's) and on this machine.
    """
    parts = multiaddr.split("/")
    if len(parts) < 3 or parts[1] not in {"ip4", "ip6"} or "p2p-circuit" in parts:
        return None
    try:
        ip = ipaddress.ip_address(parts[2])
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip.is_loopback:
        return None
    return str(ipaddress.ip_network((ip, 24 if ip.version == 4 else 64), strict=False))
