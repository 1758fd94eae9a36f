"""The outer optimizer: Nesterov SGD on float32, the same bits on every machine (protocol.md 5.11).

Exactly ``torch.optim.SGD(nesterov=True)`` as DiLoCo uses it (Douillard et al. 2023, section 2),
but with every multiplication and addition rounded by itself: no fused multiply-add.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .ids import Hash, digest
from .merkle import Tree
from .tensors import BLOCK, PART_VALUES, Vector, check_vector, is_finite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    scratch = np.empty(min(BLOCK, len(params)), dtype=np.float32)
    rate, factor = np.float32(lr), np.float32(momentum_factor)
    for start in range(0, len(params), BLOCK):
        theta, m, delta = (each[start : start + BLOCK] for each in (params, momentum, update))
        _step((theta, m), delta, (theta, m), scratch[: len(theta)], (rate, factor))


def _step(
    old: tuple[Vector, Vector],
    delta: Vector,
    new: tuple[Vector, Vector],
    scratch: Vector,
    factors: tuple[np.float32, np.float32],
) -> None:
    """One block of a step, from (θ, m) to (θ, m), which may be the same; ``factors`` = (lr, μ)."""
    (theta, m), (new_theta, new_m), (rate, factor) = old, new, factors
    with np.errstate(over="ignore", invalid="ignore"):
        np.multiply(m, factor, out=new_m)
        np.add(new_m, delta, out=new_m)
        np.multiply(new_m, factor, out=scratch)
        np.add(delta, scratch, out=scratch)
        np.multiply(scratch, rate, out=scratch)
        np.subtract(theta, scratch, out=new_theta)


def next_state(
    state: tuple[Vector, Vector], update: Callable[[int, Vector], Vector], *, lr: float, momentum_factor: float
) -> tuple[Vector, Vector, Hash]:
    """The state after ``nesterov_step`` on (params, momentum), float32 [n] each, as new vectors, and its root.

    ``update(start, room)`` gives as many values of Δ as ``room`` has, from ``start`` on, there or elsewhere. Goes
    through memory once, in pieces that stay in the cache: update, step, check, hash. Raises ValueError where the new
    state is not finite.
    """
    params, momentum = state
    check_vector(params, "params")
    check_vector(momentum, "momentum")
    if len(params) != len(momentum):
        raise ValueError(f"{len(params)} parameters, {len(momentum)} values of momentum")
    new = np.empty_like(params), np.empty_like(momentum)
    leaves: tuple[list[Hash], list[Hash]] = [], []
    room, scratch = np.empty((2, min(PART_VALUES, len(params))), dtype=np.float32)
    factors = np.float32(lr), np.float32(momentum_factor)
    chunk = CHUNK_BYTES // params.itemsize
    for begin in range(0, len(params), chunk):
        end = min(begin + chunk, len(params))
        for start in range(begin, end, PART_VALUES):
            block = slice(start, min(start + PART_VALUES, end))
            size = block.stop - start
            theta, m = (each[block] for each in new)
            _step((params[block], momentum[block]), update(start, room[:size]), (theta, m), scratch[:size], factors)
            if not (is_finite(theta) and is_finite(m)):
                raise ValueError("the outer step left the finite numbers")
        for vector, found in zip(new, leaves, strict=True):
            found.append(chunk_leaf(_bytes(vector[begin:end])))
    return (*new, Tree([*leaves[0], *leaves[1]]).root)


def state_chunks(params: Vector, momentum: Vector) -> Iterator[memoryview]:
    """The state as bytes: 1 MiB chunks of ``params``, then of ``momentum``; no chunk spans both."""
    for name, vector in (("params", params), ("momentum", momentum)):
        check_vector(vector, name)
        data = _bytes(vector)
        for start in range(0, len(data), CHUNK_BYTES):
            yield data[start : start + CHUNK_BYTES]


def _bytes(vector: Vector) -> memoryview:
    return vector.astype("<f4", copy=False).view(np.uint8).data


def chunk_leaf(data: bytes | memoryview) -> Hash:
    """Merkle leaf of one state chunk; its place in the tree says which."""
    return digest(b"state", data)


def state_root(params: Vector, momentum: Vector) -> Hash:
    """Merkle root over ``state_chunks``: equal roots mean the same parameters and outer momentum in every bit."""
    if len(params) != len(momentum):
        raise ValueError(f"{len(params)} parameters, {len(momentum)} values of momentum")
    return Tree([chunk_leaf(chunk) for chunk in state_chunks(params, momentum)]).root
