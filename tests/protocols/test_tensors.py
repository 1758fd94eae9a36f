from __future__ import annotations

import numpy as np
import pytest

from protocols import tensors


def test_parts_tile_the_vector_and_only_the_last_is_short() -> None:
    values = 2 * 32_768 + 5
    bounds = [tensors.part_bounds(k, values) for k in range(tensors.part_count(values))]
    assert bounds == [(0, 32_768), (32_768, 65_536), (65_536, 65_541)]
    assert tensors.part_count(32_768) == 1


def test_part_view_shares_memory() -> None:
    vector = np.zeros(40_000, dtype=np.float32)
    tensors.part_view(vector, 1)[:] = 3
    assert vector[32_767] == 0
    assert (vector[32_768:] == 3).all()
    assert len(tensors.part_view(vector, 1)) == 7_232


@pytest.mark.parametrize("k", [-1, 2])
def test_a_part_that_does_not_exist_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match="2 parts"):
        tensors.part_bounds(k, 40_000)


def test_an_empty_vector_has_no_parts() -> None:
    with pytest.raises(ValueError, match="no parts"):
        tensors.part_count(0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 65_535, 65_536, 99_999])
def test_is_finite_finds_one_bad_value(bad: float, place: int) -> None:
    vector = np.full(100_000, 3e38, dtype=np.float32)
    assert tensors.is_finite(vector)
    vector[place] = bad
    assert not tensors.is_finite(vector)


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(4),
        np.zeros((2, 2), dtype=np.float32),
        np.zeros(8, dtype=np.float32)[::2],
        np.zeros(0, dtype=np.float32),
    ],
)
def test_check_vector_refuses_other_arrays(vector: tensors.Vector) -> None:
    with pytest.raises(ValueError, match="update is not"):
        tensors.check_vector(vector, "update")
