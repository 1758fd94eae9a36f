"""Codecs that round each value by itself, or not at all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ..tensors import BLOCK, check_vector, is_finite
from .codec import check_size, peak, room, squared_norm

if TYPE_CHECKING:
    from ..ports import Buffer
    from ..tensors import Vector

_NOT_FINITE = "float32 values that are not finite"
_INFINITY = 0x7F80
"""Of bfloat16; below it, as integers, are exactly the non-negative finite ones."""


class Float32:
    """The values themselves, little-endian."""

    name = "float32"
    exact = True

    def size(self, count: int) -> int:
        """Four bytes a value."""
        return 4 * count

    def encode(self, values: Vector) -> bytes:
        """See ``Codec.encode``."""
        check_vector(values, "the part")
        if not is_finite(values):
            raise ValueError("the part has values that are not finite")
        return values.astype("<f4", copy=False).tobytes()

    def decode(self, data: Buffer, count: int, out: Vector | None = None, *, good: bool = False) -> Vector:
        """See ``Codec.decode``; without ``out`` a view of ``data`` on little-endian machines."""
        values = self._view(data, count)
        if not good and not is_finite(values):
            raise ValueError(_NOT_FINITE)
        if out is None:
            return values
        np.copyto(room(out, count), values)
        return out

    def norm2(self, data: Buffer, count: int) -> float:
        """See ``Codec.norm2``."""
        return _finite(squared_norm(self._view(data, count)))  # squares of finite float32 are far from infinite

    def bound(self, data: Buffer, count: int) -> float:
        """See ``Codec.bound``: their largest."""
        return _finite(peak(self._view(data, count)))

    def _view(self, data: Buffer, count: int) -> Vector:
        check_size(data, self.size(count), count, self.name)
        return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)


def _finite(measure: float) -> float:
    """``measure``, which is finite where all values are; raises ValueError where they are not."""
    if not math.isfinite(measure):
        raise ValueError(_NOT_FINITE)
    return measure


class Bfloat16:
    """The upper 16 bits of each float32, little-endian, rounded to nearest, half to even.

    Finite values beyond the largest bfloat16 become that one.
    """

    name = "bf16"
    exact = False

    def size(self, count: int) -> int:
        """Two bytes a value."""
        return 2 * count

    def encode(self, values: Vector) -> bytes:
        """See ``Codec.encode``."""
        check_vector(values, "the part")
        data = np.empty(len(values), dtype="<u2")
        scratch = np.empty(min(BLOCK, len(values)), dtype=np.uint32)
        for start in range(0, len(values), BLOCK):
            bits = values[start : start + BLOCK].view(np.uint32)
            rounded = scratch[: len(bits)]
            np.bitwise_and(bits, np.uint32(0x7FFF_FFFF), out=rounded)
            if int(rounded.max()) >= _INFINITY << 16:
                raise ValueError("the part has values that are not finite")
            np.right_shift(bits, np.uint32(16), out=rounded)
            np.bitwise_and(rounded, np.uint32(1), out=rounded)
            np.add(rounded, np.uint32(0x7FFF), out=rounded)  # what carries into bit 16 exactly when that is to go up
            np.add(rounded, bits, out=rounded)
            np.right_shift(rounded, np.uint32(16), out=rounded)
            rounded -= (rounded & np.uint32(0x7FFF)) == _INFINITY
            data[start : start + BLOCK] = rounded
        return data.tobytes()

    def decode(self, data: Buffer, count: int, out: Vector | None = None, *, good: bool = False) -> Vector:
        """See ``Codec.decode``."""
        check_size(data, self.size(count), count, self.name)
        halves = np.frombuffer(data, dtype="<u2")
        for start in range(0, 0 if good else count, BLOCK):
            if int((halves[start : start + BLOCK] & np.uint16(0x7FFF)).max()) >= _INFINITY:
                raise ValueError("bf16 values that are not finite")
        values = room(out, count)
        np.left_shift(halves, 16, out=values.view(np.uint32), dtype=np.uint32)
        return values

    def norm2(self, data: Buffer, count: int) -> float:
        """See ``Codec.norm2``."""
        return squared_norm(self.decode(data, count))

    def bound(self, data: Buffer, count: int) -> float:
        """See ``Codec.bound``: their largest."""
        return peak(self.decode(data, count))
