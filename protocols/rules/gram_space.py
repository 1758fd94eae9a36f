"""What the rules are made of: sums in contributor order, quantiles by weight, distances in Gram space.

Everything is + − × ÷ √ on IEEE doubles in plain loops, so that every machine computes the same bits; ``sum()`` is
avoided because its rounding differs between Python versions.
"""

from __future__ import annotations

import math

Row = list[float]
Rows = list[Row]

TIE = 1.0 + 1e-9
"""Sums this close count as equal, so that rounding does not decide on which side a row falls."""


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


def product(a: Row, b: Row) -> Row:
    """a_i b_i."""
    return [x * y for x, y in zip(a, b, strict=True)]


def shares(a: Row) -> Row:
    """Weights as shares of their sum."""
    whole = total(a)
    return [weight / whole for weight in a]


def upper_quantile(values: Row, a: Row, *, share: float) -> float:
    """The largest value above which lies at most ``share`` of the weight; with equal weights the (k+1)-th largest."""
    bound, above = share * total(a) * TIE, 0.0
    order = sorted(range(len(a)), key=lambda i: (-values[i], i))
    for i in order:
        above += a[i]
        if above > bound:
            return values[i]
    return values[order[-1]]


def clip_factors(norms: Row, limit: float) -> Row:
    """Factors that shorten every row to at most ``limit``."""
    return [1.0 if norm <= limit else limit / norm for norm in norms]


def norms_of(gram: Rows) -> Row:
    """‖x_i‖."""
    return [math.sqrt(row[i]) for i, row in enumerate(gram)]


def squared_distances(gram: Rows, i: int) -> Row:
    """‖x_i − x_j‖² for each j."""
    out = [max((gram[i][i] + gram[j][j]) - 2 * gram[i][j], 0.0) for j in range(len(gram))]
    out[i] = 0.0
    return out


def take_nearest(distances: Row, a: Row, target: float) -> Row:
    """How much of each row's weight is taken, the nearest first, up to ``target`` in all; the last row in part.

    Rows at the very same distance are taken by equal shares of their weights, so that neither order nor splitting
    matters.
    """
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
    return taken
