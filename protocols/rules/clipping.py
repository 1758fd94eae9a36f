"""CenteredClip (Karimireddy, He, Jaggi 2021): a mean in which no row pulls harder than from a radius around the centre.

v ← v + Σ a_i (x_i − v) min(1, τ / ‖x_i − v‖) / Σ a_i. The paper leaves start and radius to whoever knows the
gradients' spread; here both come from the rows. The start is 0, as in the authors' code in its first round: no
memory that a peer could be without, and unlike the mean a start that no liar moves. τ is, in each step, the largest
distance beyond which lies at most the tolerated weight. So liars within what is tolerated pull no harder than the
farthest of the others, none tolerated is the plain mean, and units of the rows do not matter.
"""

from __future__ import annotations

import math

from .default import ROBUST_ROWS, few
from .gram_space import Row, Rows, clip_factors, dot, product, total, upper_quantile

ITERATIONS = 64
"""Steps; each leaves at most about the clipped share of the way to go."""


def centered_clip(gram: Rows, a: Row, tolerated: float) -> Row:
    """Coefficients of the centre after ``ITERATIONS`` steps; fewer than 4 rows as in 5.6."""
    if len(a) < ROBUST_ROWS:
        return few(gram, a)
    whole = total(a)
    v = [0.0] * len(a)
    for _ in range(ITERATIONS):
        distances = distances_to(gram, v)
        radius = upper_quantile(distances, a, share=tolerated)
        pull = [each / whole for each in product(a, clip_factors(distances, radius))]
        rest = max(1.0 - total(pull), 0.0)
        v = [each * rest + more for each, more in zip(v, pull, strict=True)]
    return v


def distances_to(gram: Rows, v: Row) -> Row:
    """‖x_i − Σ v_j x_j‖ of every row."""
    inner = [dot(row, v) for row in gram]
    square = dot(inner, v)
    return [math.sqrt(max((gram[i][i] + square) - 2 * inner[i], 0.0)) for i in range(len(v))]
