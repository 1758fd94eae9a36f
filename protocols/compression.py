"""Codecs: how a part's float32 values become bytes, and back.

Encoding is a function of the values alone: only elementwise IEEE operations, maxima and
casts, each rounded by itself, so threads, vector units and alignment cannot change a bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from .errors import ConfigError
from .tensors import BLOCK, Vector, check_vector, is_finite

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .ports import Buffer

INT8_BLOCK = 64
"""Values that share a scale."""

_CODES = 127
_HALF_MAX = np.float32(65_504)
_HALF_INFINITY = 0x7C00


class Codec(Protocol):
    """One way to encode a vector. Stateless; safe to share between threads."""

    @property
    def name(self) -> str:
        """The codec's name in manifests."""

    def size(self, count: int) -> int:
        """Bytes that ``count`` values take."""

    def encode(self, values: Vector) -> bytes:
        """Bytes of a contiguous float32 [n], n ≥ 1; raises ValueError unless every value is finite."""

    def decode(self, data: Buffer, count: int) -> Vector:
        """float32 [count], all finite; possibly a read-only view of ``data``.

        Raises ValueError, before anything is allocated, for bytes that no honest encoder makes.
        """


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

    def decode(self, data: Buffer, count: int) -> Vector:
        """See ``Codec.decode``; a view of ``data`` on little-endian machines."""
        _check_size(data, self.size(count), count, self.name)
        values = np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)
        if not is_finite(values):
            raise ValueError("float32 values that are not finite")
        return values


class Int8:
    """Blocks of 64 values: scale = absmax / 127 as float16 to nearest, code = value / scale, half to even.

    Layout: the float16 scales of all blocks, then all codes; the last block may be short. A
    scale beyond float16 is its largest finite value and codes are clipped to ±127, so huge
    finite values decode to finite ones; a block whose scale rounds to zero decodes to zeros.
    """

    name = "int8"

    def size(self, count: int) -> int:
        """One byte a value and two a block."""
        return 2 * _blocks(count) + count

    def encode(self, values: Vector) -> bytes:
        """See ``Codec.encode``."""
        check_vector(values, "the part")
        count = len(values)
        data = bytearray(self.size(count))
        scales = np.frombuffer(data, dtype="<f2", count=_blocks(count))
        codes = np.frombuffer(data, dtype=np.int8, offset=scales.nbytes)
        scratch = np.empty((BLOCK // INT8_BLOCK, INT8_BLOCK), dtype=np.float32)
        whole = count - count % INT8_BLOCK
        for start in range(0, whole, BLOCK):
            stop = min(start + BLOCK, whole)
            block = values[start:stop].reshape(-1, INT8_BLOCK)
            first, last = start // INT8_BLOCK, stop // INT8_BLOCK
            out = codes[start:stop].reshape(-1, INT8_BLOCK)
            _quantize(block, scales[first:last], out, scratch[: len(block)])
        if whole < count:
            tail = np.zeros((1, INT8_BLOCK), dtype=np.float32)
            tail[0, : count - whole] = values[whole:]
            padded = np.empty((1, INT8_BLOCK), dtype=np.int8)
            _quantize(tail, scales[-1:], padded, scratch[:1])
            codes[whole:] = padded[0, : count - whole]
        return bytes(data)

    def decode(self, data: Buffer, count: int) -> Vector:
        """See ``Codec.decode``. Refuses scales that are negative or not finite, and the code −128."""
        _check_size(data, self.size(count), count, self.name)
        halves = np.frombuffer(data, dtype="<u2", count=_blocks(count))
        codes = np.frombuffer(data, dtype=np.int8, offset=halves.nbytes)
        # As integers the non-negative finite halves are exactly those below infinity.
        if int(halves.max()) >= _HALF_INFINITY:
            raise ValueError("an int8 scale that is negative or not finite")
        if int(codes.min()) < -_CODES:
            raise ValueError("the int8 code -128")
        scales = halves.view("<f2").astype(np.float32)
        out = np.empty(count, dtype=np.float32)
        whole = count - count % INT8_BLOCK
        for start in range(0, whole, BLOCK):
            stop = min(start + BLOCK, whole)
            rows = out[start:stop].reshape(-1, INT8_BLOCK)
            np.copyto(rows, codes[start:stop].reshape(-1, INT8_BLOCK))
            np.multiply(rows, scales[start // INT8_BLOCK : stop // INT8_BLOCK, None], out=rows)
        out[whole:] = codes[whole:]
        out[whole:] *= scales[-1:]
        return out


def _quantize(block: Vector, scales: NDArray[np.float16], codes: NDArray[np.int8], scratch: Vector) -> None:
    """Scales [b] and codes [b, 64] of ``block`` float32 [b, 64]; raises ValueError where it is not finite."""
    # Absolute values order like their bits, and NaN lies above infinity: an integer maximum finds both.
    bits = scratch.view(np.uint32)
    np.bitwise_and(block.view(np.uint32), np.uint32(0x7FFF_FFFF), out=bits)
    absmax = bits.max(axis=1).view(np.float32)
    if not np.isfinite(absmax).all():
        raise ValueError("the part has values that are not finite")
    scales[:] = np.minimum(absmax / np.float32(_CODES), _HALF_MAX)
    divisor = scales.astype(np.float32)
    divisor[divisor == 0] = 1  # such a block lies below 4e-6: every code is 0
    np.divide(block, divisor[:, None], out=scratch)
    np.rint(scratch, out=scratch)
    np.clip(scratch, -_CODES, _CODES, out=scratch)
    np.copyto(codes, scratch, casting="unsafe")


def _blocks(count: int) -> int:
    return -(-count // INT8_BLOCK)


def _check_size(data: Buffer, expected: int, count: int, name: str) -> None:
    size = memoryview(data).nbytes
    if count < 1 or size != expected:
        raise ValueError(f"{size} bytes for {count} {name} values, which take {expected}")


_CODECS: dict[str, Codec] = {codec.name: codec for codec in (Float32(), Int8())}

CODECS = tuple(_CODECS)
"""Names of the codecs this version can encode and decode."""


def get_codec(name: str) -> Codec:
    """The codec called ``name``; raises ConfigError naming the known ones."""
    codec = _CODECS.get(name)
    if codec is None:
        raise ConfigError(f"unknown codec {name!r}; known are {', '.join(CODECS)}")
    return codec
