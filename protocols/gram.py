"""Gram matrices of the rows of a round: what the aggregation rules see of the updates (protocol.md 5.2, 5.6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

PRODUCT_VALUES = 4_096
"""Values summed in float32 before float64 takes over; longer sums drift where rows are constant."""

ENTRY_LIMIT = 2.0**300
"""No entry is larger: 2^40 squares of the largest float32 stay below. Keeps every sum of the rules finite."""

_SMALLEST = 1e-24
"""Squared norms of a part below this are formed in float64: in float32 their terms underflow."""


def part_gram(rows: NDArray[np.float32]) -> Matrix:
    """Inner products float64 [n, n] of the rows float32 [n, m] of one part; symmetric in every bit.

    Products of 4,096 values are summed in float32, those sums in float64; rows whose squares
    leave float32 are multiplied in float64. Off-diagonal entries are clipped to
    √(G_ii G_jj), which a sum of such matrices then keeps (Cauchy-Schwarz), so that rounding
    never makes an honest Gram implausible.

    Not the same bits everywhere: BLAS orders its sums by CPU and thread count. Nobody needs
    to repeat them: the reducer signs this matrix, everyone computes from the signed bytes,
    and checks of it have a tolerance. Raises ValueError unless ``rows`` is finite.
    """
    if rows.ndim != 2 or rows.dtype != np.float32:
        raise ValueError("rows are not a two-dimensional float32 array")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        gram = _blocked(rows)
    if not np.isfinite(gram).all() or (gram.diagonal() < _SMALLEST).any():
        wide = rows.astype(np.float64)
        gram = wide @ wide.T
    if not np.isfinite(gram).all():
        raise ValueError("rows are not finite")
    gram = np.triu(gram)
    gram += np.triu(gram, 1).T
    norms = np.sqrt(gram.diagonal())
    bound = norms[:, None] * norms[None, :]
    clipped: Matrix = np.clip(gram, -bound, bound)
    np.fill_diagonal(clipped, gram.diagonal())
    return clipped


def _blocked(rows: NDArray[np.float32]) -> Matrix:
    count, values = rows.shape
    whole = values - values % PRODUCT_VALUES
    total = np.zeros((count, count))
    for start in range(0, whole, PRODUCT_VALUES):
        block = rows[:, start : start + PRODUCT_VALUES]
        total += block @ block.T
    if whole < values:
        rest = rows[:, whole:]
        total += rest @ rest.T
    return total


def upper(gram: Matrix) -> list[float]:
    """The upper triangle of [n, n] in row-major order, n(n + 1)/2 numbers: what the wire carries."""
    values: list[float] = gram[np.triu_indices(len(gram))].tolist()
    return values


def from_upper(values: Sequence[float], n: int) -> Matrix:
    """The symmetric [n, n] matrix of an upper triangle; raises ValueError for a wrong count of numbers."""
    if len(values) != n * (n + 1) // 2:
        raise ValueError(f"{len(values)} numbers for a Gram matrix of {n} rows")
    gram = np.zeros((n, n))
    places = np.triu_indices(n)
    gram[places] = values
    gram.T[places] = values
    return gram


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
