"""The statements that a peer holds above its head, and how neighbours compare them (protocol.md 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ids import HASH_BYTES, Hash
from ..payloads import MAX_PRINTS, PRINT_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..statements import Statement


class Known:
    """Statements in the order in which they came."""

    def __init__(self, head: Hash, statements: Iterable[Statement]) -> None:
        self._by: dict[Hash, Statement] = {}
        self._mark = int.from_bytes(head, "big")
        for each in statements:
            self.add(each)

    def __len__(self) -> int:
        return len(self._by)

    def __contains__(self, name: Hash) -> bool:
        return name in self._by

    def add(self, statement: Statement) -> None:
        """Hold one more."""
        if statement.hash not in self._by:
            self._by[statement.hash] = statement
            self._mark ^= int.from_bytes(statement.hash, "big")

    def drop(self, name: Hash) -> None:
        """Hold it no longer."""
        if self._by.pop(name, None) is not None:
            self._mark ^= int.from_bytes(name, "big")

    @property
    def all(self) -> tuple[Statement, ...]:
        """Every one."""
        return tuple(self._by.values())

    @property
    def mark(self) -> bytes:
        """One value for head and set of statements, whatever the order in which they came."""
        return self._mark.to_bytes(HASH_BYTES, "big")

    @property
    def prints(self) -> bytes:
        """The first bytes of their hashes, one after another."""
        return b"".join([name[:PRINT_BYTES] for name in self._by][:MAX_PRINTS])


def lacking(held: Iterable[Statement], prints: Collection[bytes]) -> list[Statement]:
    """Which of these whoever showed ``prints`` does not hold."""
    return [each for each in held if each.hash[:PRINT_BYTES] not in prints]
