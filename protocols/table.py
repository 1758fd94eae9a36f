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
from .messages import MAX_VIEW, MAX_VOTERS, Record
from .shapes import boolean, hash32, identity, integer, list_of, real, text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

NEW, STANDING, AWAY, LOST = "new", "standing", "away", "lost"
WEIGHT_LIMIT = 2.0**64
AWAY_AFTER = 4
"""Rosters in a row without a commit after which a member is away."""
BACK_AFTER = 3
"""Rosters in a row with a commit after which a member that was away or lost votes again."""
FORGET_AFTER = 64
"""Rosters in a row without a newcomer's commit after which its row goes."""
STRIKE = 16
"""Views without a turn after a failed one; rounds without reducing after being put out."""
FADE = 512
"""Seals after which the weight of a lost member counts half for finality."""
QUORUM_THIRDS = 2


def _weight(value: object) -> float:
    weight = real(value)
    if not 0 <= weight <= WEIGHT_LIMIT:
        raise ValueError(f"is not from 0 to {WEIGHT_LIMIT:.0f}")
    return weight


@dataclass(frozen=True, slots=True)
class Member(Record):
    """A row: ``weight`` counts in votes and in the rule, ``sealed`` counts commits, ``admitted`` is a seal hash.

    ``missed`` and ``streak`` count rosters in a row without and with a commit; ``since`` is the round in which its
    state changed last; it has no turn up to view ``benched`` and reduces nothing up to round ``rested``.
    """

    peer: PeerId
    weight: float
    state: str
    direct: bool
    admitted: Hash
    sealed: int
    missed: int = 0
    streak: int = 0
    since: int = 0
    benched: int = 0
    rested: int = 0

    checks = {
        "peer": identity,
        "weight": _weight,
        "state": text(16),
        "direct": boolean,
        "admitted": hash32,
        "sealed": integer(0, MAX_VIEW),
        "missed": integer(0, MAX_VIEW),
        "streak": integer(0, MAX_VIEW),
        "since": integer(0, MAX_VIEW),
        "benched": integer(0, MAX_VIEW),
        "rested": integer(0, MAX_VIEW),
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

    @cached_property
    def lost(self) -> tuple[PeerId, ...]:
        """Members that a shrink seal went on without, ordered by id."""
        return tuple(each for each in sorted(self.members) if self.members[each].state == LOST)

    def stands(self, who: PeerId) -> bool:
        """Whether the peer votes."""
        member = self.members.get(who)
        return member is not None and member.state == STANDING

    def weighs(self, who: PeerId) -> bool:
        """Whether the peer is a member with weight, in standing or not."""
        return who in self.members and self.members[who].weight > 0

    def weigh(self, peers: Iterable[PeerId]) -> float:
        """Weight of the voters among ``peers``, rounded once."""
        return fsum(self._weights(peers))

    def without(self, lost: Iterable[PeerId]) -> Table:
        """The same table where these members are lost."""
        gone = {each: replace(self.members[each], state=LOST) for each in lost if each in self.members}
        return Table({**self.members, **gone}) if gone else self

    def is_quorum(self, peers: Collection[PeerId]) -> bool:
        """More than 2/3 of the voters' weight."""
        return len(peers) >= self._fewest(QUORUM_THIRDS) and _exceed(
            self._weights(peers), [*self.voters.values()], thirds=QUORUM_THIRDS
        )

    def is_third(self, peers: Collection[PeerId], *, of: Iterable[PeerId] | None = None) -> bool:
        """More than 1/3 of the weight of ``of``, or of all voters."""
        if of is None and len(peers) < self._fewest(1):
            return False
        return _exceed(self._weights(peers), self._weights(self.voters if of is None else of), thirds=1)

    def is_half(self, peers: Iterable[PeerId]) -> bool:
        """At least 1/2 of the voters' weight."""
        return fsum([*self._weights(peers) * 2, *(-weight for weight in self.voters.values())]) >= 0

    def holds(self, peers: Iterable[PeerId], round_number: int) -> bool:
        """More than 2/3 of the weight of voters and lost together, as of a round: what makes a seal final (5.9)."""
        whole = {**self.voters, **{each: self._faded(each, round_number) for each in self.lost}}
        return _exceed([whole[each] for each in set(peers) if each in whole], [*whole.values()], thirds=QUORUM_THIRDS)

    def lasting(self, peers: Iterable[PeerId], round_number: int) -> float:
        """Weight of voters and lost among ``peers``, as of a round."""
        lost = {each: self._faded(each, round_number) for each in self.lost}
        return fsum(self.voters.get(each, lost.get(each, 0.0)) for each in set(peers))

    def _fewest(self, thirds: int) -> int:
        """No fewer voters weigh more than so many thirds: spares the sum while there cannot be enough."""
        if thirds not in self._counts:
            heavy = sorted(self.voters.values(), reverse=True)
            enough = (count for count in range(len(heavy)) if _exceed(heavy[:count], heavy, thirds=thirds))
            self._counts[thirds] = next(enough, len(heavy))
        return self._counts[thirds]

    @cached_property
    def _counts(self) -> dict[int, int]:
        return {}

    def _faded(self, who: PeerId, round_number: int) -> float:
        member = self.members[who]
        return member.weight * 2.0 ** -min(1000, max(0, round_number - member.since) // FADE)

    def _weights(self, peers: Iterable[PeerId]) -> list[float]:
        return [self.voters[each] for each in set(peers) if each in self.voters]


def _exceed(some: list[float], whole: list[float], *, thirds: int) -> bool:
    # fsum rounds the exact sum once, so its sign is exact: 2/3 of three 0.1s is no quorum.
    return fsum([*some * 3, *[-weight for weight in whole] * thirds]) > 0


def table_from_wire(value: object) -> Table:
    """Parse ``Table.to_wire``; raises ValueError."""
    return Table({member.peer: member for member in _ROWS(value)})


_ROWS = list_of(Member.from_wire, 1 << 12)


def genesis(founders: Iterable[PeerId], seal: Hash) -> Table:
    """The table of seal 0: the manifest's founders in standing, of equal weight."""
    return Table({each: Member(each, 1.0, STANDING, direct=True, admitted=seal, sealed=0) for each in founders})


@dataclass(frozen=True, slots=True)
class Turnover:
    """What a seal of ``round`` on top of ``parent`` changes in the table.

    ``commits``: those in its roster → (direct, present in at least half of the parts), None for a void seal;
    ``failed``: coordinators whose turn came to nothing, and its view; ``out``: reducers that were put out.
    """

    parent: Hash
    round: int
    commits: Mapping[PeerId, tuple[bool, bool]] | None
    failed: tuple[tuple[PeerId, int], ...] = ()
    out: tuple[PeerId, ...] = ()
    lost: tuple[PeerId, ...] = ()


def advance(table: Table, turn: Turnover, *, probation: int) -> Table:
    """The table after a seal (5.1).

    A stranger enters as ``new``; whoever has more than ``probation`` sealed commits stands, whoever missed 4 rosters
    is away, whoever was away or lost and is in 3 rosters in a row stands again. At most one member, or a sixteenth of
    the weight, changes state in one seal, in order of ids; ``lost`` are excepted. At most 96 stand.
    """
    members = dict(table.members)
    for peer, view in turn.failed:
        if peer in members:
            members[peer] = replace(members[peer], benched=max(members[peer].benched, view + STRIKE))
    for peer in turn.out:
        if peer in members:
            members[peer] = replace(members[peer], rested=turn.round + STRIKE)
    if turn.commits is not None:
        _count(members, turn.parent, turn.commits)
        _change(members, table, turn.round, probation)
    for peer in turn.lost:
        members[peer] = replace(members[peer], state=LOST, since=turn.round, streak=0)
    return Table(members)


def _count(members: dict[PeerId, Member], parent: Hash, commits: Mapping[PeerId, tuple[bool, bool]]) -> None:
    """Who was in the roster and who was not."""
    for peer, member in list(members.items()):
        if peer not in commits and member.state == NEW and member.missed + 1 >= FORGET_AFTER:
            del members[peer]
        elif peer not in commits:
            members[peer] = replace(member, missed=member.missed + 1, streak=0)
    for peer in sorted(commits):
        direct, present = commits[peer]
        member = members.get(peer) or Member(peer, 0.0, NEW, direct=False, admitted=parent, sealed=0)
        members[peer] = replace(
            member, direct=direct, sealed=member.sealed + present, missed=0, streak=member.streak + 1
        )


def _change(members: dict[PeerId, Member], table: Table, round_number: int, probation: int) -> None:
    """Let states change as far as one seal allows."""
    whole = [-weight for weight in table.voters.values()]
    moved: list[float] = []
    standing = len(table.voters)
    for peer in sorted(members):
        member = members[peer]
        weight = member.weight or 1.0
        state = _next_state(member, probation)
        if state == member.state or (state == STANDING and standing >= MAX_VOTERS):
            continue
        if state == AWAY and standing <= 1:
            continue
        # The first may always; the sign of a sum rounded once is exact.
        if moved and fsum([*(16 * each for each in (*moved, weight)), *whole]) > 0:
            continue
        moved.append(weight)
        standing += 1 if state == STANDING else -1
        members[peer] = replace(
            member, state=state, since=round_number, weight=weight if state == STANDING else member.weight
        )


def _next_state(member: Member, probation: int) -> str:
    if member.state == STANDING and member.missed >= AWAY_AFTER:
        return AWAY
    if member.state == NEW and member.sealed > probation:
        return STANDING
    if member.state in {AWAY, LOST} and member.streak >= BACK_AFTER:
        return STANDING
    return member.state
