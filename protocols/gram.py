"""Gram matrices of the rows of a round: what the aggregation rules see of the updates (protocol.md 5.2, 5.6)."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .tensors import PART_VALUES, check_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .tensors import Vector

Matrix = NDArray[np.float64]

_FEW = 8
"""Up to so many rows a product for each is faster than one of all, which forms both halves."""
_WIDE_VALUES = 1 << 17
"""Widened to float64 at a time, so that memory does not grow with the rows."""

ENTRY_LIMIT = 2.0**300
"""No entry is larger: 2^40 squares of the largest float32 stay below. Keeps every sum of the rules finite."""


def part_gram(rows: Sequence[Vector]) -> Matrix:
    """Inner products float64 [n, n] of n rows float32 [m] of one part; symmetric in every bit.

    Formed in float64: float32 sums of rows that a liar makes constant drift by almost the 1e-5
    that a check tolerates, and squares of huge rows leave float32. Off-diagonal entries are
    clipped to √(G_ii G_jj), which a sum of such matrices then keeps (Cauchy-Schwarz), so that
    rounding never makes an honest Gram implausible. Needs a MiB of memory beside the rows.

    Not the same bits everywhere: BLAS orders its sums by CPU and thread count. Nobody needs
    to repeat them: the reducer signs this matrix, everyone computes from the signed bytes,
    and checks of it have a tolerance. Raises ValueError for no rows, for rows of other forms or different lengths,
    and unless all are finite.
    """
    check_rows(rows)
    count, values = len(rows), len(rows[0])
    wide = np.empty((count, min(PART_VALUES, max(_WIDE_VALUES // count, 1_024))))
    gram = np.zeros((count, count))
    with np.errstate(invalid="ignore"):
        for start in range(0, values, wide.shape[1]):
            doubles = wide[:, : min(wide.shape[1], values - start)]
            for row, double in zip(rows, doubles, strict=True):
                double[:] = row[start : start + len(double)]
            if count > _FEW:
                gram += doubles @ doubles.T
            else:
                for i in range(count):
                    gram[i, i:] += doubles[i:] @ doubles[i]
    if not np.isfinite(gram.diagonal()).all():  # squares of finite float32 stay finite here, others do not
        raise ValueError("rows are not finite")
    places, norms = _triangle(count), np.sqrt(gram.diagonal())
    bound = norms[places[0]] * norms[places[1]]
    clipped: Matrix = np.empty((count, count))
    clipped.T[places] = clipped[places] = np.minimum(np.maximum(gram[places], -bound), bound)
    np.fill_diagonal(clipped, gram.diagonal())
    return clipped


def upper(gram: Matrix) -> list[float]:
    """The upper triangle of [n, n] in row-major order, n(n + 1)/2 numbers: what the wire carries."""
    values: list[float] = gram[_triangle(len(gram))].tolist()
    return values


def from_upper(values: Sequence[float], n: int) -> Matrix:
    """The symmetric [n, n] matrix of an upper triangle; raises ValueError for a wrong count of numbers."""
    if len(values) != n * (n + 1) // 2:
        raise ValueError(f"{len(values)} numbers for a Gram matrix of {n} rows")
    gram = np.zeros((n, n))
    places = _triangle(n)
    gram[places] = values
    gram.T[places] = values
    return gram


@lru_cache(maxsize=8)
def _triangle(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    rows, columns = np.triu_indices(n)
    return rows, columns


def scaled_gram(total: Matrix, common: NDArray[np.integer[Any]], parts: int) -> Matrix:
    """G_ij = (P / P_ij)·Σ_ij: the sum over common parts [n, n] blown up to all P ``parts`` (protocol.md 5.6).

    ``common`` counts the parts in which both rows are present. A pair that shares none is taken
    as orthogonal: 0.
    """
    shared = np.asarray(common, dtype=np.float64)
    factor = np.divide(float(parts), shared, out=np.zeros_like(shared), where=shared > 0)
    return factor * total


def plausible(gram: Matrix) -> bool:
    """Whether vectors may have this Gram: finite, in range, diagonal ≥ 0, |G_ij| ≤ √(G_ii G_jj)(1 + 1e-6)."""
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not np.isfinite(gram).all():
        return False
    diagonal = gram.diagonal()
    if (diagonal < 0).any() or (diagonal > ENTRY_LIMIT).any() or not np.array_equal(gram, gram.T):
        return False
    norms = [math.sqrt(value) for value in diagonal.tolist()]
    bound = np.multiply.outer(norms, norms) * (1 + 1e-6)
    return bool((np.abs(gram) <= bound).all())
