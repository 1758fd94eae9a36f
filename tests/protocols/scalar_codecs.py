"""The codecs once more, one value at a time in plain Python: double arithmetic, rounded by ``struct``.

A quotient of two float32 in double, then rounded to float32, is their float32 quotient: 53 ≥ 2 · 24 + 2 bits.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LIMITS = {"int8": 127, "int4": 7}
HALF_MAX = 65_504.0
BF16_MAX = struct.unpack("<f", b"\x00\x00\x7f\x7f")[0]


def single(value: float) -> float:
    """``value`` as float32."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def half(value: float) -> float:
    """``value`` as float16, the largest finite one where it is beyond."""
    return HALF_MAX if value > HALF_MAX else float(struct.unpack("<e", struct.pack("<e", value))[0])


def blocks(values: Sequence[float]) -> list[Sequence[float]]:
    """Sixty-four by sixty-four."""
    return [values[at : at + 64] for at in range(0, len(values), 64)]


def scalar_encode(name: str, values: Sequence[float]) -> bytes:
    """Bytes of float32 ``values``, from the definition (protocol.md 5.7)."""
    if name == "float32":
        return struct.pack(f"<{len(values)}f", *values)
    if name == "bf16":
        return b"".join(bf16(value) for value in values)
    limit = LIMITS[name]
    scales, codes = b"", []
    for block in blocks(values):
        scale = half(single(max(abs(value) for value in block) / limit))
        scales += struct.pack("<e", scale)
        for value in block:
            ratio = value / scale if scale else 0.0
            codes.append(round(single(max(-limit, min(limit, ratio)))))
    if name == "int8":
        return scales + struct.pack(f"<{len(codes)}b", *codes)
    codes += [0] * (len(codes) % 2)
    return scales + bytes((low % 16) | (high % 16) << 4 for low, high in zip(codes[::2], codes[1::2], strict=True))


def bf16(value: float) -> bytes:
    """The nearer of the two neighbours, and the even one where they are as near."""
    low = struct.pack("<f", value)[2:]
    below, above = (struct.unpack("<f", b"\x00\x00" + each)[0] for each in (low, upwards(low)))
    if math.isinf(above):
        return low
    gaps = [abs(Fraction(each) - Fraction(value)) for each in (below, above)]
    up = gaps[1] < gaps[0] or (gaps[0] == gaps[1] and low[0] % 2 == 1)
    return upwards(low) if up else low


def upwards(data: bytes) -> bytes:
    """The next bfloat16 away from zero."""
    return (int.from_bytes(data, "little") + 1).to_bytes(2, "little")


def scalar_decode(name: str, data: bytes, count: int) -> list[float]:
    """Float32 values of honest bytes."""
    if name == "float32":
        return list(struct.unpack(f"<{count}f", data))
    if name == "bf16":
        return [struct.unpack("<f", b"\x00\x00" + data[at : at + 2])[0] for at in range(0, 2 * count, 2)]
    places = -(-count // 64)
    scales, rest = struct.unpack(f"<{places}e", data[: 2 * places]), data[2 * places :]
    if name == "int8":
        codes = list(struct.unpack(f"<{count}b", rest))
    else:
        nibbles = [nibble for byte in rest for nibble in (byte & 15, byte >> 4)]
        codes = [nibble - 16 if nibble > 7 else nibble for nibble in nibbles][:count]
    return [single(scales[at // 64] * code) for at, code in enumerate(codes)]
