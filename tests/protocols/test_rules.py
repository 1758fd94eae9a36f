"""The rules work on Gram matrices and weights; the references here on explicit vectors and counts."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from protocols import rules
from protocols.errors import ConfigError
from protocols.rules import default, gram_space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Points = NDArray[np.float64]

THIRD = 1 / 3


def gram_of(x: Points) -> list[list[float]]:
    return [[math.fsum(float(p) * float(q) for p, q in zip(a, b, strict=True)) for b in x] for a in x]


def weights_of(
    x: Points, a: list[float] | None = None, *, rule: str = "default", tolerated: float = THIRD
) -> tuple[float, ...]:
    return rules.weights(np.array(gram_of(x)), a or [1.0] * len(x), rule=rule, tolerated=tolerated)


def reference_arc(x: Points, f: int) -> Points:
    """Clip the k = floor(2 (f/n)(n − f)) longest to the (k + 1)-th longest."""
    n = len(x)
    k = 2 * f * (n - f) // n
    norms = np.linalg.norm(x, axis=1)
    limit = np.sort(norms)[::-1][k]
    return np.array([row * min(1.0, limit / norm) if norm else row for row, norm in zip(x, norms, strict=True)])


def reference_nnm(x: Points, f: int) -> Points:
    """Each row becomes the mean of the n − f rows nearest to it, itself included."""
    return np.array([x[np.argsort(np.linalg.norm(x - row, axis=1), kind="stable")[: len(x) - f]].mean(0) for row in x])


def reference_median(y: Points, smoothing: float) -> Points:
    """Minimise Σ √(‖y_i − z‖² + smoothing²) with a general optimizer."""

    def objective(z: Points) -> tuple[float, Points]:
        distances = np.sqrt(((y - z) ** 2).sum(1) + smoothing**2)
        return float(distances.sum()), ((z - y) / distances[:, None]).sum(0)

    found = minimize(objective, np.median(y, axis=0), jac=True, method="BFGS", options={"gtol": 1e-12})
    point: Points = found.x
    return point


def reference_weiszfeld(y: Points, smoothing: float) -> Points:
    """The same steps as the rule's, on explicit vectors that all count once."""
    z: Points = y.mean(0)
    for _ in range(default.ITERATIONS):
        pull = 1 / np.sqrt(((y - z) ** 2).sum(1) + smoothing**2)
        z = (pull[:, None] * y).sum(0) / pull.sum()
    return z


def random_rows(n: int, d: int, seed: int) -> Points:
    rng = np.random.default_rng(seed)
    spread = np.exp(rng.normal(0, 0.7, (n, 1)))
    rows: Points = (rng.standard_normal(d) + rng.standard_normal((n, d))) * spread
    return rows


@pytest.mark.parametrize("n", [4, 5, 6, 7, 9, 12, 16])
@pytest.mark.parametrize("f", [0, 1, 2, 3])
def test_arc_equals_the_reference(n: int, f: int) -> None:
    if 2 * f >= n:
        return
    x = random_rows(n, 6, 10 * n + f)
    norms = [math.sqrt(row @ row) for row in x]
    limit = gram_space.upper_quantile(norms, [1.0] * n, share=2 * (f / n) * (1 - f / n))
    factors = gram_space.clip_factors(norms, limit)
    assert np.abs(np.array(factors)[:, None] * x - reference_arc(x, f)).max() < 1e-9


@pytest.mark.parametrize("n", [4, 5, 6, 7, 9, 12, 16])
@pytest.mark.parametrize("f", [0, 1, 2, 3])
def test_nnm_equals_the_reference(n: int, f: int) -> None:
    if 2 * f >= n:
        return
    x = random_rows(n, 6, 10 * n + f)
    mixing = np.array(default.mix(gram_of(x), [1.0] * n, share=1 - f / n))
    assert np.abs(mixing @ x - reference_nnm(x, f)).max() < 1e-9


@pytest.mark.parametrize("seed", range(12))
def test_the_geometric_median_minimises_its_objective(seed: int) -> None:
    x = random_rows(5 + seed, 4, seed)
    smoothing = 2.0**-10 * float(np.median(np.linalg.norm(x, axis=1)))
    v = default.geometric_median(gram_of(x), [1.0] * len(x), smoothing=smoothing)
    z = np.array(v) @ x
    scale = np.linalg.norm(x, axis=1).mean()
    assert np.abs(z - reference_median(x, smoothing)).max() < 1e-6 * scale
    # The smoothing hardly moves it.
    assert np.abs(z - reference_median(x, 1e-9 * scale)).max() < 2e-3 * scale


@pytest.mark.parametrize("n", [6, 9, 12, 15])
@pytest.mark.parametrize("seed", range(3))
def test_the_default_rule_is_arc_then_nnm_then_the_median(n: int, seed: int) -> None:
    x = random_rows(n, 5, 100 * n + seed)
    f = n // 3
    clipped = reference_arc(x, f)
    limit = float(np.linalg.norm(clipped, axis=1).max())
    expected = reference_median(reference_nnm(clipped, f), 2.0**-10 * limit)
    got = np.array(default.robust(gram_of(x), [1.0] * n, THIRD)) @ x
    assert np.abs(got - expected).max() < 1e-6 * limit


@pytest.mark.parametrize("seed", range(40))
def test_weights_mean_copies(seed: int) -> None:
    """Row weights against the count-based reference on explicit copies (three a unit, so that f is whole)."""
    rng = np.random.default_rng(seed)
    x = random_rows(5, 4, seed)
    units = rng.integers(1, 4, 5)
    copies = np.repeat(x, 3 * units, axis=0)
    f = len(copies) // 3
    clipped = reference_arc(copies, f)
    limit = float(np.linalg.norm(clipped, axis=1).max())
    expected = reference_weiszfeld(reference_nnm(clipped, f), 2.0**-10 * limit)
    got = np.array(default.robust(gram_of(x), [float(unit) for unit in units], THIRD)) @ x
    assert np.abs(got - expected).max() < 1e-9 * limit


@pytest.mark.parametrize("seed", range(8))
def test_camps_of_equal_weight_end_between_them(seed: int) -> None:
    """Any point between two camps is a median: the value of the objective counts, not the place."""
    x = np.repeat(random_rows(2, 4, seed), 3, axis=0)
    smoothing = 2.0**-10 * float(np.linalg.norm(x, axis=1).min())
    z = np.array(default.geometric_median(gram_of(x), [1.0] * 6, smoothing=smoothing)) @ x
    best = 3 * np.linalg.norm(x[0] - x[3])
    assert np.linalg.norm(x - z, axis=1).sum() <= best * (1 + 1e-6)


coordinates = st.integers(-20, 20).map(float)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_splitting_a_row_changes_nothing(data: st.DataObject) -> None:
    n = data.draw(st.integers(4, 8))
    x = [data.draw(st.lists(coordinates, min_size=3, max_size=3)) for _ in range(n)]
    a = [data.draw(st.integers(1, 6)) / 2 for _ in range(n)]
    victim = data.draw(st.integers(0, n - 1))
    pieces = [data.draw(st.integers(1, 5)) for _ in range(data.draw(st.integers(2, 5)))]
    places = [data.draw(st.integers(0, n - 1)) for _ in pieces]
    whole = default.robust(gram_of(np.array(x)), a, THIRD)

    # The pieces stand anywhere among the rows.
    owners = [i for i in range(n) if i != victim]
    shares = {i: a[i] for i in owners}
    rows = [(i, shares[i]) for i in owners]
    for piece, place in zip(pieces, places, strict=True):
        rows.insert(place, (victim, a[victim] * piece / math.fsum(pieces)))
    split = default.robust(gram_of(np.array([x[i] for i, _ in rows])), [share for _, share in rows], THIRD)

    summed = [math.fsum(w for w, (owner, _) in zip(split, rows, strict=True) if owner == i) for i in range(n)]
    assert summed == pytest.approx(whole, abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_order_of_rows_does_not_matter(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 7))
    x = np.array([data.draw(st.lists(coordinates, min_size=3, max_size=3)) for _ in range(n)])
    a = [float(data.draw(st.integers(1, 6))) for _ in range(n)]
    order = data.draw(st.permutations(range(n)))
    straight = default.robust(gram_of(x), a, THIRD)
    moved = default.robust(gram_of(x[order]), [a[i] for i in order], THIRD)
    assert moved == pytest.approx([straight[i] for i in order], abs=1e-12)


def test_identities_do_not_pay() -> None:
    """Redteam hole 9: liars with a fifth of the weight send −mean; as 2 or as 16 identities it is all the same."""
    rng = np.random.default_rng(0)
    signal = rng.standard_normal(300)
    honest = signal + 0.8 * rng.standard_normal((8, 300))
    outcomes = []
    for liars in (1, 2, 4, 8, 16):
        x = np.concatenate([honest, np.repeat(-honest.mean(0, keepdims=True), liars, axis=0)])
        w = np.array(default.robust(gram_of(x), [1.0] * 8 + [2.0 / liars] * liars, THIRD))
        outcomes.append(w @ x)
    for outcome in outcomes[1:]:
        assert np.abs(outcome - outcomes[0]).max() < 1e-9
    assert outcomes[0] @ honest.mean(0) > 0.8 * honest.mean(0) @ honest.mean(0)


def liars_among_ten(attack: str) -> tuple[Points, Points]:
    rng = np.random.default_rng(1)
    honest = rng.standard_normal(2_000) + rng.standard_normal((7, 2_000))
    mean, deviation = honest.mean(0), honest.std(0)
    lie = {
        "sign flip": -10 * mean,
        "constant": 100 * np.ones(2_000),
        "alie": mean - 1.5 * deviation,
        "large alie": mean - 10 * deviation,
        "huge": 1e12 * np.ones(2_000),
    }[attack]
    return honest, np.concatenate([honest[:3], np.tile(lie, (3, 1)), honest[3:]])


@pytest.mark.parametrize("attack", ["sign flip", "constant", "alie", "large alie"])
def test_three_liars_of_ten_do_not_carry_the_robust_rule_away(attack: str) -> None:
    honest, x = liars_among_ten(attack)
    target = honest.mean(0)
    result = np.array(weights_of(x)) @ x
    spread = np.linalg.norm(honest - target, axis=1).max()
    cosine = result @ target / np.linalg.norm(result) / np.linalg.norm(target)
    assert np.linalg.norm(result - target) < spread
    assert cosine > 0.7
    if attack != "alie":  # which is made to look like an honest row, and moves the mean no further than that
        average = np.array(weights_of(x, rule="mean")) @ x
        assert np.linalg.norm(average - target) > 2 * spread


def test_without_liars_the_robust_rule_is_close_to_the_mean() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(1_000) + rng.standard_normal((10, 1_000))
    robust, average = (np.array(weights_of(x, rule=rule)) @ x for rule in ("default", "mean"))
    assert np.linalg.norm(robust - average) < 0.2 * np.linalg.norm(average)


def test_mean_weighs_rows_by_their_weight() -> None:
    x = random_rows(4, 3, 0)
    assert weights_of(x, [1.0, 2.0, 0.0, 5.0], rule="mean") == (0.125, 0.25, 0.0, 0.625)


def test_one_row_is_itself() -> None:
    assert weights_of(np.array([[3.0, 4.0]]), [0.1]) == (1.0,)


def test_two_rows_are_clipped_to_the_smaller() -> None:
    assert weights_of(np.array([[3.0, 4.0], [0.0, 10.0]])) == (0.5, 0.25)
    assert weights_of(np.array([[3.0, 4.0], [0.0, 10.0]]), [1.0, 3.0]) == (0.25, 0.375)


def test_three_rows_are_clipped_to_the_median() -> None:
    x = np.array([[1.0, 0.0], [0.0, 2.0], [8.0, 0.0]])
    assert weights_of(x) == tuple(float(np.float32(w)) for w in (1 / 3, 1 / 3, 1 / 12))


def test_rows_of_weight_zero_are_seen_by_nobody() -> None:
    """Redteam hole 8: newcomers with tiny rows must not steer quantile or neighbours."""
    x = random_rows(6, 5, 3)
    alone = weights_of(x)
    crowd = np.concatenate([1e-3 * x, x, 1e3 * x])
    assert weights_of(crowd, [0.0] * 6 + [1.0] * 6 + [0.0] * 6) == (0.0,) * 6 + alone + (0.0,) * 6


def test_weights_are_float32_and_negligible_ones_are_exactly_zero() -> None:
    x = random_rows(8, 5, 4)
    x[2] *= 1e7
    found = weights_of(x)
    assert found[2] == 0.0
    assert all(float(np.float32(w)) == w for w in found)
    assert all(w == 0 or w >= max(found) * 2.0**-20 for w in found)
    x[2] *= 1e-2  # a row 10^5 times too long still weighs more than a millionth
    assert weights_of(x, rule="mean")[2] > 0


def test_clipped_rows_make_the_weights_sum_to_less_than_one() -> None:
    x = random_rows(9, 5, 5)
    x[0] *= 100
    assert math.fsum(weights_of(x)) < 0.95
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert math.fsum(weights_of(unit)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("rule", rules.RULES)
def test_degenerate_rows(n: int, rule: str) -> None:
    zeros = rules.weights(np.zeros((n, n)), [1.0] * n, rule=rule, tolerated=THIRD)
    assert math.fsum(zeros) == pytest.approx(1)
    same = rules.weights(np.full((n, n), 2.0), [1.0] * n, rule=rule, tolerated=THIRD)
    assert same == pytest.approx([1 / n] * n)
    tiny = rules.weights(np.eye(n) * 5e-324, [1.0] * n, rule=rule, tolerated=THIRD)
    assert math.fsum(tiny) == pytest.approx(1)


def test_some_zero_rows() -> None:
    x = random_rows(7, 4, 6)
    x[[1, 4]] = 0
    found = weights_of(x)
    assert all(math.isfinite(w) for w in found)
    assert np.linalg.norm(np.array(found) @ x) > 0
    x[[0, 2, 3]] = 0  # now most of the weight says: no step
    assert np.array_equal(np.array(weights_of(x)) @ x, np.zeros(4))


def test_huge_finite_rows() -> None:
    x = random_rows(7, 4, 7)
    honest = np.linalg.norm(x, axis=1).max()
    x[[1, 4]] = 1e38
    found = weights_of(x)
    assert found[1] == found[4] == 0
    assert np.linalg.norm(np.array(found) @ x) <= honest
    everything = np.array(weights_of(np.full((7, 4), 3e38)))
    assert everything == pytest.approx([1 / 7] * 7)


def test_a_gram_that_is_not_positive_semidefinite_still_gives_weights() -> None:
    rng = np.random.default_rng(8)
    upper = np.triu(rng.uniform(-1, 1, (9, 9)), 1)
    found = rules.weights(np.eye(9) + upper + upper.T, [1.0] * 9, rule="default", tolerated=THIRD)
    assert all(0 <= w <= 1 for w in found)


def test_sixty_four_rows_are_quick() -> None:
    x = np.random.default_rng(9).standard_normal((64, 100))
    gram = x @ x.T
    start = time.process_time()
    found = rules.weights(gram, [1.0] * 64, rule="default", tolerated=THIRD)
    assert time.process_time() - start < 0.5
    assert math.fsum(found) > 0.9


@pytest.mark.parametrize(
    ("gram", "a", "tolerated"),
    [
        (np.eye(2), [1.0], THIRD),
        (np.eye(2), [0.0, 0.0], THIRD),
        (np.eye(2), [1.0, -1.0], THIRD),
        (np.eye(2), [1.0, math.nan], THIRD),
        (np.eye(2), [1.0, math.inf], THIRD),
        (np.eye(2), [1.0, 1.0], 0.5),
        (np.eye(2), [1.0, 1.0], -0.1),
        (np.array([[1.0, math.nan], [0.0, 1.0]]), [1.0, 1.0], THIRD),
        (np.array([[1.0, 0.0], [0.0, math.inf]]), [1.0, 1.0], THIRD),
        (np.array([[1.0, 0.0], [0.0, -1.0]]), [1.0, 1.0], THIRD),
    ],
)
def test_what_is_out_of_range_is_refused(gram: Points, a: list[float], tolerated: float) -> None:
    with pytest.raises(ValueError, match=r"row|Gram|tolerated"):
        rules.weights(gram, a, rule="default", tolerated=tolerated)


def test_an_unknown_rule_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown rule 'krum'") as caught:
        rules.weights(np.eye(2), [1.0, 1.0], rule="krum", tolerated=THIRD)
    assert caught.value.remedy == "choose one of default, arc-nnm-gm, centered-clip, multi-krum, mean"
