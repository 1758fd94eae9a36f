"""From the Gram matrix of a round's rows to the weight of each row in the update (protocol.md 5.6).

Rules see inner products only, and weights in place of counts: splitting a row into copies of
the same total weight changes nothing, so identities do not pay. Every machine computes the same
bits (``gram_space`` says how). Fewer than 4 rows are clipped and averaged whatever the robust rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import ConfigError
from ..gram import ENTRY_LIMIT
from .clipping import centered_clip
from .default import robust
from .gram_space import Row, Rows, shares
from .krum import multi_krum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

NEGLIGIBLE = 2.0**-20
"""Weights below this share of the largest are exactly 0: the row leaves the sum (redteam.md 30)."""

WEIGHT_LIMIT = 2.0**64
"""Row weights above this are no weights that credits can add up to."""


def weights(
    gram: NDArray[np.float64], row_weights: Sequence[float], *, rule: str, tolerated: float
) -> tuple[float, ...]:
    """Weights w such that the update is Σ w_i x_i over the rows as sent; float32 values.

    ``gram`` float64 [n, n], of which the upper triangle is read; ``row_weights`` a_i ≥ 0, rows of
    weight 0 get 0 and are seen by nobody; ``tolerated`` = δ, the share of weight that may lie,
    below 1/2. Where rows were clipped Σ w < 1. Raises ConfigError for an unknown rule and
    ValueError for a Gram or weights that are not in range, or without a row of positive weight.
    """
    find = _RULES.get(rule)
    if find is None:
        raise ConfigError(f"unknown rule {rule!r}", remedy=f"choose one of {', '.join(RULES)}")
    if not 0 <= tolerated < 0.5:
        raise ValueError(f"a share of {tolerated} liars cannot be tolerated")
    if gram.shape != (len(row_weights), len(row_weights)):
        raise ValueError(f"a Gram matrix of shape {gram.shape} for {len(row_weights)} rows")
    if not all(0 <= weight <= WEIGHT_LIMIT for weight in row_weights):
        raise ValueError("row weights are out of range")
    used = [i for i, weight in enumerate(row_weights) if weight > 0]
    if not used:
        raise ValueError("no row has weight")
    full = gram.tolist()
    rows = [[float(full[min(i, j)][max(i, j)]) for j in used] for i in used]
    if not all(abs(entry) <= ENTRY_LIMIT for row in rows for entry in row) or any(
        row[i] < 0 for i, row in enumerate(rows)
    ):
        raise ValueError("the Gram matrix is out of range")
    found = _rounded(find(rows, [float(row_weights[i]) for i in used], tolerated))
    out = [0.0] * len(row_weights)
    for i, weight in zip(used, found, strict=True):
        out[i] = weight
    return tuple(out)


def _rounded(found: Row) -> Row:
    rounded = [float(np.float32(weight)) for weight in found]
    floor = max(rounded) * NEGLIGIBLE
    return [weight if weight >= floor else 0.0 for weight in rounded]


def mean(gram: Rows, a: Row, tolerated: float) -> Row:
    """The row-weighted mean."""
    return shares(a)


_RULES: dict[str, Callable[[Rows, Row, float], Row]] = {
    "default": robust,
    "arc-nnm-gm": robust,
    "centered-clip": centered_clip,
    "multi-krum": multi_krum,
    "mean": mean,
}

RULES = tuple(_RULES)
"""Names a manifest may use; ``default`` is ``arc-nnm-gm``."""
