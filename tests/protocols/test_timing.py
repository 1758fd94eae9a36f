"""How long a round waits, against hand-worked numbers of protocol.md 5.5, 5.7 and 5.10."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.round.timing import NOMINAL_UP, Timing, exchange_time, reduce_time, stretch

TIMING = Timing()
MB = 1_000_000


@pytest.mark.parametrize(
    ("failed", "factor"), [(0, 1.0), (1, 1.5), (2, 2.25), (3, 3.375), (4, 5.0), (50, 5.0), (1751, 5.0), (1 << 40, 5.0)]
)
def test_allowances_grow_by_half_for_each_failed_view_up_to_five_times(failed: int, factor: float) -> None:
    """Also after weeks alone: 1.5 ** 1751 is beyond the doubles."""
    assert stretch(TIMING, failed) == factor


def test_a_swarm_of_virtual_time_may_choose_its_own_growth() -> None:
    assert stretch(Timing(growth=2.0, most=16.0), 3) == 8.0
    assert stretch(Timing(growth=1.0), 1000) == 1.0


@pytest.mark.parametrize(
    ("size", "ups", "seconds"),
    [
        (100 * MB, [(2500, 1.0)] * 4, 80.0),
        (10 * MB, [(2500, 1.0)] * 4, 20.0),
        (100 * MB, [(1000, 1.0)] * 1 + [(2500, 1.0)] * 3, 200.0),
        (100 * MB, [(1, 1.0)] + [(2500, 1.0)] * 4, 80.0),
        (100 * MB, [(1, 1.0)] * 2 + [(4000, 1.0)] * 2 + [(5000, 1.0)] * 4, 600.0),
        (100 * MB, [(1, 1.0)] + [(4000, 1.0)] * 2 + [(5000, 1.0)] * 4, 50.0),
        (100 * MB, [(1, 1.0), (5000, 9.0)], 40.0),
        (100 * MB, [(1, 0.0)] * 9 + [(5000, 1.0)], 40.0),
        (100 * MB, [(0, 1.0)] * 3, 80.0),
        (100 * MB, [], 80.0),
    ],
)
def test_the_exchange_follows_the_lower_quartile_of_the_uplinks(
    size: int, ups: list[tuple[int, float]], seconds: float
) -> None:
    """Size 100 MB at 2,500 kB/s: 2 · 100,000 / 2,500 = 80 s."""
    assert exchange_time(TIMING, size, ups, 600.0) == pytest.approx(seconds)


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 8)), max_size=12), st.integers(0, 1 << 34),
    st.integers(0, 900),
)  # fmt: skip
def test_the_exchange_is_what_5_5_says(rows: list[tuple[int, int]], size: int, deadline: int) -> None:
    ups = [(up, weight / 4) for up, weight in rows]
    claims = sorted((up or NOMINAL_UP, Fraction(weight)) for up, weight in ups)
    whole = sum((weight for _, weight in claims), Fraction(0))
    slow = next(
        (up for up, _ in claims if 4 * sum(weight for other, weight in claims if other <= up) >= whole), NOMINAL_UP
    )
    wanted = Fraction(2 * size, 1000 * slow)
    expected = max(Fraction(20), min(wanted, Fraction(max(deadline, 20))))
    assert exchange_time(TIMING, size, ups, float(deadline)) == pytest.approx(float(expected))


def test_less_than_a_quarter_of_the_weight_cannot_slow_an_exchange() -> None:
    honest = [(2500, 1.0)] * 7
    for liars in (1, 2):
        assert exchange_time(TIMING, 100 * MB, [*honest, *[(1, 1.0)] * liars], 600.0) == pytest.approx(80.0)
    assert exchange_time(TIMING, 100 * MB, [*honest, *[(1, 1.0)] * 3], 600.0) == 600.0


@pytest.mark.parametrize(
    ("rows", "ups", "seconds"),
    [
        (10, [2500] * 4, 200.0),
        (10, [2500, 0, 2500, 0], 200.0),
        (4, [2500] * 4, 80.0),
        (1, [2500] * 4, 20.0),
        (64, [1], 600.0),
    ],
)
def test_reducing_takes_all_rows_over_all_reducers(rows: int, ups: list[int], seconds: float) -> None:
    """10 rows of 100 MB over 4 · 2,500 kB/s: 2 · 10 · 100,000 / 10,000 = 200 s."""
    assert reduce_time(TIMING, 100 * MB, rows, ups, 600.0) == pytest.approx(seconds)


def test_the_shortest_exchange_holds_against_a_shorter_deadline() -> None:
    assert exchange_time(TIMING, 1000 * MB, [(2500, 1.0)], 3.0) == 20.0
    assert reduce_time(Timing(exchange=1.0), 1000 * MB, 9, [2500], 3.0) == 3.0


def test_every_allowance_is_positive_and_the_protocols() -> None:
    assert all(getattr(TIMING, field.name) > 0 for field in fields(TIMING))
    assert (TIMING.grace, TIMING.roster, TIMING.exchange, TIMING.reduce, TIMING.certificate) == (10, 15, 20, 60, 20)
    assert (TIMING.fair, TIMING.growth, TIMING.most, TIMING.digest, TIMING.heard) == (10, 1.5, 5, 2, 60)
