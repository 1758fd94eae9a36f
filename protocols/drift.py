"""What a peer has trained and no seal has taken: one rule for carry-over, error feedback and late parts (5.11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import tensors
from .compression import get_codec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .ports import Buffer
    from .tensors import Vector

MAX_AGE = 3
"""Seals in a row that may leave a part of the drift before it is dropped: its base is too far away by then."""


def settle(
    drift: Vector, sent: Sequence[Buffer] | None, taken: Sequence[bool], codec: str, part: int = tensors.PART_VALUES
) -> Vector:
    """Drift after a seal: in each part that was taken, drift + decode(bytes sent); the others keep theirs.

    ``drift`` float32 [values]; ``sent[k]`` the encoded part k of −drift. What is left of a taken part is the
    codec's residual, exactly zero for float32, and what was trained since. Where the bytes are gone (None, after a
    restart that lost them) a taken part starts anew: what was taken must not be given twice.
    """
    out = np.empty_like(drift)
    scratch = np.empty(min(part, len(drift)), dtype=np.float32)
    decoder = get_codec(codec)
    for index, was_taken in enumerate(taken):
        start, stop = tensors.part_bounds(index, len(drift), part)
        before, after = drift[start:stop], out[start:stop]
        if not was_taken:
            after[:] = before
        elif sent is None:
            after[:] = 0
        else:
            np.add(before, decoder.decode(sent[index], stop - start, scratch[: stop - start]), out=after)
    return out


def grow_old(
    drift: Vector, ages: Sequence[int], taken: Sequence[bool], part: int = tensors.PART_VALUES
) -> tuple[Vector, tuple[int, ...]]:
    """Count one more seal on parts that were not taken, and drop (set to 0, on a copy) those left by three in a row."""
    older = [0 if was_taken else age + 1 for age, was_taken in zip(ages, taken, strict=True)]
    out = drift
    for index, age in enumerate(older):
        if age >= MAX_AGE:
            out = drift.copy() if out is drift else out
            start, stop = tensors.part_bounds(index, len(drift), part)
            out[start:stop] = 0
            older[index] = 0
    return out, tuple(older)
