"""What a peer has trained and no seal has taken: one rule for carry-over, error feedback and late parts (5.11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import tensors
from .compression import get_codec

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from .ports import Buffer


def settle(
    drift: NDArray[np.float32], sent: Sequence[Buffer], taken: Sequence[bool], codec: str
) -> NDArray[np.float32]:
    """Drift after a seal: in each part that was taken, drift + decode(bytes sent); the others keep theirs.

    ``drift`` float32 [values]; ``sent[k]`` the encoded part k of −drift. What is left of a taken part is the
    codec's residual, exactly zero for float32.
    """
    out = drift.copy()
    decoder = get_codec(codec)
    for index, (data, was_taken) in enumerate(zip(sent, taken, strict=True)):
        if was_taken:
            start, stop = tensors.part_bounds(index, len(drift))
            out[start:stop] += decoder.decode(data, stop - start)
    return out
