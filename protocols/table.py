"""The cell's members as of a seal: a pure function of the chain (protocol.md 5.1).

Until audited weight exists a member in standing weighs 1; the manifest's ``members.probation``
says after how many sealed commits a newcomer stands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from typing import TYPE_CHECKING

from .canonical import Value, pack
from .ids import Hash, PeerId, digest
from .messages import MAX_CONTRIBUTORS, MAX_VIEW, Record
from .shapes import boolean, hash32, identity, integer, list_of, real, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NEW, STANDING = "new", "standing"
WEIGHT_LIMIT = 2.0**64


def _weight(value: object) -> float:
    weight = real(value)
    if not 0 <= weight <= WEIGHT_LIMIT:
        raise ValueError(f"is not from 0 to {WEIGHT_LIMIT:.0f}")
    return weight


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
        "weight": _weight,
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
        """Weight of the voters among ``peers``, rounded once."""
        return fsum(self._weights(peers))

    def is_quorum(self, peers: Iterable[PeerId]) -> bool:
        """More than 2/3 of the voters' weight."""
        return self._exceed(self._weights(peers), self._weights(self.voters), thirds=2)

    def is_third(self, peers: Iterable[PeerId], *, of: Iterable[PeerId] | None = None) -> bool:
        """More than 1/3 of the weight of ``of``, or of all voters."""
        return self._exceed(self._weights(peers), self._weights(self.voters if of is None else of), thirds=1)

    def _weights(self, peers: Iterable[PeerId]) -> list[float]:
        return [self.voters[each] for each in set(peers) if each in self.voters]

    @staticmethod
    def _exceed(some: list[float], whole: list[float], *, thirds: int) -> bool:
        # fsum rounds the exact sum once, so its sign is exact: 2/3 of three 0.1s is no quorum.
        return fsum([*some * 3, *[-weight for weight in whole] * thirds]) > 0


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
    member, or a sixteenth of the weight, gains standing in one seal, in order of ids (5.1), and at most 64 stand.
    """
    members = dict(table.members)
    room = min(max(1, int(table.weigh(table.voters) / 16)), MAX_CONTRIBUTORS - len(table.voters))
    for each in sorted(committed):
        member = members.get(each) or Member(each, 0.0, NEW, direct=False, admitted=parent, sealed=0)
        member = replace(member, direct=committed[each], sealed=member.sealed + 1)
        if member.state == NEW and member.sealed > probation and room > 0:
            member, room = replace(member, state=STANDING, weight=1.0), room - 1
        members[each] = member
    return Table(members)
