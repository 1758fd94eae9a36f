"""What is particular to int8 and int4: error bounds, ties, layout, and every byte that no encoder makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protocols.compression import get_codec

if TYPE_CHECKING:
    from protocols.tensors import Vector

INT8, INT4 = get_codec("int8"), get_codec("int4")
BOTH = [("int8", 127), ("int4", 7)]


@pytest.mark.parametrize(("name", "limit"), BOTH)
@settings(deadline=None)
@given(values=arrays(np.float32, st.integers(1, 200), elements=st.floats(-1e5, 1e5, width=32)))
def test_the_error_is_half_a_step(name: str, limit: int, values: Vector) -> None:
    decoded = get_codec(name).decode(get_codec(name).encode(values), len(values))
    for start in range(0, len(values), 64):
        block = values[start : start + 64].astype(np.float64)
        step = np.abs(block).max() / limit
        # The scale itself is rounded: by 2^-11 of itself, by 2^-25 where float16 is subnormal.
        slack = limit * max(step * 2.0**-11, 2.0**-25)
        assert np.abs(decoded[start : start + 64] - block).max() <= 0.5 * step * (1 + 2.0**-10) + slack + 2.0**-25


def test_half_way_codes_go_to_the_even_one() -> None:
    values = np.array([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 125.5], dtype=np.float32)
    assert list(INT8.decode(INT8.encode(values), 8)) == [127, 0, 2, 2, 0, -2, -2, 126]
    values = np.array([7, 0.5, 1.5, 2.5, -0.5, -1.5, -5.5, 6.5], dtype=np.float32)
    assert list(INT4.decode(INT4.encode(values), 8)) == [7, 0, 2, 2, 0, -2, -6, 6]


def test_two_int4_codes_a_byte_the_first_in_the_low_nibble() -> None:
    data = INT4.encode(np.array([7, -7, 1, 2, -3], dtype=np.float32))
    assert data == np.float16(1).tobytes() + bytes([0x97, 0x21, 0x0D])
    assert INT4.decode(data, 5).tolist() == [7, -7, 1, 2, -3]


@pytest.mark.parametrize(("name", "limit"), BOTH)
def test_subnormal_scales_clip_rather_than_wrap(name: str, limit: int) -> None:
    """The scale 2^-24 stands for anything down to half of itself and up to one and a half times."""
    values = np.array([1.49, -1.49, 0.51], dtype=np.float32) * np.float32(limit * 2.0**-24)
    decoded = get_codec(name).decode(get_codec(name).encode(values), 3)
    assert decoded[:2].tolist() == [limit * 2.0**-24, -limit * 2.0**-24]


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("half", [0x7C00, 0x7C01, 0x7FFF, 0x8000, 0x8001, 0xBC00, 0xFC00, 0xFFFF])
def test_bad_scales_are_refused(name: str, half: int) -> None:
    data = bytearray(get_codec(name).encode(np.ones(100, dtype=np.float32)))
    data[2:4] = half.to_bytes(2, "little")
    with pytest.raises(ValueError, match="negative or not finite"):
        get_codec(name).decode(bytes(data), 100)


@pytest.mark.parametrize("place", [0, 99])
def test_the_code_minus_128_is_refused(place: int) -> None:
    data = bytearray(INT8.encode(np.ones(100, dtype=np.float32)))
    data[4 + place] = 0x80
    with pytest.raises(ValueError, match="-128"):
        INT8.decode(bytes(data), 100)


@pytest.mark.parametrize("place", [0, 49])
@pytest.mark.parametrize("other", range(16))
@pytest.mark.parametrize("high", [False, True])
def test_the_nibble_minus_8_is_refused_in_either_half(place: int, other: int, high: bool) -> None:
    data = bytearray(INT4.encode(np.ones(100, dtype=np.float32)))
    data[4 + place] = 0x80 | other if high else other << 4 | 0x08
    with pytest.raises(ValueError, match="int4 code -8"):
        INT4.decode(bytes(data), 100)


@pytest.mark.parametrize("byte", [low | high << 4 for low in range(16) for high in range(16) if 8 not in (low, high)])
def test_every_other_pair_of_nibbles_is_taken(byte: int) -> None:
    data = np.float16(1).tobytes() + bytes([byte])
    signed = [nibble - 16 if nibble > 7 else nibble for nibble in (byte & 15, byte >> 4)]
    assert INT4.decode(data, 2).tolist() == signed


@pytest.mark.parametrize("count", [1, 63, 65, 131_073])
@pytest.mark.parametrize("padding", [1, 7, 9, 15])
def test_int4_padding_must_be_zero(count: int, padding: int) -> None:
    data = bytearray(INT4.encode(np.ones(count, dtype=np.float32)))
    data[-1] |= padding << 4
    with pytest.raises(ValueError, match="padding"):
        INT4.decode(bytes(data), count)


@settings(deadline=None)
@given(st.sampled_from(BOTH), st.data())
def test_whole_numbers_up_to_the_largest_code_come_back(of: tuple[str, int], data: st.DataObject) -> None:
    name, limit = of
    values = data.draw(arrays(np.float32, st.integers(1, 200), elements=st.integers(-limit, limit).map(float)))
    values[::64] = limit
    assert get_codec(name).decode(get_codec(name).encode(values), len(values)).tolist() == values.tolist()
