"""What a seal changes in the table, against protocol.md 5.1 written a second time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.canonical import pack
from protocols.ids import Hash, PeerId
from protocols.table import AWAY, LOST, NEW, STANDING, Member, Table, Turnover, advance
from tests.protocols.tables import PARENT, ZERO, changed, founders, peers, weighted

Commits = Mapping[PeerId, tuple[bool, bool]]


def within(table: Table, state: str) -> set[PeerId]:
    return {each for each, member in table.members.items() if member.state == state}


def everybody(who: list[PeerId]) -> dict[PeerId, tuple[bool, bool]]:
    return dict.fromkeys(who, (True, True))


def seals(table: Table, count: int, commits: Commits, *, start: int = 1, probation: int = 0) -> Table:
    """The table after ``count`` seals with the same commits."""
    for number in range(start, start + count):
        table = advance(table, Turnover(PARENT, number, commits), probation=probation)
    return table


# --- coming and going ------------------------------------------------------------------------------


@pytest.mark.parametrize("probation", [0, 1, 2, 8])
def test_a_newcomer_stands_after_its_probation(probation: int) -> None:
    table, newcomer = founders(3), peers(1, 50)[0]
    for number in range(probation + 1):
        assert not table.stands(newcomer)
        parent = Hash(bytes([number]) * 32)
        turn = Turnover(parent, number + 1, everybody([*peers(3), newcomer]))
        table = advance(table, turn, probation=probation)
        assert table.members[newcomer].sealed == number + 1
        assert table.members[newcomer].admitted == bytes(32), "admitted by its first seal, for ever"
    assert table.voters[newcomer] == 1.0
    assert [table.members[each].sealed for each in peers(3)] == [probation + 1] * 3


def test_a_commit_whose_parts_did_not_arrive_is_no_sealed_one() -> None:
    table, newcomer = founders(2), peers(1, 50)[0]
    for present in (True, False, False, True):
        commits = {**everybody(peers(2)), newcomer: (True, present)}
        assert not table.stands(newcomer)
        table = seals(table, 1, commits, probation=1)
    assert (table.members[newcomer].sealed, table.stands(newcomer)) == (2, True)
    assert table.members[newcomer].streak == 4


def test_away_after_four_rosters_and_back_with_the_third_in_a_row() -> None:
    names = peers(5)
    gone, left = names[2], [each for each in names if each != names[2]]
    table = seals(founders(5), 3, everybody(left))
    assert table.stands(gone)
    table = seals(table, 1, everybody(left), start=4)
    assert (table.members[gone].state, table.members[gone].since) == (AWAY, 4)
    assert (table.members[gone].weight, len(table.voters)) == (1.0, 4)
    table = seals(table, 2, everybody(names), start=5)
    table = seals(table, 1, everybody(left), start=7)
    table = seals(table, 2, everybody(names), start=8)
    assert table.members[gone].state == AWAY, "never three in a row"
    table = seals(table, 1, everybody(names), start=10)
    assert (table.members[gone].state, table.members[gone].since) == (STANDING, 10)


def test_a_missed_roster_counts_from_the_last_commit() -> None:
    names = peers(4)
    table = founders(4)
    for _ in range(5):
        table = seals(table, 3, everybody(names[1:]))
        table = seals(table, 1, everybody(names))
    assert table.stands(names[0])


def test_a_void_seal_counts_no_roster() -> None:
    names, table = peers(3), founders(3)
    for number in range(1, 9):
        table = advance(table, Turnover(PARENT, number, None), probation=0)
    assert table == founders(3)
    table = seals(table, 3, everybody(names[1:]))
    table = advance(table, Turnover(PARENT, 12, None), probation=0)
    assert (table.members[names[0]].missed, table.members[names[0]].state) == (3, STANDING)


def test_a_shrink_loses_any_number_at_once_and_each_comes_back_by_itself() -> None:
    names = peers(6)
    table = seals(founders(6), 5, everybody(names))
    table = advance(table, Turnover(PARENT, 6, None, lost=tuple(names[3:])), probation=0)
    assert table.lost == tuple(names[3:])
    assert set(table.voters) == set(names[:3])
    assert {table.members[each].since for each in table.lost} == {6}
    table = seals(table, 2, everybody(names), start=7)
    assert within(table, LOST) == set(names[3:]), "the commits before the loss count no more"
    for number in range(3):
        table = seals(table, 1, everybody(names), start=9 + number)
        assert set(table.voters) == set(names[: 4 + number]), "one in a seal"


def test_the_last_voter_never_goes_away() -> None:
    table = founders(2)
    for number in range(1, 20):
        table = seals(table, 1, everybody(peers(1, 70)), start=number, probation=1000)
    assert len(table.voters) == 1


def test_a_newcomer_that_left_is_forgotten_after_64_rosters_and_a_member_never() -> None:
    names, newcomer = peers(3), peers(1, 50)[0]
    table = seals(founders(3), 1, everybody([*names, newcomer]), probation=5)
    table = seals(table, 63, everybody(names[1:]), start=2, probation=5)
    assert newcomer in table.members
    table = seals(table, 1, everybody(names[1:]), start=65, probation=5)
    assert newcomer not in table.members
    assert table.members[names[0]].state == AWAY
    table = seals(table, 1, everybody([*names[1:], newcomer]), start=66, probation=5)
    assert table.members[newcomer].sealed == 1


def test_failed_turns_and_those_put_out_rest() -> None:
    names = peers(4)
    stranger = peers(1, 90)[0]
    turn = Turnover(
        PARENT, 7, everybody(names),
        failed=((names[0], 20), (names[1], 21), (names[0], 18), (stranger, 22)), out=(names[2], stranger),
    )  # fmt: skip
    after = advance(founders(4), turn, probation=0)
    assert [after.members[each].benched for each in names] == [36, 37, 0, 0]
    assert [after.members[each].rested for each in names] == [0, 0, 23, 0]
    assert stranger not in after.members
    assert [after.members[each].weight for each in names] == [1.0] * 4, "a strike is never weight"
    void = advance(founders(4), replace(turn, commits=None), probation=0)
    assert [void.members[each].benched for each in names] == [36, 37, 0, 0], "in a void seal as well"


# --- how much at once ------------------------------------------------------------------------------


@pytest.mark.parametrize(("voters", "room"), [(1, 1), (4, 1), (15, 1), (16, 1), (31, 1), (32, 2), (48, 3)])
def test_at_most_a_sixteenth_or_one_gains_standing_in_one_seal(voters: int, room: int) -> None:
    table, newcomers = founders(voters), peers(8, 500)
    commits = everybody([*peers(voters), *newcomers])
    after = seals(table, 1, commits)
    assert set(after.voters) - set(table.voters) == set(newcomers[:room]), "in order of ids"
    again = seals(after, 1, commits, start=2)
    more = max(1, (voters + room) // 16)
    assert set(again.voters) - set(after.voters) == set(newcomers[room : room + more])


@pytest.mark.parametrize("heavy", [1.0, 3.0, 100.0])
def test_one_member_may_always_change_however_heavy(heavy: float) -> None:
    """Else whoever weighs more than a sixteenth and is gone would hold its vote for ever."""
    names = peers(5)
    table = changed(weighted([1.0, 1.0, 1.0, 1.0, heavy]), names[4:], missed=3)
    after = seals(table, 1, everybody(names[:4]))
    assert within(after, AWAY) == {names[4]}
    assert after.members[names[4]].weight == heavy


def test_many_light_members_may_not_change_at_once() -> None:
    names = peers(10)
    table = changed(weighted([0.1] * 10), names[1:], missed=3)
    after = seals(table, 1, everybody(names[:1]))
    assert within(after, AWAY) == {names[1]}, "ten of 0.1 weigh 1: nine at once would move nearly all the weight"


def test_exactly_a_sixteenth_of_tenths_may_change() -> None:
    names = peers(32)
    table = changed(weighted([0.1] * 32), names[:5], missed=9)
    assert within(seals(table, 1, everybody(names[5:])), AWAY) == set(names[:2])


@pytest.mark.parametrize(("voters", "room"), [(94, 2), (95, 1), (96, 0)])
def test_at_most_96_stand(voters: int, room: int) -> None:
    table, newcomers = founders(voters), peers(8, 500)
    after = seals(table, 1, everybody([*peers(voters), *newcomers]))
    assert set(after.voters) - set(table.voters) == set(newcomers[:room])


# --- all of it -------------------------------------------------------------------------------------


@dataclass
class Row:
    """What the second reading of 5.1 knows of a member."""

    state: str = NEW
    sealed: int = 0
    missed: int = 0
    streak: int = 0
    weight: float = 0.0

    @classmethod
    def of(cls, member: Member) -> Row:
        """The same of a real row."""
        return cls(member.state, member.sealed, member.missed, member.streak, member.weight)


def model(table: Table, commits: Commits, probation: int) -> dict[PeerId, Row]:
    """5.1 again, member by member on exact numbers."""
    rows = {each: Row.of(member) for each, member in table.members.items()}
    for each in {*rows, *commits}:
        row = rows.setdefault(each, Row())
        if each in commits:
            row.sealed, row.missed, row.streak = row.sealed + commits[each][1], 0, row.streak + 1
        else:
            row.missed, row.streak = row.missed + 1, 0
            if row.state == NEW and row.missed >= 64:
                del rows[each]
    whole = sum(Fraction(member.weight) for member in table.members.values() if member.state == STANDING)
    spent: list[Fraction] = []
    for each in sorted(rows):
        row = rows[each]
        up = (row.state == NEW and row.sealed > probation) or (row.state in (AWAY, LOST) and row.streak >= 3)
        down = row.state == STANDING and row.missed >= 4
        voters = sum(other.state == STANDING for other in rows.values())
        heavy = Fraction(row.weight or 1.0)
        if not (up or down) or (up and voters == 96) or (down and voters == 1):
            continue
        if spent and 16 * (sum(spent) + heavy) > whole:
            continue
        spent.append(heavy)
        row.state, row.weight = STANDING if up else AWAY, row.weight or 1.0
    return rows


members = st.tuples(
    st.sampled_from([STANDING] * 3 + [AWAY, LOST, NEW]),
    st.sampled_from([0.1, 0.25, 1.0, 1.0, 3.0]),
    st.integers(0, 3),
    st.sampled_from([0, 0, 3, 4, 62, 63, 64]),
    st.integers(0, 4),
)


@settings(max_examples=150)
@given(st.lists(members, min_size=1, max_size=40), st.integers(0, 2), st.data())
def test_advance_is_what_5_1_says(
    rows: list[tuple[str, float, int, int, int]], probation: int, data: st.DataObject
) -> None:
    names = peers(len(rows))
    table = Table({})
    for name, (state, weight, sealed, missed, streak) in zip(names, rows, strict=True):
        weight_in_table, in_a_row = (0.0 if state == NEW else weight), (0 if missed else streak)
        row = Member(name, weight_in_table, state, True, ZERO, sealed, missed, in_a_row)
        table = Table({**table.members, name: row})
    some = data.draw(st.sets(st.sampled_from([*names, *peers(4, 500)]), max_size=44))
    commits = {each: (data.draw(st.booleans()), data.draw(st.booleans())) for each in sorted(some)}
    before = pack(table.to_wire())
    after = advance(table, Turnover(PARENT, 9, commits), probation=probation)
    assert pack(table.to_wire()) == before, "the old table stays"
    assert {each: Row.of(member) for each, member in after.members.items()} == model(table, commits, probation)
    for each, member in after.members.items():
        old = table.members.get(each)
        assert (member.since == 9) == (member.state != (old.state if old else NEW))
        assert member.admitted == (ZERO if old else PARENT)
        assert member.direct == (commits[each][0] if each in commits else True)
    moved = [each for each in after.members if after.stands(each) != table.stands(each)]
    shifted = sum(Fraction(after.members[each].weight) for each in moved)
    assert len(moved) <= 1 or 16 * shifted <= sum(Fraction(weight) for weight in table.voters.values())


@settings(max_examples=30)
@given(st.sets(st.integers(0, 30), max_size=12), st.integers(0, 2), st.randoms())
def test_advance_does_not_depend_on_any_order(numbers: set[int], probation: int, random: Any) -> None:
    table = founders(8)
    commits = {each: (index % 2 == 0, True) for index, each in enumerate(peers(31)) if index in numbers}
    items = list(commits.items())
    random.shuffle(items)
    one = advance(table, Turnover(PARENT, 1, commits), probation=probation)
    mirrored = Table(dict(reversed(list(table.members.items()))))
    other = advance(mirrored, Turnover(PARENT, 1, dict(items)), probation=probation)
    assert one.root == other.root
    assert list(one.voters) == sorted(one.voters)
