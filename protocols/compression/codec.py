"""What a codec is, and the checks that all of them share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..tensors import BLOCK

if TYPE_CHECKING:
    from ..ports import Buffer
    from ..tensors import Vector


class Codec(Protocol):
    """One way to encode a vector. Stateless; safe to share between threads."""

    @property
    def name(self) -> str:
        """The codec's name in manifests."""

    @property
    def exact(self) -> bool:
        """Whether decoding gives the values that were encoded, in every bit."""

    def size(self, count: int) -> int:
        """Bytes that ``count`` values take."""

    def encode(self, values: Vector) -> bytes:
        """Bytes of a contiguous float32 [n], n ≥ 1; raises ValueError unless every value is finite."""

    def decode(self, data: Buffer, count: int, out: Vector | None = None, *, good: bool = False) -> Vector:
        """float32 [count], all finite; without ``out`` possibly a read-only view of ``data``.

        With ``out``, a contiguous writable float32 [count], the values are written there and it is returned: a row of
        a matrix, say. Raises ValueError, before anything is allocated or written, for bytes that no honest encoder
        makes and for an ``out`` of another form. ``good`` bytes, which ``norm2`` or ``bound`` has measured, are not
        checked again.
        """

    def norm2(self, data: Buffer, count: int) -> float:
        """Σx² of the decoded values, to a few units in the last place of a double; raises as ``decode``."""

    def bound(self, data: Buffer, count: int) -> float:
        """A bound on the magnitude of the decoded values, at most q times their largest; raises as ``decode``."""


def squared_norm(values: Vector) -> float:
    """Σx² in doubles; infinite or NaN where a value is.

    Not by BLAS, whose sums change with its threads: an update that is encoded again after a restart must have the norms
    to which its peer has committed.
    """
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64)
        np.multiply(wide, wide, out=wide)
        return float(np.add.reduce(wide))


def peak(values: Vector) -> float:
    """max|x|; NaN where there is one."""
    blocks = [values[start : start + BLOCK] for start in range(0, len(values), BLOCK)]  # memory is read once
    ends = [(np.maximum.reduce(each), -np.minimum.reduce(each)) for each in blocks]
    return float(np.max(ends))


def check_size(data: Buffer, expected: int, count: int, name: str) -> None:
    """Raises ValueError unless ``data`` has the bytes that ``count`` values of this codec take."""
    size = memoryview(data).nbytes
    if count < 1 or size != expected:
        raise ValueError(f"{size} bytes for {count} {name} values, which take {expected}")


def room(out: Vector | None, count: int) -> Vector:
    """``out``, or a new float32 [count]; raises ValueError where ``out`` cannot take the values."""
    if out is None:
        return np.empty(count, dtype=np.float32)
    if out.shape != (count,) or out.dtype != np.float32 or not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(f"{count} values cannot be decoded into that array")
    return out
