"""From the Gram matrix of a round's rows to the weight of each row in the update (protocol.md 5.6).

Rules see inner products only, and weights in place of counts: splitting a row into copies of
the same total weight changes nothing, so identities do not pay. Everything is + − × ÷ √ on
IEEE doubles, summed in contributor order in plain loops, so that every machine computes the
same bits; ``sum()`` is avoided because its rounding differs between Python versions.

Sources: ARC, adaptive clipping (Allouah et al. 2024), NNM, nearest-neighbour mixing (Allouah et
al. 2023), geometric median by smoothed Weiszfeld steps (Pillutla et al., RFA, 2019).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .errors import ConfigError
from .gram import ENTRY_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

Row = list[float]
Rows = list[Row]

NEGLIGIBLE = 2.0**-20
"""Weights below this share of the largest are exactly 0: the row leaves the sum (redteam.md 30)."""

ITERATIONS = 128
"""Weiszfeld steps. Rows in two camps of equal weight have no single median: then it stays between them."""

SMOOTHING = 2.0**-10
"""Distances below about this share of the clipping norm no longer pull harder."""

ROBUST_ROWS = 4
"""Fewest rows among which a liar can be outvoted."""

WEIGHT_LIMIT = 2.0**64
"""Row weights above this are no weights that credits can add up to."""

_TIE = 1.0 + 1e-9
"""Sums of weights this close count as equal, so that rounding does not decide on which side a row falls."""


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
        raise ConfigError(f"unknown rule {rule!r}; known are {', '.join(RULES)}")
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
    whole = total(a)
    return [weight / whole for weight in a]


def robust(gram: Rows, a: Row, tolerated: float) -> Row:
    """ARC, then NNM, then the geometric median; a mean of clipped rows where there are fewer than 4 (5.6)."""
    norms = [math.sqrt(row[i]) for i, row in enumerate(gram)]
    if len(a) < ROBUST_ROWS:
        limit = min(norms) if len(a) < 3 else upper_quantile(norms, a, share=0.5)
        return _product(mean(gram, a, tolerated), clip_factors(norms, limit))
    limit = upper_quantile(norms, a, share=2 * tolerated * (1 - tolerated))
    factors = clip_factors(norms, limit)
    clipped = [[(factors[i] * factors[j]) * gram[i][j] for j in range(len(a))] for i in range(len(a))]
    mixing = mix(clipped, a, share=1 - tolerated)
    products = [[dot(row, other) for other in clipped] for row in mixing]  # clipped is symmetric
    mixed = [[dot(row, other) for other in mixing] for row in products]
    centre = geometric_median(mixed, a, smoothing=SMOOTHING * limit)
    columns = [[row[j] for row in mixing] for j in range(len(a))]
    return _product([dot(centre, column) for column in columns], factors)


def upper_quantile(values: Row, a: Row, *, share: float) -> float:
    """The largest value above which lies at most ``share`` of the weight; with equal weights the (k+1)-th largest."""
    bound, above = share * total(a) * _TIE, 0.0
    order = sorted(range(len(a)), key=lambda i: (-values[i], i))
    for i in order:
        above += a[i]
        if above > bound:
            return values[i]
    return values[order[-1]]


def clip_factors(norms: Row, limit: float) -> Row:
    """Factors that shorten every row to at most ``limit``."""
    return [1.0 if norm <= limit else limit / norm for norm in norms]


def mix(gram: Rows, a: Row, *, share: float) -> Rows:
    """NNM: for each row, coefficients of the mean of its nearest rows, itself included, up to ``share`` of the weight.

    The last row is taken in part. Rows at the very same distance are taken by equal shares of
    their weights, so that neither order nor splitting matters.
    """
    return [_nearest_mean(_squared_distances(gram, i), a, i, share * total(a)) for i in range(len(a))]


def _squared_distances(gram: Rows, i: int) -> Row:
    out = [max((gram[i][i] + gram[j][j]) - 2 * gram[i][j], 0.0) for j in range(len(gram))]
    out[i] = 0.0
    return out


def _nearest_mean(distances: Row, a: Row, i: int, target: float) -> Row:
    taken = [0.0] * len(a)
    left = target
    for distance in sorted(set(distances)):
        group = [j for j in range(len(a)) if distances[j] == distance]
        weight = total([a[j] for j in group])
        if weight >= left:
            for j in group:
                taken[j] = a[j] * (left / weight)
            break
        for j in group:
            taken[j] = a[j]
        left -= weight
    whole = total(taken)
    return [each / whole for each in taken]


def geometric_median(gram: Rows, a: Row, *, smoothing: float) -> Row:
    """Coefficients of the point z = Σ v_i y_i that minimises Σ a_i √(‖y_i − z‖² + smoothing²), by Weiszfeld steps."""
    v = mean(gram, a, 0.0)
    soft = smoothing * smoothing
    if soft == 0:  # only where every row is as good as zero
        return v
    for _ in range(ITERATIONS):
        inner = [dot(row, v) for row in gram]
        square = dot(inner, v)
        pull = []
        for i, weight in enumerate(a):
            distance2 = max((gram[i][i] + square) - 2 * inner[i], 0.0)
            pull.append(weight / math.sqrt(distance2 + soft))
        v = mean(gram, pull, 0.0)
    return v


def total(values: Row) -> float:
    """Sum from the first to the last, each step rounded."""
    out = 0.0
    for value in values:
        out += value
    return out


def dot(a: Row, b: Row) -> float:
    """Σ a_i b_i from the first to the last, each product and each sum rounded."""
    out = 0.0
    for x, y in zip(a, b, strict=True):
        out += x * y
    return out


def _product(a: Row, b: Row) -> Row:
    return [x * y for x, y in zip(a, b, strict=True)]


_RULES: dict[str, Callable[[Rows, Row, float], Row]] = {"default": robust, "arc-nnm-gm": robust, "mean": mean}

RULES = tuple(_RULES)
"""Names a manifest may use; ``default`` is ``arc-nnm-gm``."""
