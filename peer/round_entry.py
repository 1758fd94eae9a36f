"""A sealed round as one object of the round log. Pure: the time is an argument."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from protocols.table import STRIKE

if TYPE_CHECKING:
    from protocols.ids import PeerId
    from protocols.messages import Seal
    from protocols.round.chain import Head
    from protocols.round.effects import Sealed


def round_entry(effect: Sealed, unix: float, moved: tuple[int, int], train_loss: float | None) -> dict[str, Any]:
    """What is logged of a round adopted at ``unix`` after ``moved`` bytes were sent and received for it."""
    record, body = effect.record, _seal_of(effect.head)
    return {
        "schema": 1,
        "round": record.round,
        "unix": unix,
        "view": record.view,
        "seal": record.seal.hex(),
        "state_hash": record.state.hex(),
        "coordinator": record.coordinator,
        "contributors": list(record.contributors),
        "weights": record.weights,
        "tokens": record.tokens,
        "reducers": list(record.owners),
        "votes": len(effect.head.votes),
        "final": False,
        "verdict": record.verdict,
        "void": record.void,
        "reason": record.reason or None,
        "synced": record.synced,
        "out": _put_out(effect.head),
        "lost": list(body.lost) if body else [],
        "payload": list(record.payload),
        "bytes_sent": moved[0],
        "bytes_received": moved[1],
        "seconds": record.seconds,
        "train_loss": train_loss,
    }


def _seal_of(head: Head) -> Seal | None:
    return cast("Seal", head.proposal.body) if head.proposal else None


def _put_out(head: Head) -> list[PeerId]:
    """Reducers that this very round was done without: their rest begins with it."""
    members = head.table.members.values()
    return [each.peer for each in members if head.round and each.rested == head.round + STRIKE]
