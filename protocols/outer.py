"""The outer optimizer: Nesterov SGD on float32, the same bits on every machine (protocol.md 5.11).

Exactly ``torch.optim.SGD(nesterov=True)`` as DiLoCo uses it (Douillard et al. 2023, section 2),
but with every multiplication and addition rounded by itself: no fused multiply-add.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .ids import Hash, digest
from .merkle import Tree
from .tensors import BLOCK, Vector, check_vector

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES = 1 << 20
"""Bytes of a state chunk; only the last of each vector may be shorter."""


def nesterov_step(params: Vector, momentum: Vector, update: Vector, *, lr: float, momentum_factor: float) -> None:
    """m ← μ·m + Δ; θ ← θ − lr·(Δ + μ·m), in place on ``params`` θ and ``momentum`` m, float32 [n].

    ``update`` Δ float32 [n] points down the loss and is left as it is; ``lr`` and
    ``momentum_factor`` μ are rounded to float32 first. Raises ValueError for other shapes or
    dtypes. Values that overflow become infinite: the caller checks the new state.
    """
    for name, vector in (("params", params), ("momentum", momentum), ("update", update)):
        check_vector(vector, name)
        if len(vector) != len(params):
            raise ValueError(f"{name} has {len(vector)} values, params {len(params)}")
    rate, factor = np.float32(lr), np.float32(momentum_factor)
    scratch = np.empty(min(BLOCK, len(params)), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(params), BLOCK):
            theta, m, delta = (each[start : start + BLOCK] for each in (params, momentum, update))
            step = scratch[: len(theta)]
            np.multiply(m, factor, out=m)
            np.add(m, delta, out=m)
            np.multiply(m, factor, out=step)
            np.add(delta, step, out=step)
            np.multiply(step, rate, out=step)
            np.subtract(theta, step, out=theta)


def state_chunks(params: Vector, momentum: Vector) -> Iterator[memoryview]:
    """The state as bytes: 1 MiB chunks of ``params``, then of ``momentum``; no chunk spans both."""
    for name, vector in (("params", params), ("momentum", momentum)):
        check_vector(vector, name)
        data = vector.astype("<f4", copy=False).view(np.uint8).data
        for start in range(0, len(data), CHUNK_BYTES):
            yield data[start : start + CHUNK_BYTES]


def chunk_leaf(data: bytes | memoryview) -> Hash:
    """Merkle leaf of one state chunk; its place in the tree says which."""
    return digest(b"state", data)


def state_root(params: Vector, momentum: Vector) -> Hash:
    """Merkle root over ``state_chunks``: equal roots mean the same parameters and outer momentum in every bit."""
    if len(params) != len(momentum):
        raise ValueError(f"{len(params)} parameters, {len(momentum)} values of momentum")
    return Tree([chunk_leaf(chunk) for chunk in state_chunks(params, momentum)]).root
