"""Codecs of few bits: blocks of 64 values that share a scale (protocol.md 5.7).

Scale = absmax / q as float16 to nearest, code = value / scale to the nearest integer, half to even, within ±q. The
float16 scales of all blocks come first, then all codes; the last block may be short. A scale beyond float16 is its
largest finite value and codes are clipped, so that huge finite values decode to finite ones; a block whose scale
rounds to zero decodes to zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from ..tensors import BLOCK, check_vector
from .codec import check_size, room

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..ports import Buffer
    from ..tensors import Vector

    Bytes = NDArray[np.uint8]
    Codes = NDArray[np.int8]

BLOCK_VALUES = 64
"""Values that share a scale."""

_STARTS = np.arange(0, BLOCK, BLOCK_VALUES)
_HALF_INFINITY = 0x7C00
_HALF_MAX = np.float32(65_504)
_HALF_NORMAL = np.float32(2.0**-14)
"""From here on a scale is within 2^-11 of absmax / q, so that no code can round to more than q."""
_TO_INTEGER = np.float32(1.5 * 2.0**23)
"""Added to a small float32, leaves its nearest integer, half to even, in the low bits: the sum's unit is 1."""


class Blockwise(ABC):
    """What the codecs of blocks have in common; each adds how it packs its codes."""

    name: str
    exact = False
    limit: int
    """q: the largest code."""

    def size(self, count: int) -> int:
        """Bytes of ``count`` values."""
        return 2 * _blocks(count) + self._packed(count)

    def encode(self, values: Vector) -> bytes:
        """See ``Codec.encode``."""
        check_vector(values, "the part")
        count = len(values)
        data = np.empty(self.size(count), dtype=np.uint8)
        scales = data[: 2 * _blocks(count)].view("<f2")
        packed = data[scales.nbytes :]
        codes = np.empty((min(BLOCK, count + -count % BLOCK_VALUES) // BLOCK_VALUES, BLOCK_VALUES), dtype=np.int8)
        scratch = np.empty(codes.shape, dtype=np.float32)
        whole = count - count % BLOCK_VALUES
        for start in range(0, whole, BLOCK):
            block = values[start : min(start + BLOCK, whole)].reshape(-1, BLOCK_VALUES)
            first, rows = start // BLOCK_VALUES, len(block)
            self._quantize(block, scales[first : first + rows], codes[:rows], scratch[:rows])
            at = self._packed(start)
            self._pack(codes[:rows].reshape(-1), packed[at : at + self._packed(block.size)])
        if whole < count:
            tail = np.zeros((1, BLOCK_VALUES), dtype=np.float32)
            tail[0, : count - whole] = values[whole:]
            self._quantize(tail, scales[-1:], codes[:1], scratch[:1])
            last = np.empty(self._packed(BLOCK_VALUES), dtype=np.uint8)
            self._pack(codes[0], last)
            at = self._packed(whole)
            packed[at:] = last[: len(packed) - at]
        return data.tobytes()

    def decode(self, data: Buffer, count: int, out: Vector | None = None, *, good: bool = False) -> Vector:
        """See ``Codec.decode``. Refuses scales that are negative or not finite, and the code −(q + 1)."""
        scales, packed = self._open(data, count, good=good)
        values = room(out, count)
        whole = count - count % BLOCK_VALUES
        for start in range(0, whole, BLOCK):
            stop = min(start + BLOCK, whole)
            rows = values[start:stop].reshape(-1, BLOCK_VALUES)
            codes = self._unpack(packed[self._packed(start) : self._packed(stop)])
            np.copyto(rows, codes.reshape(-1, BLOCK_VALUES))
            np.multiply(rows, scales[start // BLOCK_VALUES : stop // BLOCK_VALUES, None], out=rows)
        if whole < count:
            values[whole:] = self._unpack(packed[self._packed(whole) :])[: count - whole]
            values[whole:] *= scales[-1]
        return values

    def norm2(self, data: Buffer, count: int) -> float:
        """See ``Codec.norm2``: Σ scale²·Σ code², whose inner sums are integers that float32 holds exactly."""
        scales, packed = self._open(data, count)
        wide = scales.astype(np.float64)
        np.multiply(wide, wide, out=wide)
        scratch = np.empty((min(BLOCK, count + -count % BLOCK_VALUES) // BLOCK_VALUES, BLOCK_VALUES), dtype=np.float32)
        total = 0.0
        for start in range(0, count, BLOCK):
            stop = min(start + BLOCK, count)
            blocks = _blocks(stop - start)
            rows = scratch[:blocks]
            codes = self._unpack(packed[self._packed(start) : self._packed(stop)])[: stop - start]
            flat = rows.reshape(-1)
            np.copyto(flat[: stop - start], codes)
            flat[stop - start :] = 0
            squares = np.einsum("ij,ij->i", rows, rows)
            first = start // BLOCK_VALUES
            total += float((squares * wide[first : first + blocks]).sum())
        return total

    def bound(self, data: Buffer, count: int) -> float:
        """See ``Codec.bound``: the largest code times the largest scale."""
        return self.limit * float(self._open(data, count)[0].max())

    def _open(self, data: Buffer, count: int, *, good: bool = False) -> tuple[Vector, Bytes]:
        """Scales, float32 [blocks], and the packed codes; raises ValueError for what no encoder makes."""
        check_size(data, self.size(count), count, self.name)
        halves = np.frombuffer(data, dtype="<u2", count=_blocks(count))
        # As integers the non-negative finite halves are exactly those below infinity.
        packed = np.frombuffer(data, dtype=np.uint8, offset=halves.nbytes)
        if not good:
            if int(halves.max()) >= _HALF_INFINITY:
                raise ValueError(f"an {self.name} scale that is negative or not finite")
            self._check(packed, count)
        return halves.view("<f2").astype(np.float32), packed

    def _quantize(self, block: Vector, scales: NDArray[np.float16], codes: Codes, scratch: Vector) -> None:
        """Scales [b] and codes [b, 64] of ``block`` float32 [b, 64]; raises ValueError where it is not finite."""
        # Absolute values order like their bits, and NaN lies above infinity: an integer maximum finds both.
        bits = scratch.view(np.uint32)
        np.bitwise_and(block.view(np.uint32), np.uint32(0x7FFF_FFFF), out=bits)
        absmax = np.maximum.reduceat(bits.reshape(-1), _STARTS[: len(block)]).view(
            np.float32
        )  # faster than over axis 1
        if not np.isfinite(absmax).all():
            raise ValueError("the part has values that are not finite")
        scales[:] = np.minimum(absmax / np.float32(self.limit), _HALF_MAX)
        divisor = scales.astype(np.float32)
        ordinary = float(divisor.min()) >= _HALF_NORMAL and float(divisor.max()) < _HALF_MAX
        if not ordinary:
            divisor[divisor == 0] = 1  # such a block lies below 4e-6: every code is 0
        np.divide(block, divisor[:, None], out=scratch)
        if not ordinary:
            np.clip(scratch, -self.limit, self.limit, out=scratch)
        np.add(scratch, _TO_INTEGER, out=scratch)
        np.copyto(codes, scratch.view(np.int32), casting="unsafe")

    @abstractmethod
    def _packed(self, count: int) -> int:
        """Bytes of ``count`` codes."""

    @abstractmethod
    def _pack(self, codes: Codes, out: Bytes) -> None:
        """Codes of whole blocks, which may be overwritten → bytes."""

    @abstractmethod
    def _unpack(self, data: Bytes) -> Codes:
        """Bytes → codes; of an odd number of int4 codes the padding too."""

    @abstractmethod
    def _check(self, data: Bytes, count: int) -> None:
        """Raises ValueError for codes that no encoder makes; needs no more memory than a block."""


class Int8(Blockwise):
    """One byte a code, two's complement, −127 … 127."""

    name = "int8"
    limit = 127

    def _packed(self, count: int) -> int:
        return count

    def _pack(self, codes: Codes, out: Bytes) -> None:
        out[:] = codes.view(np.uint8)

    def _unpack(self, data: Bytes) -> Codes:
        return data.view(np.int8)

    def _check(self, data: Bytes, count: int) -> None:
        if int(data.view(np.int8).min()) < -self.limit:
            raise ValueError("the int8 code -128")


class Int4(Blockwise):
    """Two codes a byte, two's complement nibbles, −7 … 7: code 2k in the low nibble of byte k, 2k + 1 in the high one.

    After an odd number of codes the last high nibble is zero.
    """

    name = "int4"
    limit = 7

    def _packed(self, count: int) -> int:
        return (count + 1) // 2

    def _pack(self, codes: Codes, out: Bytes) -> None:
        pairs = codes.view("<u2")
        np.bitwise_and(pairs, np.uint16(0x0F0F), out=pairs)
        # Of high · 2^8 + low: their bits come side by side in the low byte.
        np.copyto(out, pairs | pairs >> np.uint16(4), casting="unsafe")

    def _unpack(self, data: Bytes) -> Codes:
        pairs = data.astype("<u2")
        pairs |= pairs << np.uint16(4)
        pairs &= np.uint16(0x0F0F)
        codes = pairs.view(np.int8)
        # Two's complement of four bits, widened to eight.
        codes ^= np.int8(8)
        codes -= np.int8(8)
        return codes

    def _check(self, data: Bytes, count: int) -> None:
        for start in range(0, len(data), BLOCK):
            flipped = data[start : start + BLOCK] ^ np.uint8(0x88)  # makes the nibble 8 zero
            if int(flipped.min()) <= 0x0F or int((flipped & np.uint8(0x0F)).min()) == 0:
                raise ValueError("the int4 code -8")
        if count % 2 and int(data[-1]) > 0x0F:
            raise ValueError("int4 padding that is not zero")


def _blocks(count: int) -> int:
    return -(-count // BLOCK_VALUES)
