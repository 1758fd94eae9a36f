"""Members, quorums, turns and owners against what protocol.md 5.1 and 5.5 say of them."""

from __future__ import annotations

import math
import struct
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import turns
from protocols.canonical import pack, unpack
from protocols.ids import Hash, PeerId, digest, peer_id
from protocols.statements import Scope
from protocols.table import NEW, STANDING, Member, Table, advance, genesis, table_from_wire

SCOPE = Scope(b"r" * 32, "model")
ZERO = Hash(b"0" * 32)
PARENT = Hash(b"p" * 32)


def peers(count: int, start: int = 0) -> list[PeerId]:
    return [peer_id(digest(struct.pack("<Q", number))) for number in range(start, start + count)]


def founders(count: int) -> Table:
    return genesis(peers(count), ZERO)


def standing(table: Table) -> set[PeerId]:
    return {each for each in table.members if table.stands(each)}


# --- quorums ---------------------------------------------------------------------------------------


@given(st.integers(1, 70), st.data())
def test_a_quorum_is_more_than_two_thirds_and_a_third_more_than_one(count: int, data: st.DataObject) -> None:
    table = founders(count)
    some = data.draw(st.integers(0, count))
    chosen = peers(count)[:some] + peers(5, 1000)
    assert table.is_quorum(chosen) == (Fraction(some, count) > Fraction(2, 3))
    assert table.is_third(chosen) == (Fraction(some, count) > Fraction(1, 3))
    assert table.is_quorum(chosen * 2) == table.is_quorum(chosen), "nobody counts twice"


@pytest.mark.parametrize("count", [3, 6, 9, 30, 63, 300])
def test_exactly_two_thirds_is_no_quorum_and_exactly_one_no_third(count: int) -> None:
    table, all_ = founders(count), peers(count)
    assert not table.is_quorum(all_[: 2 * count // 3])
    assert table.is_quorum(all_[: 2 * count // 3 + 1])
    assert not table.is_third(all_[: count // 3])
    assert table.is_third(all_[: count // 3 + 1])


@pytest.mark.parametrize("unit", [0.1, 0.7, 1 / 3, 1e-9, 1e9 + 0.1])
@pytest.mark.parametrize("count", [3, 6, 9])
def test_weights_that_binary_fractions_miss_do_not_make_a_quorum(unit: float, count: int) -> None:
    """Three times two of three 0.1s is 0.6000000000000001: rounding must not make more than 2/3 of exactly 2/3."""
    members = {each: replace(member, weight=unit) for each, member in founders(count).members.items()}
    table, all_ = Table(members), peers(count)
    assert not table.is_quorum(all_[: 2 * count // 3])
    assert table.is_quorum(all_[: 2 * count // 3 + 1])
    assert not table.is_third(all_[: count // 3])
    assert table.is_third(all_[: count // 3 + 1])


def test_two_quorums_share_more_than_a_third_of_the_weight() -> None:
    for count in (1, 2, 3, 4, 5, 6, 7, 10, 16, 31, 64):
        table = founders(count)
        least = next(some for some in range(count + 1) if table.is_quorum(peers(count)[:some]))
        assert Fraction(2 * least - count, count) > Fraction(1, 3)


def test_those_without_standing_have_no_weight() -> None:
    table = founders(3)
    stranger = peers(1, 99)[0]
    table = Table({**table.members, stranger: Member(stranger, 5.0, NEW, True, PARENT, 1)})
    assert table.weigh([stranger, *peers(2)]) == 2.0
    assert set(table.voters) == set(peers(3))
    assert not Table({}).is_quorum([stranger])


# --- growth ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("probation", [0, 1, 2, 8])
def test_a_newcomer_stands_after_its_probation(probation: int) -> None:
    table, newcomer = founders(3), peers(1, 50)[0]
    everybody = dict.fromkeys([*peers(3), newcomer], True)
    first = PARENT
    for number in range(probation + 1):
        assert not table.stands(newcomer)
        table = advance(table, Hash(bytes([number]) * 32) if number else first, everybody, probation=probation)
        assert table.members[newcomer].sealed == number + 1
        assert table.members[newcomer].admitted == first, "admitted by its first seal, for ever"
    assert table.stands(newcomer)
    assert table.voters[newcomer] == 1.0
    assert [table.members[each].sealed for each in peers(3)] == [probation + 1] * 3


def test_rounds_without_a_commit_do_not_count() -> None:
    table, newcomer = founders(2), peers(1, 50)[0]
    for present in (True, False, False, True):
        committed = dict.fromkeys([*peers(2), *([newcomer] if present else [])], True)
        table = advance(table, PARENT, committed, probation=1)
    assert (table.members[newcomer].sealed, table.stands(newcomer)) == (2, True)


@pytest.mark.parametrize(("voters", "room"), [(1, 1), (4, 1), (15, 1), (16, 1), (31, 1), (32, 2), (48, 3)])
def test_at_most_a_sixteenth_or_one_gains_standing_in_one_seal(voters: int, room: int) -> None:
    table, newcomers = founders(voters), sorted(peers(8, 500))
    committed = dict.fromkeys([*peers(voters), *newcomers], True)
    after = advance(table, PARENT, committed, probation=0)
    assert standing(after) - standing(table) == set(newcomers[:room]), "in order of ids"
    again = advance(after, Hash(b"q" * 32), committed, probation=0)
    more = max(1, (voters + room) // 16)
    assert standing(again) - standing(after) == set(newcomers[room : room + more])


@pytest.mark.parametrize(("voters", "room"), [(62, 2), (63, 1), (64, 0)])
def test_at_most_64_stand(voters: int, room: int) -> None:
    """A roster has no more rows, and nobody may be in standing that it cannot hold."""
    table, newcomers = founders(voters), sorted(peers(8, 500))
    after = advance(table, PARENT, dict.fromkeys([*peers(voters), *newcomers], True), probation=0)
    assert standing(after) - standing(table) == set(newcomers[:room])


@settings(max_examples=30)
@given(st.sets(st.integers(0, 30), max_size=12), st.integers(0, 2), st.randoms())
def test_advance_is_a_pure_function_whatever_the_order(numbers: set[int], probation: int, random: object) -> None:
    table = founders(8)
    before = pack(table.to_wire())
    committed = {each: index % 2 == 0 for index, each in enumerate(peers(31)) if index in numbers}
    items = list(committed.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    one = advance(table, PARENT, committed, probation=probation)
    other = advance(Table(dict(reversed(list(table.members.items())))), PARENT, dict(items), probation=probation)
    assert one.root == other.root
    assert pack(table.to_wire()) == before, "the old table stays"
    assert all(one.members[each].direct == claim for each, claim in committed.items())
    assert set(one.members) == set(table.members) | set(committed)


def test_the_table_comes_back_from_the_wire_and_every_field_is_in_its_root() -> None:
    table = advance(founders(3), PARENT, dict.fromkeys([*peers(3), *peers(2, 50)], False), probation=1)
    assert table_from_wire(unpack(pack(table.to_wire()))).root == table.root
    who = peers(1)[0]
    roots = {table.root}
    for change in (
        {"weight": 2.0}, {"weight": -1.0}, {"state": NEW}, {"direct": True},
        {"admitted": PARENT}, {"sealed": 7}, {"peer": peers(1, 77)[0]},
    ):  # fmt: skip
        roots.add(Table({**table.members, who: replace(table.members[who], **change)}).root)
    assert len(roots) == 8
    row = table.members[who].to_wire()
    wrongs: list[object] = [[1], {}, [{**row, "more": 1}], [{"peer": who}], None]
    wrongs += [[{**row, "weight": weight}] for weight in (-1.0, 1e300, float("inf"), float("nan"), 1)]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="is not|has missing"):
            table_from_wire(wrong)


# --- turns -----------------------------------------------------------------------------------------


def test_the_turn_is_the_largest_hash_of_run_cell_view_admission_and_id() -> None:
    table = founders(5)

    def key(each: str, view: int) -> bytes:
        fields = (b"turn", b"r" * 32, b"model", view.to_bytes(8, "big"), ZERO, each.encode())
        return blake3(b"".join(struct.pack("<Q", len(field)) + field for field in fields)).digest()

    for view in range(50):
        assert turns.coordinator(table, SCOPE, view) == max(peers(5), key=lambda each: key(each, view))


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
    """Weight, sealed commits, who else is there but cannot be coordinator: none may be ground (redteam.md 13)."""
    table = founders(4)
    changed = {each: replace(member, weight=3.5, sealed=99) for each, member in table.members.items()}
    strangers = {each: Member(each, 0.0, NEW, True, PARENT, 3) for each in peers(20, 50)}
    for view in range(100):
        assert turns.coordinator(Table({**strangers, **changed}), SCOPE, view) == turns.coordinator(table, SCOPE, view)


def test_a_new_voter_takes_turns_only_from_those_it_beats() -> None:
    table, newcomer = founders(5), peers(1, 50)[0]
    larger = Table({**table.members, newcomer: Member(newcomer, 1.0, STANDING, True, PARENT, 1)})
    for view in range(100):
        after = turns.coordinator(larger, SCOPE, view)
        assert after in (newcomer, turns.coordinator(table, SCOPE, view))


def test_only_voters_that_can_be_dialled_coordinate_while_there_are_any() -> None:
    members = dict(founders(4).members)
    for each in peers(4)[1:]:
        members[each] = replace(members[each], direct=False)
    assert {turns.coordinator(Table(members), SCOPE, view) for view in range(50)} == {peers(1)[0]}
    members[peers(1)[0]] = replace(members[peers(1)[0]], direct=False)
    assert {turns.coordinator(Table(members), SCOPE, view) for view in range(50)} == set(peers(4))


# --- owners ----------------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from(peers(16)), st.integers(0, 1 << 32), min_size=1))
def test_tickets_are_twice_the_uplink_over_the_median_between_one_and_four(up: dict[PeerId, int]) -> None:
    known = sorted(value for value in up.values() if value)
    for each, found in turns.tickets(up).items():
        if not up[each]:
            assert found == 2
            continue
        median = known[(len(known) - 1) // 2]
        assert found == min(4, max(1, math.floor(Fraction(2 * up[each], median) + Fraction(1, 2))))


def test_an_absurd_uplink_claim_gains_no_more_than_four_tickets() -> None:
    honest = dict.fromkeys(peers(5), 1000)
    assert turns.tickets({**honest, peers(1)[0]: 1 << 32}) == {**dict.fromkeys(peers(5), 2), peers(1)[0]: 4}
    assert turns.tickets({**honest, peers(1)[0]: 1}) == {**dict.fromkeys(peers(5), 2), peers(1)[0]: 1}


def test_an_owner_has_the_largest_hash_of_its_lots() -> None:
    commits = [Hash(bytes([number]) * 32) for number in range(3)]
    lots = {each: 1 + number for number, each in enumerate(peers(4))}
    seed = digest(b"owner", PARENT, *commits)

    def best(part: int, each: str) -> bytes:
        number = part.to_bytes(8, "big")
        draws = range(1, lots[PeerId(each)] + 1)
        return max(digest(seed, number, each.encode(), lot.to_bytes(8, "big")) for lot in draws)

    expected = [max(peers(4), key=lambda each: best(part, each)) for part in range(40)]
    assert turns.owners(PARENT, commits, lots, 40) == expected


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


def test_reducers_stand_can_be_dialled_and_are_at_most_sixteen() -> None:
    table = founders(40)
    direct = {each: number % 2 == 0 for number, each in enumerate(peers(40))} | dict.fromkeys(peers(3, 90), True)
    found = turns.reducers(table, SCOPE, 5, direct)
    assert found == sorted(turns.seats(table, SCOPE, 5, [each for each in peers(40) if direct[each]])[:16])
    assert turns.reducers(table, SCOPE, 5, dict.fromkeys(peers(2), True)) == sorted(peers(2))
    assert turns.reducers(founders(3), SCOPE, 5, dict.fromkeys(peers(3), False)) == sorted(peers(3))
