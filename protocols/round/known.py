"""The statements that a peer holds above a head, and how neighbours compare them (protocol.md 5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..ids import HASH_BYTES, Hash
from ..payloads import MAX_PRINTS, PRINT_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..ids import PeerId
    from ..statements import Statement


class Known:
    """Statements in the order in which they came, by the first bytes of their hashes."""

    def __init__(self, head: Hash, statements: Iterable[Statement]) -> None:
        self._by: dict[bytes, Statement] = {}
        self._mark = int.from_bytes(head, "big")
        self._prints: bytes | None = None
        for each in statements:
            self.add(each)

    def __len__(self) -> int:
        return len(self._by)

    def __contains__(self, name: Hash) -> bool:
        held = self._by.get(name[:PRINT_BYTES])
        return held is not None and held.hash == name

    def add(self, statement: Statement) -> bool:
        """Hold one more; False where it is held, or another of the same print: it must not be passed on for ever."""
        name = statement.hash[:PRINT_BYTES]
        if name in self._by:
            return False
        self._by[name] = statement
        self._toggle(statement.hash)
        return True

    def drop(self, name: Hash) -> None:
        """Hold it no longer."""
        if name in self:
            del self._by[name[:PRINT_BYTES]]
            self._toggle(name)

    def _toggle(self, name: Hash) -> None:
        self._mark ^= int.from_bytes(name, "big")
        self._prints = None

    @property
    def mark(self) -> bytes:
        """One value for head and set of statements, whatever the order in which they came."""
        return self._mark.to_bytes(HASH_BYTES, "big")

    @property
    def prints(self) -> bytes:
        """The first bytes of their hashes, one after another."""
        if self._prints is None:
            self._prints = b"".join([*self._by][:MAX_PRINTS])
        return self._prints

    def lacking(self, prints: Collection[bytes]) -> list[Statement]:
        """What whoever showed ``prints`` does not hold."""
        return [statement for name, statement in self._by.items() if name not in prints]


@dataclass
class Talk:
    """What was said to neighbours, and heard from them, while comparing."""

    beats: int = 0
    mark: bytes = b""
    """One's own at the last beat."""
    told: dict[PeerId, bytes] = field(default_factory=dict)
    """The mark that was last sent to each."""
    agreed: dict[PeerId, bytes] = field(default_factory=dict)
    """The mark of each that was one's own."""
    answered: dict[PeerId, float] = field(default_factory=dict)
    """When a comparison with each was last begun."""
    said: dict[PeerId, float] = field(default_factory=dict)
    """When each was last told every print."""
    caught_up: dict[PeerId, tuple[Hash, float]] = field(default_factory=dict)
    """The head on which each was last told the next round, and when."""
    strange: dict[PeerId, tuple[Hash, float]] = field(default_factory=dict)
    """Neighbours on unknown heads, and since when; forgotten as this peer's own head moves."""
    heads: dict[PeerId, Hash] = field(default_factory=dict)
    """The head of each, as it said last."""
    replied: dict[PeerId, float] = field(default_factory=dict)
    """When each last got a chain."""
    early: dict[PeerId, tuple[str, bytes]] = field(default_factory=dict)
    """The last question (kind, payload) of each to whom no stream is open yet, so that no answer would reach it."""

    @property
    def _stores(self) -> tuple[dict[PeerId, Any], ...]:
        first = (self.told, self.agreed, self.answered, self.said)
        return (*first, self.caught_up, self.strange, self.heads, self.replied)

    def keep(self, neighbours: Collection[PeerId]) -> None:
        """Forget whoever is none: its frames may have waited until after its stream closed."""
        for store in self._stores:
            for peer in [each for each in store if each not in neighbours]:
                del store[peer]

    def forget(self, peer: PeerId) -> None:
        """Its stream closed."""
        for store in self._stores:
            store.pop(peer, None)
