"""The head of the chain: the certified seal a round builds on, with its table and certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ..errors import RemoteError
from ..ids import Hash, PeerId, digest
from ..messages import MAX_VIEW, Seal, Vote
from ..shapes import data, hash32, integer, list_of, record
from ..table import Table, genesis, table_from_wire

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..canonical import Value
    from ..statements import Scope, Statement


@dataclass(frozen=True)
class Head:
    """A certified seal and the members as of it. Seal 0 is the manifest: no proposal, no votes."""

    seal: Hash
    view: int
    round: int
    table: Table
    proposal: Statement | None
    votes: tuple[Statement, ...]
    parent_table: Table | None = None
    """The members who voted: the parent's table; None at seal 0 and behind a jump."""

    @property
    def body(self) -> Seal | None:
        """The seal itself; None at seal 0."""
        return cast("Seal", self.proposal.body) if self.proposal else None

    @property
    def parent(self) -> Hash | None:
        """The seal before it; None at seal 0."""
        return self.body.parent if self.body else None

    @property
    def shrinks(self) -> bool:
        """Whether it goes on without members (5.10)."""
        return self.body is not None and bool(self.body.lost)

    @property
    def signers(self) -> set[PeerId]:
        """Who voted for it."""
        return {each.peer for each in self.votes}


def seal_hash(scope: Scope, body: Seal) -> Hash:
    """The seal's name: BLAKE3 of its body for this run and cell; no signatures inside (redteam.md 31)."""
    return digest(b"seal", scope.run, scope.cell.encode(), body.packed)


def seal_zero(scope: Scope, founders: Iterable[PeerId], state: Hash) -> Head:
    """The manifest as a seal: its founders in standing, view 0, the initial state's root."""
    name = digest(b"seal zero", scope.run, scope.cell.encode(), state)
    return Head(name, 0, 0, genesis(founders, name), None, ())


def certifies(table: Table, lost: Iterable[PeerId], signers: Collection[PeerId]) -> bool:
    """Whether a seal has a quorum: of its parent's voters, without those that it goes on without (5.10)."""
    return table.without(lost).is_quorum(signers)


def verify_certificate(scope: Scope, voters: Table, proposal: Statement, votes: Iterable[Statement]) -> Hash:
    """The hash of ``proposal``'s seal if ``votes`` are a quorum of ``voters`` (the parent's table) for it.

    Statements must come out of ``Scope.decode``, which checks signatures. Raises RemoteError.
    """
    body = proposal.body
    if not isinstance(body, Seal):
        raise RemoteError(proposal.peer, "certificate without a seal")
    name = seal_hash(scope, body)
    agreed = {each.peer for each in votes if isinstance(each.body, Vote) and each.body == Vote(body.view, name)}
    if not certifies(voters, body.lost, agreed):
        raise RemoteError(proposal.peer, f"seal {name.hex()[:12]} of round {body.round} lacks a quorum of votes")
    return name


def head_to_wire(head: Head) -> Value:
    """A sealed head with its proof as msgpack values, for a checkpoint."""
    return {
        "seal": head.seal,
        "view": head.view,
        "round": head.round,
        "table": head.table.to_wire(),
        "parent_table": head.parent_table.to_wire() if head.parent_table else [],
        "proposal": head.proposal.encode() if head.proposal else b"",
        "votes": [vote.encode() for vote in head.votes],
    }


def head_from_wire(value: object, scope: Scope) -> Head:
    """Parse ``head_to_wire``; raises ValueError, or RemoteError for a statement whose signature fails."""
    fields = record(value, _HEAD)
    encoded = cast("bytes", fields["proposal"])
    proposal = scope.decode(encoded, sender="checkpoint") if encoded else None
    votes = tuple(scope.decode(vote, sender="checkpoint") for vote in cast("tuple[bytes, ...]", fields["votes"]))
    return Head(
        seal=cast("Hash", fields["seal"]),
        view=cast("int", fields["view"]),
        round=cast("int", fields["round"]),
        table=cast("Table", fields["table"]),
        proposal=proposal,
        votes=votes,
        parent_table=cast("Table", fields["parent_table"]) if proposal else None,
    )


def check_head(head: Head, scope: Scope, state: Hash) -> None:
    """Whether a head's proof, table and ``state`` root belong together; raises ValueError or RemoteError."""
    if head.proposal is None or head.parent_table is None:
        raise ValueError("seal without a proposal")
    body = cast("Seal", head.proposal.body)
    if verify_certificate(scope, head.parent_table, head.proposal, head.votes) != head.seal:
        raise ValueError("certificate of another seal")
    if (body.round, body.view) != (head.round, head.view) or body.table != head.table.root:
        raise ValueError("round, view or table is not the sealed one")
    if body.state != state:
        raise ValueError("parameters or momentum are not the sealed ones")


_HEAD = {
    "seal": hash32,
    "view": integer(0, MAX_VIEW),
    "round": integer(0, MAX_VIEW),
    "table": table_from_wire,
    "parent_table": table_from_wire,
    "proposal": data(1 << 20),
    "votes": list_of(data(1 << 14), 1 << 12),
}
