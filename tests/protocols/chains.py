"""Small chains of certified seals for tests: any votes, any tables, no signatures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from protocols.chain_payloads import Link
from protocols.ids import Hash, PeerId, digest, peer_id
from protocols.messages import Ready, Seal, Vote
from protocols.round.chain import Head, seal_hash, seal_zero
from protocols.statements import Scope, Statement
from protocols.table import LOST, STANDING, Member, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

SCOPE = Scope(b"r" * 32, "model")
ZERO = Hash(b"0" * 32)
PEERS = sorted(peer_id(digest(b"peer %d" % number)) for number in range(24))
FOUR, SIX = PEERS[:4], PEERS[:6]


def signed(peer: PeerId, body: Seal | Vote | Ready) -> Statement:
    """``walk`` gets statements whose signatures are checked already, so none is needed here."""
    return SCOPE.state(peer, body, lambda raw: bytes(64))


def zero(founders: Iterable[PeerId] = FOUR) -> Head:
    return seal_zero(SCOPE, founders, ZERO)


def child(
    parent: Head,
    voters: Iterable[PeerId],
    *,
    table: Table | None = None,
    view: int = 0,
    lost: tuple[PeerId, ...] = (),
    salt: bytes = b"",
) -> Head:
    """A seal on top of ``parent`` that ``voters`` voted for."""
    table = table or parent.table
    if lost:
        rows = {each: replace(table.members[each], state=LOST, since=parent.round + 1) for each in lost}
        table = Table({**table.members, **rows})
    body = Seal(
        view=view or parent.view + 1 + (6 if lost else 0),
        parent=parent.seal,
        round=parent.round + 1,
        roster=digest(b"roster", salt),
        freeze=b"",
        out=(),
        grams=(),
        contributions=(),
        results=(),
        lost=lost,
        table=table.root,
        state=ZERO,
    )
    name = seal_hash(SCOPE, body)
    votes = tuple(signed(each, Vote(body.view, name)) for each in sorted(voters))
    return Head(name, body.view, body.round, table, signed(FOUR[0], body), votes, parent.table)


def grown(start: Head, count: int, voters: Iterable[PeerId] = FOUR, salt: bytes = b"") -> list[Head]:
    heads = [start]
    for _ in range(count):
        heads.append(child(heads[-1], voters, salt=salt))
    return heads[1:]


def link(head: Head, final: tuple[Statement, ...] = ()) -> Link:
    assert head.proposal
    return Link(head.proposal, head.votes, head.table, final)


def ready(peer: PeerId, head: Head, view: int = 0) -> Statement:
    return signed(peer, Ready(view or head.view + 1, head.seal, head.view, (), b"", 0, ()))


def readys(head: Head, peers: Iterable[PeerId]) -> tuple[Statement, ...]:
    return tuple(ready(each, head) for each in peers)


def table_of(weights: dict[PeerId, float]) -> Table:
    return Table({each: Member(each, weight, STANDING, True, ZERO, 0) for each, weight in weights.items()})
