"""How circuits share a relay's bandwidth: alike, whatever the size of what they send. Pure: time is an argument.

Start-time fair queueing (Goyal, Vin, Cheng 1996): a request's tag is where its circuit's earlier ones end in virtual
time, which is the tag of what was granted last; the lowest tag goes first. A circuit that is quiet saves nothing up,
one that sent much waits until the others have had as much. Above that a token bucket for each circuit and one for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from .limits import Bucket, Rate

BURST_S = 0.05
"""What a bucket holds: so many seconds of its rate."""


@dataclass(slots=True)
class _Flow:
    bucket: Bucket | None
    end: float = 0.0  # in virtual time: bytes that one circuit would have sent
    free: float = 0.0  # its bucket owes nothing from then on


class Sharing:
    """Who may send when. A ticket is granted once; a flow that has left gets nothing any more."""

    def __init__(self, total: float | None, each: float | None) -> None:
        """Bytes a second of all flows together and of one; None: as fast as it goes."""
        self._total = _bucket(total)
        self._each = each
        self._flows: dict[int, _Flow] = {}
        self._waiting: list[tuple[float, int, int, int]] = []  # tag, ticket, flow, bytes
        self._resting: list[tuple[float, float, int, int, int]] = []  # until when, and the same
        self._virtual = 0.0
        self._free = 0.0
        self._last = 0

    def enter(self, flow: int) -> None:
        """A new circuit."""
        self._flows[flow] = _Flow(_bucket(self._each))

    def leave(self, flow: int) -> None:
        """It is over; what it asked for is forgotten."""
        self._flows.pop(flow, None)

    def ask(self, flow: int, size: int) -> int:
        """A ticket for ``size`` bytes of a flow that has entered; ``granted`` tells when its turn has come."""
        mine = self._flows[flow]
        self._last += 1
        tag = max(self._virtual, mine.end)
        mine.end = tag + size
        heappush(self._waiting, (tag, self._last, flow, size))
        return self._last

    def granted(self, now: float) -> list[int]:
        """The tickets whose turn has come, in this order."""
        while self._resting and self._resting[0][0] <= now:
            heappush(self._waiting, heappop(self._resting)[1:])
        tickets = []
        while self._waiting and self._free <= now:
            tag, ticket, name, size = heappop(self._waiting)
            flow = self._flows.get(name)
            if flow is None:
                continue
            if flow.free > now:
                heappush(self._resting, (flow.free, tag, ticket, name, size))
                continue
            self._virtual = max(self._virtual, tag)
            if flow.bucket is not None:
                flow.free = now + flow.bucket.owe(now, size)
            if self._total is not None:
                self._free = now + self._total.owe(now, size)
            tickets.append(ticket)
        return tickets

    def wait(self, now: float) -> float | None:
        """Seconds until ``granted`` can tell something new; None: not before somebody asks."""
        moments = [self._free] if self._waiting else []
        if self._resting:
            moments.append(max(self._free, self._resting[0][0]))
        return max(0.0, min(moments) - now) if moments else None


def _bucket(rate: float | None) -> Bucket | None:
    return None if rate is None else Bucket(Rate(rate, rate * BURST_S), 0.0)
