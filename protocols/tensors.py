"""A flat vector and its parts: 32,768 values that are hashed, sent, reduced and proven as one (protocol.md, words)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

Vector = NDArray[np.float32]

PART_VALUES = 32_768
"""Values of a part; only the last part of a vector may be shorter."""

BLOCK = 65_536
"""Values worked on at a time, so that an operand and its scratch stay in the cache."""


def part_count(values: int, part: int = PART_VALUES) -> int:
    """How many parts of ``part`` values a vector of ``values`` has; raises ValueError for an empty one."""
    if values < 1:
        raise ValueError(f"a vector of {values} values has no parts")
    return -(-values // part)


def part_bounds(k: int, values: int, part: int = PART_VALUES) -> tuple[int, int]:
    """Start and stop of part ``k`` in a vector of ``values``; raises ValueError where there is no such part."""
    count = part_count(values, part)
    if not 0 <= k < count:
        raise ValueError(f"part {k} of a vector with {count} parts")
    start = k * part
    return start, min(start + part, values)


def part_view(vector: Vector, k: int, part: int = PART_VALUES) -> Vector:
    """Part ``k`` of a one-dimensional vector, sharing its memory; raises ValueError as ``part_bounds`` does."""
    start, stop = part_bounds(k, len(vector), part)
    return vector[start:stop]


def is_finite(values: Vector) -> bool:
    """Whether no value of the one-dimensional array is NaN or infinite."""
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        if not (np.maximum.reduce(block) < np.inf and np.minimum.reduce(block) > -np.inf):  # NaN passes through both
            return False
    return True


def check_rows(rows: Sequence[Vector]) -> None:
    """Raises ValueError unless there are rows, all of them vectors (``check_vector``) of one length."""
    if not rows:
        raise ValueError("no rows")
    for row in rows:
        check_vector(row, "a row")
        if len(row) != len(rows[0]):
            raise ValueError(f"rows of {len(rows[0])} and {len(row)} values")


def check_vector(values: Vector, name: str) -> None:
    """Raises ValueError unless ``values`` is a contiguous float32 array of one dimension with at least one value."""
    if not values.size or values.ndim != 1 or values.dtype != np.float32 or not values.flags.c_contiguous:
        raise ValueError(f"{name} is not a contiguous one-dimensional float32 array with values")
