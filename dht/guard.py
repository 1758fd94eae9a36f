"""What each peer may still make us do: the one place that knows the rates, the offenders, and what was refused.

Door and directory ask it before they read anything. A refusal is cheap: a look into two dictionaries, no log line.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from . import limits as lim
from .limits import Bucket, Buckets, Gauge, Penalties

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from protocols.ids import PeerId

log = logging.getLogger(__name__)


class Guard:
    """Rates and penalties of the peers of one daemon."""

    def __init__(
        self,
        members: Callable[[], frozenset[PeerId]],
        *,
        hang_up: Callable[[PeerId], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``members`` tells who is no stranger; ``hang_up`` closes all connections of an offender that comes back."""
        self._members, self._hang_up, self._clock, self._sleep = members, hang_up, clock, sleep
        now = clock()
        self._handshakes = Bucket(lim.HANDSHAKES, now)
        self._ranges: Buckets[str] = Buckets(lim.HANDSHAKES_RANGE)
        self._each = _PerPeer(lim.HANDSHAKES_EACH, lim.HANDSHAKES_MEMBER)
        self._requests = Bucket(lim.REQUESTS, now)
        self._requests_each = _PerPeer(lim.REQUESTS_EACH, lim.REQUESTS_MEMBER)
        self._frames, self._bytes = Bucket(lim.FRAMES, now), Bucket(lim.BYTES, now)
        self._frames_each = _PerPeer(lim.FRAMES_EACH, lim.FRAMES_MEMBER)
        self._bytes_each = _PerPeer(lim.BYTES_EACH, lim.BYTES_MEMBER)
        self._penalties: Penalties[PeerId] = Penalties()
        self._patience: Buckets[PeerId] = Buckets(lim.PATIENCE)
        self._cuts: Buckets[PeerId] = Buckets(lim.HANG_UPS)
        self._lines: Buckets[PeerId] = Buckets(lim.Rate(1 / lim.LINE_S, 1))
        self._gauges = {gauge.name: gauge for gauge in _gauges()}

    def is_member(self, peer: PeerId) -> bool:
        """Whether ``peer`` counts now."""
        return peer in self._members()

    def greets(self, peer: PeerId, address: Callable[[], str] = str) -> bool:
        """Whether another handshake with ``peer`` may begin; ``address`` gives its multiaddr, "" when unknown."""
        now = self._clock()
        if self.is_member(peer):
            return self._each.take(peer, now, member=True) or self._refuse(peer, "handshakes_peer")
        if self.is_penalised(peer):
            return self._refuse(peer, "penalised")
        if not self._each.take(peer, now, member=False):
            return self._refuse(peer, "handshakes_peer")
        place = lim.range_of(address())
        if place is not None and not self._ranges.take(place, now):
            return self._refuse(peer, "handshakes_range")
        return self._handshakes.take(now) or self._refuse(peer, "handshakes")

    def answers(self, peer: PeerId, size: int, most: int) -> bool:
        """Whether a directory request of ``size`` bytes by ``peer``, at most ``most``, may be answered.

        It costs 1 and 1 more for each 1024 bytes: a record's signature must be checked.
        """
        now, member, cost = self._clock(), self.is_member(peer), 1 + size // 1024
        if not member and self.is_penalised(peer):
            return self._refuse(peer, "penalised")
        if size > most:
            return self._refuse(peer, "request_bytes")
        if not self._requests_each.take(peer, now, cost, member=member):
            return self._refuse(peer, "requests_peer")
        return member or self._requests.take(now, cost) or self._refuse(peer, "requests")

    async def pace(self, peer: PeerId, size: int) -> None:
        """Wait until a frame of ``size`` bytes by ``peer`` is due: nobody else's frames wait meanwhile."""
        now, member = self._clock(), self.is_member(peer)
        waits = [
            self._frames_each.owe(peer, now, 1.0, member=member),
            self._bytes_each.owe(peer, now, size, member=member),
        ]
        if not member and max(waits) == 0.0:  # who waits for its own rate uses up nothing of the others'
            waits += [self._frames.owe(now), self._bytes.owe(now, size)]
        if (wait := max(waits)) > 0.0:
            self._gauges["frames"].refused += 1
            await self._sleep(wait)

    async def pace_answers(self, peer: PeerId, size: int) -> None:
        """``pace`` on a stream that we opened: what we asked for may come fast, words and pings not."""
        if size <= lim.SMALL_FRAME:
            await self.pace(peer, size)

    def punish(self, peer: PeerId, why: str) -> None:
        """``peer`` broke the protocol. A stranger is refused for a while; a member may come back: it is one of few."""
        if self.is_member(peer):
            self.tell(peer, f"hung up on {peer}: {why}")
            return
        length = self._penalties.punish(peer, self._clock())
        self.tell(peer, f"hung up on {peer}, and refused for {length:.0f} s: {why}")

    def is_penalised(self, peer: PeerId) -> bool:
        """Whether ``peer`` is refused for what it did."""
        return self._penalties.left(peer, self._clock()) > 0.0

    def cut_offenders(self, peers: Iterable[PeerId]) -> None:
        """Hang up on those of ``peers`` that are refused now: a p2pd dials again by itself, without a stream."""
        for peer in set(peers):
            if self.is_penalised(peer) and not self.is_member(peer):
                self._cut(peer)

    def count(self, name: str, peer: PeerId) -> bool:
        """Count something of ``peer``'s that was refused under this limit elsewhere; returns False."""
        return self._refuse(peer, name)

    def tell(self, peer: PeerId, text: str) -> None:
        """One log line about a peer, at most every ``LINE_S``."""
        if self._lines.take(peer, self._clock()):
            log.warning("%s", text)

    def gauges(self) -> list[Gauge]:
        """All limits of this guard."""
        self._gauges["penalised"].in_use = self._penalties.current(self._clock())
        return list(self._gauges.values())

    def _refuse(self, peer: PeerId, name: str) -> bool:
        self._gauges[name].refused += 1
        now = self._clock()
        if self.is_member(peer):
            self.tell(peer, f"refused something of the member {peer}: {name}")
        elif self.is_penalised(peer):
            self._cut(peer)
        elif not self._patience.take(peer, now):
            self.punish(peer, "it goes on asking for far more than it gets")
        return False

    def _cut(self, peer: PeerId) -> None:
        if self._cuts.take(peer, self._clock()):
            self._hang_up(peer)


class _PerPeer:
    """One rate for each stranger and another for each member; strangers never push a member's out."""

    def __init__(self, strangers: lim.Rate, members: lim.Rate) -> None:
        self._strangers: Buckets[PeerId] = Buckets(strangers)
        self._members: Buckets[PeerId] = Buckets(members)

    def take(self, peer: PeerId, now: float, amount: float = 1.0, *, member: bool) -> bool:
        """Whether so many more are within the peer's rate."""
        return (self._members if member else self._strangers).take(peer, now, amount)

    def owe(self, peer: PeerId, now: float, amount: float, *, member: bool) -> float:
        """``Bucket.owe`` of this peer's."""
        return (self._members if member else self._strangers).of(peer, now).owe(now, amount)


def _gauges() -> list[Gauge]:
    rates = [
        ("handshakes", lim.HANDSHAKES, "streams of strangers, all of whom together opened too many a second"),
        ("handshakes_range", lim.HANDSHAKES_RANGE, "streams of strangers of one address range, which opened too many"),
        ("handshakes_peer", lim.HANDSHAKES_EACH, "streams of peers that opened too many a second"),
        ("requests", lim.REQUESTS, "directory requests of strangers, all of whom together asked too often"),
        ("requests_peer", lim.REQUESTS_EACH, "directory requests of peers that asked too often"),
        ("frames", lim.FRAMES_EACH, "frames had to wait because their sender sent too many"),
    ]
    return [
        *(Gauge(name, rate.per_s, what, in_use=None) for name, rate, what in rates),
        Gauge("request_bytes", lim.STORE_BYTES, "directory requests that were too long", in_use=None),
        Gauge("hello", lim.HELLO_BYTES, "streams on which no proper hello came in time", in_use=None),
        Gauge("penalised", lim.PENALISED, "streams and requests of peers that had broken the protocol"),
    ]
