"""The parameters of each architecture as one flat float32 vector: names, shapes, first values. Needs no torch.

The daemon hashes, cuts and adds this vector without knowing what it means; only the trainer gives it a shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from protocols.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

VOCABULARY = 256
"""Bytes are the tokens: no tokenizer to ship, and the loss is in nats per byte."""

_DRAW_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """What a size means: ``width`` of the residual stream, ``layers``, attention ``heads``, default ``context``."""

    width: int
    layers: int
    heads: int
    context: int


SIZES = MappingProxyType(
    {
        "nano": Shape(width=48, layers=2, heads=3, context=32),
        "tiny": Shape(width=96, layers=3, heads=4, context=64),
        "small": Shape(width=384, layers=6, heads=6, context=256),
        "base": Shape(width=768, layers=14, heads=12, context=512),
    }
)
"""81,648, 387,744, 10,916,736 and 99,899,136 parameters at their default contexts."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the flat vector. ``bound``: values are drawn uniformly from ±bound; None: all ones."""

    name: str
    shape: tuple[int, ...]
    bound: float | None

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


def shape_of(size: str) -> Shape:
    """The shape of a named size; raises ConfigError for a name that is not built in."""
    if size not in SIZES:
        raise ConfigError(f"unknown model size {size!r:.40}", remedy=f"choose one of {', '.join(SIZES)}")
    return SIZES[size]


def layout(size: str, context: int) -> tuple[Tensor, ...]:
    """All tensors in the order in which they lie in the flat vector.

    Matrices are [out, in]. What ends a residual branch, and the head, start at zero, so that the untrained model
    predicts every byte alike and its loss is ln 256 (zero-init residual branches: Zhang et al. 2019, Fixup).
    """
    if not 2 <= context <= 8192:
        raise ConfigError(f"a context of {context} bytes is outside 2 … 8192", remedy="choose one between")
    shape = shape_of(size)
    w = shape.width
    matrix = math.sqrt(3.0 / w)  # uniform on ±√(3/w) has standard deviation 1/√w
    tensors = [Tensor("bytes", (VOCABULARY, w), 0.5), Tensor("positions", (context, w), 0.125)]
    for layer in range(shape.layers):
        tensors += [
            Tensor(f"blocks.{layer}.attention_norm", (w,), None),
            Tensor(f"blocks.{layer}.qkv", (3 * w, w), matrix),
            Tensor(f"blocks.{layer}.mix", (w, w), 0.0),
            Tensor(f"blocks.{layer}.mlp_norm", (w,), None),
            Tensor(f"blocks.{layer}.up", (4 * w, w), matrix),
            Tensor(f"blocks.{layer}.down", (w, 4 * w), 0.0),
        ]
    return (*tensors, Tensor("norm", (w,), None), Tensor("head", (VOCABULARY, w), 0.0))


def offsets(tensors: tuple[Tensor, ...]) -> tuple[int, ...]:
    """Start of each tensor in the flat vector, and its end: one number more than tensors."""
    return tuple(accumulate((tensor.count for tensor in tensors), initial=0))


def parameter_count(size: str, context: int) -> int:
    """Length of the flat vector; raises ConfigError for an unknown size or an impossible context."""
    return offsets(layout(size, context))[-1]


def initial_vector(size: str, context: int, seed: int) -> NDArray[np.float32]:
    """The state before round 1, float32 [parameter_count]; the same bits on every machine, 0 ≤ seed < 2⁶⁴.

    Draws are 24-bit integers from a BLAKE3 stream per tensor, made odd multiples of 2⁻²⁴ in (−1, 1) exactly and
    then scaled by one correctly rounded float32 product: no library's random generator is involved.
    """
    tensors = layout(size, context)
    starts = offsets(tensors)
    vector = np.zeros(starts[-1], dtype=np.float32)
    for tensor, start in zip(tensors, starts, strict=False):
        values = vector[start : start + tensor.count]
        if tensor.bound is None:
            values[:] = 1.0
        elif tensor.bound:
            _draw(values, tensor.bound, blake3(seed.to_bytes(8, "little") + tensor.name.encode()))
    return vector


def _draw(values: NDArray[np.float32], bound: float, stream: blake3) -> None:
    """Fill ``values`` uniformly from ±bound, a chunk at a time, from the extendable output of ``stream``."""
    for start in range(0, len(values), _DRAW_CHUNK):
        chunk = values[start : start + _DRAW_CHUNK]
        raw = np.frombuffer(stream.digest(4 * len(chunk), seek=4 * start), dtype="<u4")
        odd = (raw >> np.uint32(8)).astype(np.int32) * np.int32(2) - np.int32((1 << 24) - 1)
        chunk[:] = odd.astype(np.float32) * np.float32(2.0**-24)
        chunk *= np.float32(bound)
