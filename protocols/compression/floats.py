"""Codecs that round each value by itself, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..tensors import BLOCK, check_vector, is_finite
from .codec import check_size, peak, room, squared_norm

if TYPE_CHECKING:
    from ..ports import Buffer
    from ..tensors import Vector

_INFINITY = 0x7F80
"""Of bfloat16; below it, as integers, are exactly the non-negative finite ones."""


class Float32:
    """The values themselves, little-endian."""

    name = "float32"

    def size(self, count: int) -> int:
        """Four bytes a value."""
        return 4 * count

    def encode(self, values: Vector) -> bytes:
        """See ``Codec.encode``."""
        check_vector(values, "the part")
        if not is_finite(values):
            raise ValueError("the part has values that are not finite")
        return values.astype("<f4", copy=False).tobytes()

    def decode(self, data: Buffer, count: int, out: Vector | None = None) -> Vector:
        """See ``Codec.decode``; without ``out`` a view of ``data`` on little-endian machines."""
        check_size(data, self.size(count), count, self.name)
        values = np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)
        if not is_finite(values):
            raise ValueError("float32 values that are not finite")
        if out is None:
            return values
        np.copyto(room(out, count), values)
        return out

    def norm2(self, data: Buffer, count: int) -> float:
        """See ``Codec.norm2``."""
        return squared_norm(self.decode(data, count))

    def bound(self, data: Buffer, count: int) -> float:
        """See ``Codec.bound``: their largest."""
        return peak(self.decode(data, count))


class Bfloat16:
    """The upper 16 bits of each float32, little-endian, rounded to nearest, half to even.

    Finite values beyond the largest bfloat16 become that one.
    """

    name = "bf16"

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

    def decode(self, data: Buffer, count: int, out: Vector | None = None) -> Vector:
        """See ``Codec.decode``."""
        check_size(data, self.size(count), count, self.name)
        halves = np.frombuffer(data, dtype="<u2")
        for start in range(0, count, BLOCK):
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
