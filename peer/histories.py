"""Several histories of one run, none of which a rule prefers: how a person sees them (protocol.md 5.12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocols.round import effects

REMEDY = (
    "ask somebody you trust which one it is, then `murmur run follow HASH`; `murmur status --json` shows the hashes"
)


@dataclass(frozen=True, slots=True)
class History:
    """One of them: its newest seal known here, and the seal above which it parts from the others.

    Hashes in hex; ``weight`` of the fork's voters (0 … 1) voted for ``head``; ``own``: this peer is on it.
    """

    head: str
    round: int
    view: int
    weight: float
    fork: str
    since: int
    own: bool


@dataclass(frozen=True, slots=True)
class Histories:
    """Event: those among which a person has to choose; none: that is over."""

    branches: tuple[History, ...]

    @classmethod
    def of(cls, branches: Iterable[effects.History]) -> Histories:
        """The same as the round machine tells it."""
        return cls(
            tuple(
                History(each.head.hex(), each.round, each.view, each.weight, each.fork.hex(), each.since, each.own)
                for each in branches
            )
        )

    @property
    def text(self) -> str:
        """One line about them."""
        parts = (
            f"{each.head[:12]} (round {each.round}{', its own' if each.own else ''}, parted after round {each.since})"
            for each in self.branches
        )
        return f"{len(self.branches)} histories of this run, and no rule says which is right: {', '.join(parts)}"
