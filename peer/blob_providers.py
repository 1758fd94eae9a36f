"""Whom to ask for blobs, and whom to leave alone for how long: liars long, others longer with each failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from random import Random

    from protocols.ids import PeerId

LIAR_S = 600.0
"""Rest of a provider that sent something that no honest one sends."""
FIRST_REST_S = 1.0
LAST_REST_S = 60.0
LACKS_S = (5.0, 60.0)
"""First and longest time until a provider is asked again for what it lacked: it may be fetching it too."""
REMEMBERED = 1024
"""Providers of which anything is remembered: anybody can claim to be one."""


@dataclass(slots=True)
class _Record:
    until: float = 0.0
    failures: int = 0
    received: int = 0
    why: str = ""
    lacking: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Blob → (when to ask again, the pause then)."""


class Providers:
    """What is known of those who may have blobs. Times are seconds of any clock that only runs forward."""

    def __init__(self, draw: Random) -> None:
        """``draw`` spreads pauses and the order among equals."""
        self._draw = draw
        self._records: dict[PeerId, _Record] = {}

    def ranked(self, peers: Iterable[PeerId], now: float, *, first: Collection[PeerId] = ()) -> list[PeerId]:
        """Those who are not left alone now, best first: who has delivered, then ``first``, then who failed least."""
        free = [peer for peer in peers if self._of(peer).until <= now]
        self._draw.shuffle(free)

        def rank(peer: PeerId) -> tuple[bool, bool, int]:
            record = self._of(peer)
            return (not record.received, peer not in first, record.failures)

        return sorted(free, key=rank)

    def may_have(self, peer: PeerId, blob: str, now: float) -> bool:
        """Whether it has not said lately that it lacks this one."""
        return self._of(peer).lacking.get(blob, (0.0, 0.0))[0] <= now

    def delivered(self, peer: PeerId, size: int) -> None:
        """A blob of it was good."""
        record = self._keep(peer)
        record.received += size
        record.failures = 0

    def lacks(self, peer: PeerId, blob: str, now: float) -> None:
        """It said that it has not got this one."""
        lacking = self._keep(peer).lacking
        pause = min(2 * lacking[blob][1], LACKS_S[1]) if blob in lacking else LACKS_S[0]
        lacking[blob] = (now + self._spread(pause), pause)

    def failed(self, peer: PeerId, now: float, why: str) -> None:
        """It could not be reached, stalled, was too slow or too busy."""
        record = self._keep(peer)
        record.until = now + self._spread(min(FIRST_REST_S * 2.0 ** min(record.failures, 16), LAST_REST_S))
        record.failures += 1
        record.why = why

    def lied(self, peer: PeerId, now: float, why: str) -> None:
        """It broke the protocol, or its bytes had another hash."""
        record = self._keep(peer)
        record.until, record.received, record.why = now + self._spread(LIAR_S), 0, why
        record.failures += 1

    def trouble(self, now: float) -> str:
        """Why the next one that rests does so, and for how long still; empty when nobody does."""
        resting = [record for record in self._records.values() if record.until > now]
        if not resting:
            return ""
        soonest = min(resting, key=lambda record: record.until)
        return f"{soonest.why}; asked again in {soonest.until - now:.0f} s"

    def _of(self, peer: PeerId) -> _Record:
        return self._records.get(peer) or _Record()

    def _keep(self, peer: PeerId) -> _Record:
        record = self._records.pop(peer, None) or _Record()
        self._records[peer] = record  # the one noted last is forgotten last
        if len(self._records) > REMEMBERED:
            del self._records[next(iter(self._records))]
        return record

    def _spread(self, pause: float) -> float:
        return pause * (0.75 + self._draw.random() / 2)
