"""What must hold against a Byzantine scheduler, and signatures that not even it can forge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocols.errors import RemoteError
from protocols.round.chain import Head, seal_hash
from protocols.statements import Scope, Statement

if TYPE_CHECKING:
    from protocols.ids import Hash, PeerId
    from protocols.messages import Body, Seal
    from protocols.statements import Sign as Signature


@dataclass(frozen=True)
class IdealScope(Scope):
    """Signatures that nobody can forge: a statement is valid if it was made here."""

    issued: dict[bytes, Statement] = field(default_factory=dict, compare=False)

    def state(self, signer: PeerId, body: Body, sign: Signature) -> Statement:
        """See ``Scope.state``."""
        raw = self.signed_bytes(body)
        made = Statement(signer, body, raw, sign(raw))
        return self.issued.setdefault(made.encode(), made)

    def decode(self, encoded: bytes, *, sender: str) -> Statement:
        """See ``Scope.decode``."""
        found = self.issued.get(bytes(encoded))
        if found is None:
            raise RemoteError(sender, "a statement that nobody has signed")
        return found


class Broken(AssertionError):
    """Something that must never happen."""


class Judge:
    """No two conflicting final seals, and no honest peer signs twice for one slot."""

    def __init__(self, scope: Scope, anchor: Head) -> None:
        self.scope, self.finals, self.rivals = scope, 0, 0
        self._parents: dict[Hash, Hash | None] = {anchor.seal: None}
        self._top = anchor.seal
        self._slots: dict[tuple[PeerId, str, bytes], Hash] = {}
        self._adopted: dict[Hash, Hash] = {}

    def proposed(self, body: Seal) -> Hash:
        """Somebody signed this seal."""
        name = seal_hash(self.scope, body)
        self._parents[name] = body.parent
        return name

    def signed(self, statement: Statement) -> None:
        """An honest peer signed this."""
        slot = (statement.peer, statement.body.kind, statement.body.slot())
        if self._slots.setdefault(slot, statement.hash) != statement.hash:
            raise Broken(f"an honest peer signed two {statement.body.kind}s for one slot")

    def adopted(self, head: Head) -> None:
        """An honest peer builds on this head. Rival children of one seal are no fault before they are final."""
        parent = self._parents[head.seal]
        if parent is not None and self._adopted.setdefault(parent, head.seal) != head.seal:
            self.rivals += 1

    def final(self, seal: Hash) -> None:
        """An honest peer calls this seal final."""
        self.finals += 1
        if self._descends(seal, self._top):
            self._top = seal
        elif not self._descends(self._top, seal):
            raise Broken(f"final seals {seal.hex()[:8]} and {self._top.hex()[:8]} conflict")

    def _descends(self, seal: Hash, from_: Hash) -> bool:
        here: Hash | None = seal
        while here is not None and here != from_:
            here = self._parents[here]
        return here is not None
