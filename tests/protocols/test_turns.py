"""Who coordinates and who reduces what, against protocol.md 5.1 and 5.5 by brute force."""

from __future__ import annotations

import math
import struct
from collections import Counter
from fractions import Fraction

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import turns
from protocols.ids import Hash, PeerId
from protocols.statements import Scope
from protocols.table import AWAY, LOST, NEW, STANDING, Member, Table, Turnover, advance
from tests.protocols.tables import PARENT, ZERO, changed, founders, peers

SCOPE = Scope(b"r" * 32, "model")


def hashed(*fields: bytes) -> bytes:
    """BLAKE3 of length-prefixed fields."""
    return blake3(b"".join(struct.pack("<Q", len(field)) + field for field in fields)).digest()


def place(word: bytes, number: int, each: str, admitted: bytes = ZERO) -> bytes:
    return hashed(word, b"r" * 32, b"model", number.to_bytes(8, "big"), admitted, each.encode())


# --- turns -----------------------------------------------------------------------------------------


def test_the_turn_is_the_largest_hash_of_run_cell_view_admission_and_id() -> None:
    table = changed(founders(5), peers(5)[:1], admitted=PARENT)
    for view in range(50):
        keys = {each: place(b"turn", view, each, table.members[each].admitted) for each in peers(5)}
        assert turns.coordinator(table, SCOPE, view) == max(keys, key=keys.__getitem__)
        some = peers(5)[1:4]
        assert turns.first_turn(table, SCOPE, view, some) == max(some, key=keys.__getitem__)


def test_turns_go_round_and_differ_between_runs_and_cells() -> None:
    table = founders(6)
    counts = Counter(turns.coordinator(table, SCOPE, view) for view in range(600))
    assert set(counts) == set(peers(6))
    # Binomial(600, 1/6) has standard deviation 9.1: five of them on each side.
    assert all(100 - 46 < count < 100 + 46 for count in counts.values())
    for other in (Scope(b"x" * 32, "model"), Scope(b"r" * 32, "expert")):
        same = sum(
            turns.coordinator(table, SCOPE, view) == turns.coordinator(table, other, view) for view in range(600)
        )
        assert same < 160


def test_nothing_that_changes_after_admission_moves_a_turn() -> None:
    """Weight, counters, who else is there but cannot be coordinator: none may be ground (redteam.md 13)."""
    table = founders(4)
    later = changed(table, peers(4), weight=3.5, sealed=99, missed=3, streak=2, since=8, rested=99)
    strangers = {each: Member(each, 0.0, NEW, True, PARENT, 3) for each in peers(20, 50)}
    gone = {
        each: Member(each, 1.0, state, True, PARENT, 3) for each, state in zip(peers(2, 80), (AWAY, LOST), strict=True)
    }
    for view in range(100):
        expected = turns.coordinator(table, SCOPE, view)
        assert turns.coordinator(Table({**strangers, **later.members, **gone}), SCOPE, view) == expected


def test_a_new_voter_takes_turns_only_from_those_it_beats() -> None:
    table, newcomer = founders(5), peers(1, 50)[0]
    larger = Table({**table.members, newcomer: Member(newcomer, 1.0, STANDING, True, PARENT, 1)})
    for view in range(100):
        after = turns.coordinator(larger, SCOPE, view)
        assert after in (newcomer, turns.coordinator(table, SCOPE, view))


voters = st.lists(st.tuples(st.booleans(), st.integers(0, 40)), min_size=1, max_size=8)


@given(voters, st.integers(1, 45))
def test_no_benched_or_unreachable_voter_coordinates_while_another_can(rows: list[tuple[bool, int]], view: int) -> None:
    names, table = peers(len(rows)), founders(len(rows))
    for each, (direct, benched) in zip(names, rows, strict=True):
        table = changed(table, [each], direct=direct, benched=benched)
    able = [each for each, (direct, benched) in zip(names, rows, strict=True) if direct and benched < view]
    expected = max(able or names, key=lambda each: place(b"turn", view, each))
    assert turns.coordinator(table, SCOPE, view) == expected


def test_a_failed_turn_sits_out_exactly_sixteen_views() -> None:
    table = founders(3)
    who = turns.coordinator(table, SCOPE, 100)
    failed = turns.failed_turns(table, SCOPE, range(100, 101))
    assert failed == ((who, 100),)
    after = advance(table, Turnover(PARENT, 1, None, failed=failed), probation=0)
    free = [view for view in range(101, 400) if turns.coordinator(table, SCOPE, view) == who]
    assert any(view <= 116 for view in free), "else this test shows nothing"
    found = [view for view in range(101, 400) if turns.coordinator(after, SCOPE, view) == who]
    assert found == [view for view in free if view > 116]


@given(st.integers(1, 9), st.integers(0, 50), st.integers(0, 40))
def test_every_failed_view_strikes_and_those_before_the_last_16_change_nothing(
    count: int, view: int, failed: int
) -> None:
    table, views = founders(count), range(view + 1, view + 1 + failed)
    every = tuple((turns.coordinator(table, SCOPE, each), each) for each in views)
    short = turns.failed_turns(table, SCOPE, views)
    assert short == every[-16:]
    one, other = (advance(table, Turnover(PARENT, 1, None, failed=each), probation=0) for each in (every, short))
    for later in range(views.stop + 1, views.stop + 30):
        assert turns.coordinator(one, SCOPE, later) == turns.coordinator(other, SCOPE, later)


# --- reducers --------------------------------------------------------------------------------------


def test_reducers_stand_can_be_dialled_and_are_the_first_sixteen_seats() -> None:
    table = founders(40)
    direct = {each: number % 2 == 0 for number, each in enumerate(peers(40))} | dict.fromkeys(peers(3, 90), True)
    ranked = sorted((each for each in peers(40) if direct[each]), key=lambda each: place(b"seat", 5, each))
    assert turns.seats(table, SCOPE, 5, [each for each in peers(40) if direct[each]]) == ranked[::-1]
    assert turns.reducers(table, SCOPE, 5, direct) == sorted(ranked[-16:])
    assert turns.reducers(table, SCOPE, 6, direct) != turns.reducers(table, SCOPE, 5, direct), "seats go round"
    assert turns.reducers(table, SCOPE, 5, dict.fromkeys(peers(2), True)) == peers(2)


def test_without_anybody_to_dial_the_standing_of_the_roster_reduce_else_all_voters() -> None:
    table = changed(founders(4), peers(4)[:1], state=AWAY)
    assert turns.reducers(table, SCOPE, 5, dict.fromkeys(peers(4), False)) == peers(4)[1:]
    away = {peers(4)[0]: True, peers(4)[1]: False}
    assert turns.reducers(table, SCOPE, 5, away) == peers(4)[1:2], "who is away reduces nothing, who is absent neither"
    assert turns.reducers(table, SCOPE, 5, {peers(4)[0]: True}) == peers(4)[1:]


def test_who_was_put_out_reduces_nothing_for_16_rounds_unless_nobody_else_can() -> None:
    names = peers(4)
    table = advance(founders(4), Turnover(PARENT, 7, None, out=(names[0],)), probation=0)
    direct = dict.fromkeys(names, True)
    for round_number in range(8, 24):
        assert turns.reducers(table, SCOPE, round_number, direct) == names[1:]
    assert turns.reducers(table, SCOPE, 24, direct) == names
    assert turns.reducers(table, SCOPE, 8, {**dict.fromkeys(names, False), names[0]: True}) == names[:1]


# --- owners ----------------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from(peers(16)), st.integers(0, 1 << 32), min_size=1))
def test_tickets_are_twice_the_uplink_over_the_median_between_one_and_four(up: dict[PeerId, int]) -> None:
    known = sorted(value for value in up.values() if value)
    found = turns.tickets(up)
    assert set(found) == set(up)
    for each, claim in up.items():
        if not claim:
            assert found[each] == 2
            continue
        median = known[(len(known) - 1) // 2]
        assert found[each] == min(4, max(1, math.floor(Fraction(2 * claim, median) + Fraction(1, 2))))


@pytest.mark.parametrize(("claim", "lots"), [(1 << 32, 4), (1, 1), (0, 2), (749, 1), (750, 2), (1250, 3), (1750, 4)])
def test_no_claim_gains_more_than_four_tickets(claim: int, lots: int) -> None:
    honest = dict.fromkeys(peers(5), 1000)
    assert turns.tickets({**honest, peers(1)[0]: claim}) == {**dict.fromkeys(peers(5), 2), peers(1)[0]: lots}


def draw(commits: list[Hash], lots: dict[PeerId, int], part: int) -> PeerId:
    """Largest hash of parent, commits, part, id and ticket."""
    seed = hashed(b"owner", PARENT, *commits)
    number = part.to_bytes(8, "big")
    tickets = [(each, lot.to_bytes(8, "big")) for each, count in lots.items() for lot in range(1, count + 1)]
    return max(tickets, key=lambda ticket: hashed(seed, number, ticket[0].encode(), ticket[1]))[0]


@settings(max_examples=25)
@given(st.dictionaries(st.sampled_from(peers(8)), st.integers(1, 4), min_size=1), st.integers(0, 3))
def test_an_owner_has_the_largest_hash_of_its_lots(lots: dict[PeerId, int], count: int) -> None:
    commits = [Hash(bytes([number]) * 32) for number in range(count)]
    assert turns.owners(PARENT, commits, lots, 20) == [draw(commits, lots, part) for part in range(20)]


def test_parts_spread_by_tickets_and_move_only_where_they_must() -> None:
    commits = [Hash(b"c" * 32)]
    lots = dict(zip(peers(4), (1, 2, 2, 4), strict=True))
    before = turns.owners(PARENT, commits, lots, 1800)
    counts = Counter(before)
    for each, lot in lots.items():
        expected = 1800 * lot / 9
        assert abs(counts[each] - expected) < 5 * math.sqrt(expected)
    gone = peers(4)[2]
    after = turns.owners(PARENT, commits, {each: lot for each, lot in lots.items() if each != gone}, 1800)
    assert all(one == other for one, other in zip(before, after, strict=True) if one != gone)
    assert gone not in after
    # A contiguous stretch belongs to nobody: neighbours are drawn apart (redteam.md 27).
    assert all(len(set(before[start : start + 30])) > 1 for start in range(0, 1800, 30))
    assert turns.owners(PARENT, [Hash(b"d" * 32)], lots, 100) != before[:100], "nobody knows owners before the commits"
