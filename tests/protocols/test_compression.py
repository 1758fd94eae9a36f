from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protocols.compression import CODECS, get_codec
from protocols.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from protocols.tensors import Vector

INT8, FLOAT32 = get_codec("int8"), get_codec("float32")
SIZES = (1, 2, 63, 64, 65, 4_096, 65_536, 65_537, 70_001)

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def scalar_int8(values: Vector) -> bytes:
    """One value at a time, straight from the definition."""
    scales, codes = [], []
    for start in range(0, len(values), 64):
        block = values[start : start + 64]
        absmax = np.float32(max(abs(float(value)) for value in block))
        quotient = np.float32(absmax / np.float32(127))
        scale = np.float16(65_504) if quotient > 65_504 else np.float16(quotient)
        scales.append(scale)
        for value in block:
            ratio = float(np.float32(value / np.float32(scale))) if scale else 0.0
            codes.append(max(-127, min(127, round(ratio))))
    return np.array(scales, dtype="<f2").tobytes() + np.array(codes, dtype=np.int8).tobytes()


@settings(deadline=None)
@given(arrays(np.float32, st.integers(1, 200), elements=finite))
def test_int8_equals_the_scalar_definition_and_stays_finite(values: Vector) -> None:
    data = INT8.encode(values)
    assert data == scalar_int8(values)
    decoded = INT8.decode(data, len(values))
    assert decoded.dtype == np.float32
    assert np.isfinite(decoded).all()


@pytest.mark.parametrize("size", SIZES)
def test_int8_equals_the_scalar_definition_at_block_edges(size: int) -> None:
    rng = np.random.default_rng(size)
    values = (rng.standard_normal(size) * np.exp(rng.normal(0, 4, size))).astype(np.float32)
    assert INT8.encode(values) == scalar_int8(values)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CODECS)
def test_size_is_what_encode_makes(name: str, size: int) -> None:
    codec = get_codec(name)
    data = codec.encode(np.ones(size, dtype=np.float32))
    assert len(data) == codec.size(size)
    assert len(codec.decode(data, size)) == size
    assert INT8.size(32_768) == 33_792


@settings(deadline=None)
@given(arrays(np.float32, st.integers(1, 200), elements=st.floats(-1e6, 1e6, width=32)))
def test_int8_error_is_half_a_step(values: Vector) -> None:
    decoded = INT8.decode(INT8.encode(values), len(values))
    for start in range(0, len(values), 64):
        block = values[start : start + 64].astype(np.float64)
        step = np.abs(block).max() / 127
        # The scale itself is rounded: by 2^-11 of itself, by 2^-25 where float16 is subnormal.
        slack = 127 * max(step * 2.0**-11, 2.0**-25)
        assert np.abs(decoded[start : start + 64] - block).max() <= 0.5 * step * (1 + 2.0**-10) + slack + 2.0**-25


@pytest.mark.parametrize("constant", [0.0, -0.0, 1e-45, -1e-39, 3e-8, 1.0, -7.3, 8e6, 3.4e38, -3.4e38])
@pytest.mark.parametrize("size", [1, 64, 100])
def test_constant_blocks(constant: float, size: int) -> None:
    values = np.full(size, constant, dtype=np.float32)
    data = INT8.encode(values)
    assert data == scalar_int8(values)
    decoded = INT8.decode(data, size)
    if 1e-4 < abs(constant) < 65_504 * 127:
        assert np.allclose(decoded, values, rtol=2.0**-10, atol=0)
    elif abs(constant) >= 65_504 * 127:
        assert (np.abs(decoded) == 65_504 * 127).all()
    else:
        assert np.abs(decoded - values).max() <= 127 * 2.0**-25


def test_half_way_codes_go_to_the_even_one() -> None:
    values = np.array([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 125.5], dtype=np.float32)
    assert list(INT8.decode(INT8.encode(values), 8)) == [127, 0, 2, 2, 0, -2, -2, 126]


def test_encoding_does_not_depend_on_alignment() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal(10_000).astype(np.float32)
    for name in CODECS:
        expected = get_codec(name).encode(values)
        for offset in range(1, 17):
            raw = np.zeros(4 * 10_000 + 32, dtype=np.uint8)
            moved = raw[offset : offset + 40_000].view(np.float32)
            moved[:] = values
            assert get_codec(name).encode(moved) == expected
            shifted = memoryview(bytes(offset) + expected)[offset:]
            assert np.array_equal(get_codec(name).decode(shifted, 10_000), get_codec(name).decode(expected, 10_000))


@settings(deadline=None)
@given(arrays(np.float32, st.integers(1, 100), elements=finite))
def test_float32_is_the_values_bits(values: Vector) -> None:
    data = FLOAT32.encode(values)
    assert data == b"".join(np.array(value, dtype="<f4").tobytes() for value in values)
    assert FLOAT32.decode(data, len(values)).tobytes() == values.tobytes()


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 63, 69_999])
def test_values_that_are_not_finite_are_not_encoded(name: str, bad: float, place: int) -> None:
    values = np.ones(70_000, dtype=np.float32)
    values[place] = bad
    with pytest.raises(ValueError, match="not finite"):
        get_codec(name).encode(values)


@pytest.mark.parametrize("name", CODECS)
def test_only_float32_vectors_with_values_are_encoded(name: str) -> None:
    wrongs: list[NDArray[Any]] = [np.ones(4), np.ones((2, 2), dtype=np.float32), np.ones(0, dtype=np.float32)]
    for wrong in wrongs:
        with pytest.raises(ValueError, match="not a contiguous"):
            get_codec(name).encode(wrong)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(("extra", "count"), [(b"x", 100), (b"", 101), (b"", 99), (b"", 1 << 40), (b"", 0), (b"", -1)])
def test_wrong_sizes_are_refused_before_allocating(name: str, extra: bytes, count: int) -> None:
    data = get_codec(name).encode(np.ones(100, dtype=np.float32)) + extra
    with pytest.raises(ValueError, match=f"for {count} {name} values"):
        get_codec(name).decode(data, count)


@pytest.mark.parametrize("half", [0x7C00, 0x7C01, 0x7FFF, 0x8000, 0x8001, 0xBC00, 0xFC00, 0xFFFF])
def test_bad_int8_scales_are_refused(half: int) -> None:
    data = bytearray(INT8.encode(np.ones(100, dtype=np.float32)))
    data[2:4] = half.to_bytes(2, "little")
    with pytest.raises(ValueError, match="negative or not finite"):
        INT8.decode(bytes(data), 100)


@pytest.mark.parametrize("place", [0, 99])
def test_the_code_minus_128_is_refused(place: int) -> None:
    data = bytearray(INT8.encode(np.ones(100, dtype=np.float32)))
    data[4 + place] = 0x80
    with pytest.raises(ValueError, match="-128"):
        INT8.decode(bytes(data), 100)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_float32_bytes_that_are_not_finite_are_refused(bad: float) -> None:
    data = np.array([1, bad, 2], dtype="<f4").tobytes()
    with pytest.raises(ValueError, match="not finite"):
        FLOAT32.decode(data, 3)


@settings(deadline=None)
@given(st.binary(min_size=102, max_size=102))
def test_any_bytes_decode_to_finite_values_or_are_refused(data: bytes) -> None:
    try:
        decoded = INT8.decode(data, 98)
    except ValueError:
        return
    assert np.isfinite(decoded).all()


def test_an_unknown_codec_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'zip'; known are float32, int8"):
        get_codec("zip")
