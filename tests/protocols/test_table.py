"""Members, quorums and finality against exact fractions (protocol.md 5.1, 5.9)."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.canonical import pack, unpack
from protocols.table import AWAY, LOST, NEW, STANDING, Table, Turnover, advance, table_from_wire
from tests.protocols.tables import PARENT, changed, founders, peers, weighted

# --- quorums ---------------------------------------------------------------------------------------


@given(st.integers(1, 70), st.data())
def test_a_quorum_is_more_than_two_thirds_and_a_third_more_than_one(count: int, data: st.DataObject) -> None:
    table = founders(count)
    some = data.draw(st.integers(0, count))
    chosen = peers(count)[:some] + peers(5, 1000)
    assert table.is_quorum(chosen) == (Fraction(some, count) > Fraction(2, 3))
    assert table.is_third(chosen) == (Fraction(some, count) > Fraction(1, 3))
    assert table.is_half(chosen) == (Fraction(some, count) >= Fraction(1, 2))
    assert table.is_quorum(chosen * 2) == table.is_quorum(chosen), "nobody counts twice"


@pytest.mark.parametrize("unit", [0.1, 0.7, 1 / 3, 1e-9, 1e9 + 0.1])
@pytest.mark.parametrize("count", [3, 6, 9, 30])
def test_exactly_two_thirds_is_no_quorum_and_exactly_one_no_third(unit: float, count: int) -> None:
    """Three times two of three 0.1s is 0.6000000000000001: rounding must not make more than 2/3 of exactly 2/3."""
    table, all_ = weighted([unit] * count), peers(count)
    assert not table.is_quorum(all_[: 2 * count // 3])
    assert table.is_quorum(all_[: 2 * count // 3 + 1])
    assert not table.is_third(all_[: count // 3])
    assert table.is_third(all_[: count // 3 + 1])


weights = st.sampled_from([0.1, 0.2, 0.3, 0.7, 1.0, 1 / 3, 2.5, 1e-9, 2.0**64])


@given(st.lists(st.tuples(weights, st.booleans()), min_size=1, max_size=12))
def test_quorum_third_and_half_are_exact_for_any_weights(rows: list[tuple[float, bool]]) -> None:
    table, names = weighted([weight for weight, _ in rows]), peers(len(rows))
    whole = sum(Fraction(weight) for weight, _ in rows)
    some = sum((Fraction(weight) for weight, chosen in rows if chosen), Fraction(0))
    chosen = [name for name, (_, chosen) in zip(names, rows, strict=True) if chosen]
    assert table.is_quorum(chosen) == (3 * some > 2 * whole)
    assert table.is_third(chosen) == (3 * some > whole)
    assert table.is_half(chosen) == (2 * some >= whole)
    assert table.is_third(chosen[:1], of=chosen) == (3 * table.weigh(chosen[:1]) > table.weigh(chosen) > 0)


def test_two_quorums_share_more_than_a_third_of_the_weight() -> None:
    for count in (1, 2, 3, 4, 5, 6, 7, 10, 16, 31, 64, 96):
        table = founders(count)
        least = next(some for some in range(count + 1) if table.is_quorum(peers(count)[:some]))
        assert Fraction(2 * least - count, count) > Fraction(1, 3)


@pytest.mark.parametrize("state", [NEW, AWAY, LOST])
def test_those_without_standing_have_no_vote(state: str) -> None:
    table, other = changed(founders(4), peers(4)[3:], weight=5.0, state=state), peers(4)[3]
    assert table.weigh([other, *peers(4)[:2]]) == 2.0
    assert set(table.voters) == set(peers(4)[:3])
    assert not table.is_third([other])
    assert not table.is_quorum([other, *peers(4)[:2]])
    assert not Table({}).is_quorum([other])


# --- finality --------------------------------------------------------------------------------------


def test_lost_members_count_for_finality_until_they_fade() -> None:
    """6 members, 3 lost in round 10: 3 of 3 voters are 3 of 6, then of 4.5, of 3.75, and so on."""
    names = peers(6)
    table = founders(6)
    for each in names[3:]:
        table = changed(table, [each], state=LOST, since=10)
    left, gone = names[:3], names[3:]
    assert table.is_quorum(left)
    assert not table.holds(left, 10)
    assert not table.holds([*left, gone[0]], 10), "4 of 6 is exactly two thirds"
    assert table.holds([*left, *gone[:2]], 10)
    assert not table.holds(left, 10 + 511)
    assert not table.holds(left, 10 + 512), "3 of 4.5 is exactly two thirds"
    assert table.holds([*left, gone[0]], 10 + 512)
    assert not table.holds(left, 10 + 1023)
    assert table.holds(left, 10 + 1024), "3 of 3.75"
    assert table.lasting(names, 10) == 6.0
    assert table.lasting([*names, *names], 10 + 512) == 4.5
    assert table.lasting(gone, 10 + 1024) == 0.75
    assert table.lasting(gone, 5) == 3.0, "a fork that is older than the loss"
    assert table.lasting(gone, 1 << 40) >= 0


def test_away_members_do_not_count_for_finality() -> None:
    names = peers(6)
    table = changed(founders(6), names[4:], state=AWAY)
    assert not table.holds([*names[:2], *names[4:]], 1)
    assert table.holds(names[:3], 1)


@given(st.lists(st.tuples(weights, st.booleans(), st.sampled_from([STANDING, LOST, AWAY, NEW]), st.integers(0, 3000))))
def test_finality_is_exact(rows: list[tuple[float, bool, str, int]]) -> None:
    now = 3000
    table, whole, some, chosen = weighted([row[0] for row in rows]), Fraction(0), Fraction(0), []
    for name, (weight, picked, state, since) in zip(peers(len(rows)), rows, strict=True):
        table = changed(table, [name], state=state, since=since)
        half_lives = (now - since) // 512 if state == LOST else 0
        counted = Fraction(weight) / 2**half_lives if state in (STANDING, LOST) else Fraction(0)
        whole += counted
        some += counted if picked else 0
        chosen += [name] if picked else []
    assert table.holds(chosen, now) == (3 * some > 2 * whole)


# --- the wire --------------------------------------------------------------------------------------


def test_the_table_comes_back_from_the_wire_and_every_field_is_in_its_root() -> None:
    turn = Turnover(PARENT, 1, dict.fromkeys([*peers(3), *peers(2, 50)], (False, True)))
    table = advance(founders(3), turn, probation=1)
    assert table_from_wire(unpack(pack(table.to_wire()))) == table
    who = peers(1)[0]
    roots = {table.root}
    changes: tuple[dict[str, Any], ...] = (
        {"weight": 2.0}, {"weight": -1.0}, {"state": NEW}, {"direct": True}, {"admitted": PARENT}, {"sealed": 7},
        {"peer": peers(1, 77)[0]}, {"missed": 3}, {"streak": 3}, {"since": 3}, {"benched": 3}, {"rested": 3},
    )  # fmt: skip
    for change in changes:
        roots.add(changed(table, [who], **change).root)
    assert len(roots) == 1 + len(changes)
    row = table.members[who].to_wire()
    wrongs: list[object] = [[1], {}, [{**row, "more": 1}], [{"peer": who}], None, [row] * 4097]
    wrongs += [[{**row, "weight": weight}] for weight in (-1.0, 1e300, float("inf"), float("nan"), 1)]
    wrongs += [[{**row, name: -1}] for name in ("missed", "streak", "since", "benched", "rested", "sealed")]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="is not|has missing"):
            table_from_wire(wrong)
