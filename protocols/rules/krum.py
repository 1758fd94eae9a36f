"""Multi-Krum (Blanchard, El Mhamdi et al. 2017): the mean of the rows that are closest to their neighbours.

A row's score is the sum of its squared distances to the nearest n − f rows, itself included; the n − f rows of
smallest score are averaged. With weights in place of counts n − f is the weight that is not tolerated as lying, and
the last neighbour and the last row selected count in part. The paper sums over n − f − 2 others, one fewer than here:
a fixed number of rows has no meaning where rows can be split, and its own copies are then neighbours at distance 0.
Rows that agree too well therefore score well: this rule is for comparison, the default is safer against collusion.
"""

from __future__ import annotations

from .default import ROBUST_ROWS, few
from .gram_space import TIE, Row, Rows, dot, shares, squared_distances, take_nearest, total


def multi_krum(gram: Rows, a: Row, tolerated: float) -> Row:
    """Coefficients of the selected rows' mean; fewer than 4 rows as in 5.6."""
    if len(a) < ROBUST_ROWS:
        return few(gram, a)
    share = 1 - tolerated
    return shares(take_nearest(levelled(scores(gram, a, share=share)), a, share * total(a)))


def scores(gram: Rows, a: Row, *, share: float) -> Row:
    """For each row Σ a_j ‖x_i − x_j‖² over its nearest rows, itself included, up to ``share`` of the weight."""
    target = share * total(a)
    found = []
    for i in range(len(a)):
        distances = squared_distances(gram, i)
        found.append(dot(take_nearest(distances, a, target), distances))
    return found


def levelled(values: Row) -> Row:
    """Values that differ by rounding alone made equal, so that rounding does not decide which row is selected."""
    out, level = list(values), -1.0
    for i in sorted(range(len(values)), key=lambda i: values[i]):
        if values[i] > level * TIE:
            level = values[i]
        out[i] = level
    return out
