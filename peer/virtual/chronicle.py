"""The rounds of a virtual swarm for its report: what every seal's first adopter saw, and who else adopted it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..swarm.report import PHASES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocols.ids import Hash, PeerId
    from protocols.round.effects import Record, Sealed

    from .invariants import Link


@dataclass
class Entry:
    """One seal."""

    record: Record
    votes: int
    final: bool = False
    verdicts: dict[PeerId, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    payload: list[int] = field(default_factory=lambda: [0, 0])


class Chronicle:
    """Every seal that somebody adopted."""

    def __init__(self) -> None:
        self._entries: dict[Hash, Entry] = {}

    def sealed(self, peer: PeerId, effect: Sealed) -> None:
        """A peer adopted a seal."""
        record = effect.record
        entry = self._entries.get(effect.head.seal)
        if entry is None or (entry.record.synced and not record.synced):
            held = entry
            entry = self._entries[effect.head.seal] = Entry(record, 0)
            if held is not None:
                entry.verdicts, entry.final = held.verdicts, held.final
        entry.votes = max(entry.votes, len(effect.head.votes))
        entry.verdicts[peer] = record.verdict
        for phase, seconds in record.seconds.items():
            entry.seconds[phase] = max(entry.seconds.get(phase, 0.0), seconds)
        for place in (0, 1):
            entry.payload[place] += record.payload[place]

    def final(self, seal: Hash) -> None:
        """A peer saw that a seal is final."""
        if seal in self._entries:
            self._entries[seal].final = True

    def rounds(self, chain: Iterable[Link]) -> list[dict[str, Any]]:
        """The report's ``rounds`` (contracts.md) of one chain, oldest first, round 0 included."""
        zero = {"round": 0, "cell": "model", "held_out_loss": None}
        return [zero, *(_round(link, self._entries[link.seal]) for link in chain if link.seal in self._entries)]


def _round(link: Link, entry: Entry) -> dict[str, Any]:
    record = entry.record
    seconds = {**dict.fromkeys(PHASES, 0.0), **entry.seconds}
    return {
        "round": link.round,
        "cell": "model",
        "void": link.void,
        "reason": record.reason or None,
        "final": entry.final,
        "held_out_loss": None,
        "coordinator": record.coordinator,
        "contributors": list(record.contributors),
        "weights": dict(record.weights),
        "tokens": dict(record.tokens),
        "reducers": {str(part): owner for part, owner in enumerate(record.owners)},
        "votes": entry.votes,
        "view": link.view,
        "certified": True,
        "seal": link.seal.hex(),
        "state_hashes": {peer: link.state.hex() for peer in entry.verdicts},
        "bytes_sent": dict.fromkeys(entry.verdicts),
        "bytes_received": dict.fromkeys(entry.verdicts),
        "payload_bytes": entry.payload[0],
        "payload_values": entry.payload[1],
        "seconds": {**seconds, "total": sum(seconds.values())},
        "verdicts": dict(entry.verdicts),
    }
