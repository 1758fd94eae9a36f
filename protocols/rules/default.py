"""The default rule: adaptive clipping, nearest-neighbour mixing, geometric median.

Sources: ARC, adaptive clipping (Allouah et al. 2024), NNM, nearest-neighbour mixing (Allouah et
al. 2023), geometric median by smoothed Weiszfeld steps (Pillutla et al., RFA, 2019).
"""

from __future__ import annotations

import math

from .gram_space import (
    Row,
    Rows,
    clip_factors,
    dot,
    norms_of,
    product,
    shares,
    squared_distances,
    take_nearest,
    total,
    upper_quantile,
)

ITERATIONS = 128
"""Weiszfeld steps. Rows in two camps of equal weight have no single median: then it stays between them."""

SMOOTHING = 2.0**-10
"""Distances below about this share of the clipping norm no longer pull harder."""

ROBUST_ROWS = 4
"""Fewest rows among which a liar can be outvoted."""


def robust(gram: Rows, a: Row, tolerated: float) -> Row:
    """ARC, then NNM, then the geometric median; a mean of clipped rows where there are fewer than 4 (5.6)."""
    if len(a) < ROBUST_ROWS:
        return few(gram, a)
    norms = norms_of(gram)
    limit = upper_quantile(norms, a, share=2 * tolerated * (1 - tolerated))
    factors = clip_factors(norms, limit)
    clipped = [[(factors[i] * factors[j]) * gram[i][j] for j in range(len(a))] for i in range(len(a))]
    mixing = mix(clipped, a, share=1 - tolerated)
    products = [[dot(row, other) for other in clipped] for row in mixing]  # clipped is symmetric
    mixed = [[dot(row, other) for other in mixing] for row in products]
    centre = geometric_median(mixed, a, smoothing=SMOOTHING * limit)
    columns = [[row[j] for row in mixing] for j in range(len(a))]
    return product([dot(centre, column) for column in columns], factors)


def few(gram: Rows, a: Row) -> Row:
    """The mean of fewer than 4 rows, clipped to the median norm of three, to the smaller of two (5.6)."""
    norms = norms_of(gram)
    limit = min(norms) if len(a) < 3 else upper_quantile(norms, a, share=0.5)
    return product(shares(a), clip_factors(norms, limit))


def mix(gram: Rows, a: Row, *, share: float) -> Rows:
    """NNM: for each row, coefficients of the mean of its nearest rows, itself included, up to ``share`` of the weight.

    The last row is taken in part.
    """
    target = share * total(a)
    return [shares(take_nearest(squared_distances(gram, i), a, target)) for i in range(len(a))]


def geometric_median(gram: Rows, a: Row, *, smoothing: float) -> Row:
    """Coefficients of the point z = Σ v_i y_i that minimises Σ a_i √(‖y_i − z‖² + smoothing²), by Weiszfeld steps."""
    v = shares(a)
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
        v = shares(pull)
    return v
