"""Statements that came too early: a bounded waiting room, one corner per member and one for all strangers."""

from __future__ import annotations

from collections import deque

from ..ids import Hash, PeerId
from ..statements import Statement

PER_CORNER = 32
BYTES_PER_CORNER = 1 << 20
ROUNDS_KEPT = 2
"""A statement that has not fitted after this many seals is dropped."""

STRANGERS = PeerId("")
Parked = tuple[Statement, PeerId | None, int]


class Pool:
    """Keeps at most 32 statements and 1 MiB in each corner; the oldest go first.

    Keys are free, so peers that the table does not know share one corner.
    """

    def __init__(self) -> None:
        self._parked: dict[PeerId, deque[Parked]] = {}
        self._hashes: set[Hash] = set()
        self._age = 0

    def __len__(self) -> int:
        return len(self._hashes)

    def holds(self, statement: Statement) -> bool:
        """Whether this statement waits here already."""
        return statement.hash in self._hashes

    def park(self, corner_of: PeerId, statement: Statement, source: PeerId | None, *, born: int | None = None) -> None:
        """Keep a statement for later in a member's corner, or that of ``STRANGERS``.

        ``born`` is the age at which it was first parked.
        """
        corner = self._parked.setdefault(corner_of, deque())
        corner.append((statement, source, self._age if born is None else born))
        self._hashes.add(statement.hash)
        while len(corner) > PER_CORNER or sum(len(each.raw) for each, _, _ in corner) > BYTES_PER_CORNER:
            self._hashes.discard(corner.popleft()[0].hash)

    def drain(self) -> list[Parked]:
        """Take everything out, in the order of arrival within each signer."""
        out = [parked for corner in self._parked.values() for parked in corner]
        self._parked.clear()
        self._hashes.clear()
        return out

    def grow_older(self) -> None:
        """A seal was adopted: drop what has waited for too many."""
        self._age += 1
        for corner_of, corner in self._parked.items():
            young = deque(parked for parked in corner if self._age - parked[2] <= ROUNDS_KEPT)
            self._parked[corner_of] = young
        self._hashes = {parked[0].hash for corner in self._parked.values() for parked in corner}
