from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from protocols import gram


def exact(rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> gram.Matrix:
    return np.array([[math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True)) for b in rows] for a in rows])


@pytest.mark.parametrize(
    ("count", "values"), [(3, 1), (3, 7), (3, 5_000), (3, 40_000), (8, 300), (9, 20_000), (64, 2_500)]
)
def test_part_gram_equals_exact_sums(count: int, values: int) -> None:
    rows = np.random.default_rng(values).standard_normal((count, values)).astype(np.float32)
    got = gram.part_gram([*rows])
    assert got.dtype == np.float64
    assert np.abs(got - exact(rows)).max() <= 1e-13 * values
    assert got.tobytes() == got.T.tobytes()


def test_part_gram_of_constant_huge_and_tiny_rows() -> None:
    constant = np.full((3, 32_768), 0.1, dtype=np.float32)
    constant[1:] = [[3e38], [1e-40]]
    got = gram.part_gram([*constant])
    expected = np.outer(constant[:, 0].astype(np.float64), constant[:, 0].astype(np.float64)) * 32_768
    assert np.allclose(got, expected, rtol=1e-12, atol=0)
    assert gram.plausible(got)


@pytest.mark.parametrize("seed", range(20))
def test_sums_of_part_grams_of_nearly_parallel_rows_are_plausible(seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((1, 4_001)).astype(np.float32)
    total = np.zeros((5, 5))
    for _ in range(3):
        rows = base * np.float32(rng.choice([-1, 1])) * rng.integers(1, 4, (5, 1)).astype(np.float32)
        total += gram.part_gram([*rows])
    assert gram.plausible(total)
    norms = np.sqrt(total.diagonal())
    assert (np.abs(total) <= np.outer(norms, norms) * (1 + 1e-15)).all()


def test_part_gram_refuses_what_is_not_finite_or_not_float32() -> None:
    rows = np.ones((2, 9), dtype=np.float32)
    with pytest.raises(ValueError, match="no rows"):
        gram.part_gram([])
    with pytest.raises(ValueError, match="float32 array"):
        gram.part_gram([*rows.astype(np.float64)])
    with pytest.raises(ValueError, match="float32 array"):
        gram.part_gram([rows])
    with pytest.raises(ValueError, match="9 and 8 values"):
        gram.part_gram([rows[0], rows[1, 1:]])
    for count in (2, 12):
        for bad in (np.inf, -np.inf, np.nan):
            rows = np.ones((count, 40_000), dtype=np.float32)
            rows[1, 8], rows[0, 39_999] = bad, -bad
            with pytest.raises(ValueError, match="not finite"):
                gram.part_gram([*rows])


def test_part_gram_of_many_rows_needs_little_memory() -> None:
    rows = np.random.default_rng(0).standard_normal((64, 32_768)).astype(np.float32)
    tracemalloc.start()
    try:
        gram.part_gram([*rows])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 << 19


def test_upper_is_row_major_and_comes_back() -> None:
    matrix = np.array([[1.0, 2, 3], [2, 4, 5], [3, 5, 6]])
    assert gram.upper(matrix) == [1, 2, 3, 4, 5, 6]
    assert np.array_equal(gram.from_upper([1, 2, 3, 4, 5, 6], 3), matrix)
    assert gram.from_upper([2.5], 1).tolist() == [[2.5]]


@pytest.mark.parametrize(("count", "n"), [(5, 3), (7, 3), (0, 1), (4, 2)])
def test_from_upper_refuses_a_wrong_count(count: int, n: int) -> None:
    with pytest.raises(ValueError, match="Gram matrix"):
        gram.from_upper([0.0] * count, n)


def test_scaled_gram_blows_common_parts_up_to_all() -> None:
    total = np.array([[8.0, 3.0, 1.0], [3.0, 6.0, 7.0], [1.0, 7.0, 5.0]])
    common = np.array([[4, 2, 1], [2, 3, 0], [1, 0, 2]])
    expected = [[8.0, 6.0, 4.0], [6.0, 8.0, 0.0], [4.0, 0.0, 10.0]]
    assert gram.scaled_gram(total, common, 4).tolist() == expected


def test_plausible_accepts_the_gram_of_vectors() -> None:
    rows = np.random.default_rng(0).standard_normal((6, 50))
    assert gram.plausible(rows @ rows.T)
    assert gram.plausible(np.zeros((3, 3)))
    assert gram.plausible(np.array([[1.0, 1 + 0.9e-6], [1 + 0.9e-6, 1.0]]))


@pytest.mark.parametrize(
    "matrix",
    [
        [[1.0, 1 + 1.1e-6], [1 + 1.1e-6, 1.0]],
        [[1.0, -2.0], [-2.0, 1.0]],
        [[-1.0, 0.0], [0.0, 1.0]],
        [[0.0, 1e-9], [1e-9, 1.0]],
        [[math.nan, 0.0], [0.0, 1.0]],
        [[1.0, 0.0], [0.0, math.inf]],
        [[1.0, 0.5], [0.4, 1.0]],
        [[1e300, 0.0], [0.0, 1.0]],
        [[1.0, 0.0]],
    ],
)
def test_plausible_refuses_what_no_vectors_have(matrix: list[list[float]]) -> None:
    assert not gram.plausible(np.array(matrix))
