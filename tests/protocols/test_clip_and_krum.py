"""CenteredClip and Multi-Krum against references that see explicit rows and counts, never a Gram matrix or a weight."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import rules
from protocols.rules.clipping import centered_clip, distances_to
from protocols.rules.gram_space import upper_quantile
from protocols.rules.krum import levelled, multi_krum, scores
from tests.protocols.test_rules import liars_among_ten

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Points = NDArray[np.float64]
    Rule = Callable[[list[list[float]], list[float], float], list[float]]

THIRD = 1 / 3
BOTH = pytest.mark.parametrize("rule", [centered_clip, multi_krum])


def gram_of(x: Points) -> list[list[float]]:
    return [[math.fsum(float(p) * float(q) for p, q in zip(a, b, strict=True)) for b in x] for a in x]


def random_rows(n: int, d: int, seed: int) -> Points:
    rng = np.random.default_rng(seed)
    spread = np.exp(rng.normal(0, 0.7, (n, 1)))
    rows: Points = (rng.standard_normal(d) + rng.standard_normal((n, d))) * spread
    return rows


def reference_clip(x: Points, f: int) -> Points:
    """From 0, 64 times: everybody pulls, nobody harder than the (f + 1)-th farthest."""
    v: Points = np.zeros(x.shape[1])
    for _ in range(64):
        distances = np.linalg.norm(x - v, axis=1)
        radius = np.sort(distances)[::-1][f]
        pulls = [
            row - v if far <= radius else (row - v) * (radius / far) for row, far in zip(x, distances, strict=True)
        ]
        v = v + np.mean(pulls, axis=0)
    return v


def reference_krum(x: Points, f: int) -> Points:
    """Mean of the n − f rows with the smallest sums of squared distances to the n − f nearest, themselves included."""
    kept = len(x) - f
    squares = ((x[:, None, :] - x[None, :, :]) ** 2).sum(axis=2)
    found = np.sort(squares, axis=1)[:, :kept].sum(axis=1)
    mean: Points = x[np.argsort(found, kind="stable")[:kept]].mean(axis=0)
    return mean


REFERENCES = pytest.mark.parametrize(
    ("rule", "reference"), [(centered_clip, reference_clip), (multi_krum, reference_krum)]
)


@REFERENCES
@pytest.mark.parametrize("n", [4, 5, 7, 10, 16])
@pytest.mark.parametrize("f", [0, 1, 2, 4])
def test_equal_weights_are_counts(rule: Rule, reference: Callable[[Points, int], Points], n: int, f: int) -> None:
    if 2 * f >= n:
        return
    for seed in range(3):
        x = random_rows(n, 6, 100 * n + 10 * f + seed)
        got = np.array(rule(gram_of(x), [1.0] * n, f / n)) @ x
        assert np.abs(got - reference(x, f)).max() < 1e-9 * np.abs(x).max()


@REFERENCES
@pytest.mark.parametrize("seed", range(20))
def test_weights_are_copies(rule: Rule, reference: Callable[[Points, int], Points], seed: int) -> None:
    """Three copies a unit, so that a third is whole."""
    rng = np.random.default_rng(seed)
    x = random_rows(6, 4, seed)
    units = rng.integers(1, 4, 6)
    copies = np.repeat(x, 3 * units, axis=0)
    got = np.array(rule(gram_of(x), [float(unit) for unit in units], THIRD)) @ x
    assert np.abs(got - reference(copies, len(copies) // 3)).max() < 1e-9 * np.abs(x).max()


def test_krum_by_hand() -> None:
    """Points 0, 1, 2, 10. A quarter may lie: scores 5, 2, 5, 145 over three neighbours, so 10 is left out."""
    x = np.array([[0.0], [1.0], [2.0], [10.0]])
    assert scores(gram_of(x), [1.0] * 4, share=0.75) == [5.0, 2.0, 5.0, 145.0]
    assert rules.weights(np.array(gram_of(x)), [1.0] * 4, rule="multi-krum", tolerated=0.25) == (
        *(float(np.float32(1 / 3)),) * 3, 0.0,
    )  # fmt: skip
    # A third: 8/3 of the weight. Row 0 sees itself, 1 and two thirds of 2; row 1 five sixths of 0 and of 2.
    third = scores(gram_of(x), [1.0] * 4, share=1 - THIRD)
    assert third == pytest.approx([1 + 4 * 2 / 3, 5 / 3, 1 + 4 * 2 / 3, 64 + 81 * 2 / 3])
    # Row 1 whole, rows 0 and 2 at the same score five sixths each.
    assert multi_krum(gram_of(x), [1.0] * 4, THIRD) == pytest.approx([0.3125, 0.375, 0.3125, 0.0])


def test_clipping_by_hand() -> None:
    """Points 1, 1, 1, 9, a quarter may lie: the radius is 1, then 0, and 9 pulls once, by one ninth of itself."""
    x = np.array([[1.0], [1.0], [1.0], [9.0]])
    found = centered_clip(gram_of(x), [1.0] * 4, 0.25)
    assert np.array(found) @ x == pytest.approx(1.0)
    assert found == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])
    assert rules.weights(np.array(gram_of(x)), [1.0] * 4, rule="centered-clip", tolerated=0.25)[3] == 0.0


@pytest.mark.parametrize("n", [4, 9, 15])
@pytest.mark.parametrize("seed", range(4))
def test_clipping_ends_where_all_pulls_cancel(n: int, seed: int) -> None:
    x, a = random_rows(n, 6, seed), [1.0 + 0.3 * (i % 4) for i in range(n)]
    found = centered_clip(gram_of(x), a, THIRD)
    v = np.array(found) @ x
    distances = np.linalg.norm(x - v, axis=1)
    assert distances_to(gram_of(x), found) == pytest.approx(distances.tolist())
    radius = upper_quantile(distances.tolist(), a, share=THIRD)
    pulls = [weight * min(1.0, radius / far) * (row - v) for weight, far, row in zip(a, distances, x, strict=True)]
    assert np.abs(np.sum(pulls, axis=0)).max() < 1e-6 * np.abs(x).max()


@BOTH
def test_tolerating_nobody_is_the_mean(rule: Rule) -> None:
    x = random_rows(7, 5, 1)
    a = [1.0, 2.0, 0.5, 1.0, 3.0, 1.0, 1.5]
    assert rule(gram_of(x), a, 0.0) == pytest.approx((np.array(a) / sum(a)).tolist(), rel=1e-9)


coordinates = st.integers(-20, 20).map(float)


@BOTH
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_splitting_a_row_changes_nothing(rule: Rule, data: st.DataObject) -> None:
    n = data.draw(st.integers(4, 8))
    x = [data.draw(st.lists(coordinates, min_size=3, max_size=3)) for _ in range(n)]
    a = [data.draw(st.integers(1, 6)) / 2 for _ in range(n)]
    victim = data.draw(st.integers(0, n - 1))
    pieces = [data.draw(st.integers(1, 5)) for _ in range(data.draw(st.integers(2, 5)))]
    whole = rule(gram_of(np.array(x)), a, THIRD)
    rows = [(i, a[i]) for i in range(n) if i != victim]
    for piece in pieces:
        rows.insert(data.draw(st.integers(0, len(rows))), (victim, a[victim] * piece / math.fsum(pieces)))
    split = rule(gram_of(np.array([x[i] for i, _ in rows])), [share for _, share in rows], THIRD)
    summed = [math.fsum(w for w, (owner, _) in zip(split, rows, strict=True) if owner == i) for i in range(n)]
    # Equal rows may share their weight in any way: what counts is where it ends.
    assert np.array(summed) @ np.array(x) == pytest.approx(np.array(whole) @ np.array(x), abs=1e-6)
    assert math.fsum(summed) == pytest.approx(math.fsum(whole), abs=1e-9)


@BOTH
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_neither_order_nor_units_matter(rule: Rule, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 8))
    x = np.array([data.draw(st.lists(coordinates, min_size=3, max_size=3)) for _ in range(n)])
    a = [float(data.draw(st.integers(1, 6))) for _ in range(n)]
    order = data.draw(st.permutations(range(n)))
    straight = rule(gram_of(x), a, THIRD)
    moved = rule(gram_of(x[order]), [a[i] for i in order], THIRD)
    assert np.array(moved) @ x[order] == pytest.approx(np.array(straight) @ x, abs=1e-6)
    assert rule(gram_of(x * 2.0**40), a, THIRD) == straight
    assert rule(gram_of(x), [weight * 4 for weight in a], THIRD) == straight


@pytest.mark.parametrize("rule", ["centered-clip", "multi-krum"])
@pytest.mark.parametrize("attack", ["sign flip", "constant", "alie", "large alie", "huge"])
def test_three_liars_of_ten_do_not_carry_them_away(rule: str, attack: str) -> None:
    honest, x = liars_among_ten(attack)
    target = honest.mean(0)
    result = np.array(rules.weights(np.array(gram_of(x)), [1.0] * 10, rule=rule, tolerated=THIRD)) @ x
    spread = np.linalg.norm(honest - target, axis=1).max()
    cosine = result @ target / np.linalg.norm(result) / np.linalg.norm(target)
    assert np.linalg.norm(result - target) < spread
    assert cosine > 0.7


@BOTH
def test_fewer_than_four_rows_are_clipped_and_averaged_as_by_the_default(rule: Rule) -> None:
    for n in (1, 2, 3):
        x = random_rows(n, 4, n)
        name = "centered-clip" if rule is centered_clip else "multi-krum"
        own, default = (
            rules.weights(np.array(gram_of(x)), [1.0] * n, rule=each, tolerated=THIRD) for each in (name, "default")
        )
        assert own == default


def test_rounding_does_not_decide_between_scores() -> None:
    assert levelled([3.0, 1.0, 3.0 * (1 + 1e-12), 0.0]) == [3.0, 1.0, 3.0, 0.0]
    assert levelled([3.0, 3.0 * (1 + 1e-6)]) == [3.0, 3.0 * (1 + 1e-6)]


@pytest.mark.parametrize("rule", ["centered-clip", "multi-krum"])
def test_64_rows_take_less_than_half_a_second(rule: str) -> None:
    x = random_rows(64, 70, 0)
    gram = x @ x.T
    start = time.process_time()
    found = rules.weights(gram, [1.0] * 64, rule=rule, tolerated=THIRD)
    assert time.process_time() - start < 0.5
    assert math.fsum(found) > 0.5
