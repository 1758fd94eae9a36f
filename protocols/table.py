"""The cell's members as of a seal: a pure function of the chain (protocol.md 5.1).

Until audited weight exists a member in standing weighs 1; the manifest's ``members.probation``
says after how many sealed commits a newcomer stands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from .canonical import Value, pack
from .ids import Hash, PeerId, digest
from .messages import MAX_VIEW, Record
from .shapes import boolean, hash32, identity, integer, list_of, real, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NEW, STANDING = "new", "standing"


@dataclass(frozen=True, slots=True)
class Member(Record):
    """A row: ``weight`` counts in votes and in the rule, ``sealed`` counts commits, ``admitted`` is a seal hash."""

    peer: PeerId
    weight: float
    state: str
    direct: bool
    admitted: Hash
    sealed: int

    checks = {
        "peer": identity,
        "weight": real,
        "state": text(16),
        "direct": boolean,
        "admitted": hash32,
        "sealed": integer(0, MAX_VIEW),
    }


@dataclass(frozen=True)
class Table:
    """All members, ordered by id."""

    members: Mapping[PeerId, Member]

    def to_wire(self) -> list[Value]:
        """Every row in order of ids, as msgpack values."""
        return [self.members[each].to_wire() for each in sorted(self.members)]

    @cached_property
    def root(self) -> Hash:
        """Hash of every row in order of ids."""
        return digest(b"table", pack(self.to_wire()))

    @cached_property
    def voters(self) -> Mapping[PeerId, float]:
        """Members in standing and their weight, ordered by id."""
        return {each: self.members[each].weight for each in sorted(self.members) if self.stands(each)}

    def stands(self, who: PeerId) -> bool:
        """Whether the peer votes."""
        member = self.members.get(who)
        return member is not None and member.state == STANDING

    def weigh(self, peers: Iterable[PeerId]) -> float:
        """Weight of the voters among ``peers``."""
        return sum(self.voters.get(each, 0.0) for each in sorted(set(peers)))

    def is_quorum(self, peers: Iterable[PeerId]) -> bool:
        """More than 2/3 of the voters' weight."""
        return 3.0 * self.weigh(peers) > 2.0 * sum(self.voters.values())

    def is_third(self, peers: Iterable[PeerId]) -> bool:
        """More than 1/3 of the voters' weight."""
        return 3.0 * self.weigh(peers) > sum(self.voters.values())


def table_from_wire(value: object) -> Table:
    """Parse ``Table.to_wire``; raises ValueError."""
    return Table({member.peer: member for member in _ROWS(value)})


_ROWS = list_of(Member.from_wire, 1 << 16)


def genesis(founders: Iterable[PeerId], seal: Hash) -> Table:
    """The table of seal 0: the manifest's founders in standing, of equal weight."""
    return Table({each: Member(each, 1.0, STANDING, direct=True, admitted=seal, sealed=0) for each in founders})


def advance(table: Table, parent: Hash, committed: Mapping[PeerId, bool], *, probation: int) -> Table:
    """The table after a seal whose roster held commits of ``committed`` (peer → its ``direct`` claim).

    A stranger enters as ``new``; whoever has more than ``probation`` sealed commits stands. At most one
    member, or a sixteenth of the weight, gains standing in one seal, in order of ids (5.1).
    """
    members = dict(table.members)
    room = max(1, int(sum(table.voters.values()) / 16))
    for each in sorted(committed):
        member = members.get(each) or Member(each, 0.0, NEW, direct=False, admitted=parent, sealed=0)
        member = replace(member, direct=committed[each], sealed=member.sealed + 1)
        if member.state == NEW and member.sealed > probation and room > 0:
            member, room = replace(member, state=STANDING, weight=1.0), room - 1
        members[each] = member
    return Table(members)
