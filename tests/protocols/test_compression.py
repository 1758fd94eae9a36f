"""What holds for every codec, against the plain-Python ones; ``test_block_codecs`` has what is particular to blocks."""

from __future__ import annotations

import math
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protocols.compression import CODECS, RESULT_CODECS, get_codec
from protocols.errors import ConfigError
from tests.protocols.scalar_codecs import scalar_decode, scalar_encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from protocols.tensors import Vector

SIZES = (1, 2, 63, 64, 65, 127, 4_096, 65_535, 65_536, 65_537, 70_001)

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
vectors = arrays(np.float32, st.integers(1, 200), elements=finite)


def wild(size: int) -> Vector:
    """Values over some hundred binary exponents."""
    rng = np.random.default_rng(size)
    values: Vector = (rng.standard_normal(size) * np.exp(rng.normal(0, 8, size))).astype(np.float32)
    return values


@settings(deadline=None)
@given(st.sampled_from(CODECS), vectors)
def test_bytes_and_values_equal_the_scalar_definition(name: str, values: Vector) -> None:
    data = get_codec(name).encode(values)
    assert data == scalar_encode(name, values.tolist())
    decoded = get_codec(name).decode(data, len(values))
    assert decoded.dtype == np.float32
    assert np.isfinite(decoded).all()
    assert decoded.tobytes() == np.array(scalar_decode(name, data, len(values)), dtype=np.float32).tobytes()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CODECS)
def test_at_the_edges_of_blocks_too(name: str, size: int) -> None:
    values = wild(size)
    data = get_codec(name).encode(values)
    assert data == scalar_encode(name, values.tolist())
    assert get_codec(name).decode(data, size).tolist() == scalar_decode(name, data, size)
    assert len(data) == get_codec(name).size(size)


def test_sizes_of_a_whole_part() -> None:
    assert {name: get_codec(name).size(32_768) for name in CODECS} == {
        "float32": 131_072, "bf16": 65_536, "int8": 33_792, "int4": 17_408,
    }  # fmt: skip
    assert get_codec("int4").size(32_768) * 8 / 32_768 == 4.25


@pytest.mark.parametrize("constant", [0.0, -0.0, 1e-45, -1e-39, 3e-8, 1.0, -7.3, 4.6e5, 8e6, 8.4e6, 3.4e38, -3.4e38])
@pytest.mark.parametrize("size", [1, 64, 100])
@pytest.mark.parametrize("name", CODECS)
def test_constant_blocks(name: str, size: int, constant: float) -> None:
    values = np.full(size, constant, dtype=np.float32)
    data = get_codec(name).encode(values)
    assert data == scalar_encode(name, values.tolist())
    decoded = get_codec(name).decode(data, size)
    limit = {"int8": 127, "int4": 7}.get(name)
    if limit is None or 1e-3 < abs(constant) < 65_504 * limit:
        rtol, atol = (2.0**-8, 2.0**-134) if name == "bf16" else (2.0**-10, 0.0)
        assert np.allclose(decoded, values, rtol=rtol, atol=atol)
    elif abs(constant) > 65_504 * limit:
        assert (np.abs(decoded) == 65_504 * limit).all()
    else:
        assert np.abs(decoded - values).max() <= limit * 2.0**-25


@pytest.mark.parametrize("name", CODECS)
def test_neither_alignment_nor_slices_nor_threads_change_a_bit(name: str) -> None:
    codec, values = get_codec(name), wild(10_000)
    expected, decoded = codec.encode(values), codec.decode(codec.encode(values), 10_000)
    for offset in range(1, 17):
        raw = np.zeros(4 * 10_000 + 32, dtype=np.uint8)
        moved = raw[offset : offset + 40_000].view(np.float32)
        moved[:] = values
        assert codec.encode(moved) == expected
        shifted = memoryview(bytes(offset) + expected)[offset:]
        assert codec.decode(shifted, 10_000).tobytes() == decoded.tobytes()
    around = np.concatenate([wild(77), values, wild(5)])
    assert codec.encode(around[77:-5]) == expected
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: codec.encode(values), range(16))) == {expected}


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(CODECS), st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(0, 2**32))
def test_parts_of_whole_blocks_encode_as_the_vector_does(name: str, parts: list[int], seed: int) -> None:
    codec = get_codec(name)
    values = np.random.default_rng(seed).standard_normal(64 * sum(parts)).astype(np.float32)
    bounds = np.cumsum([0, *parts]) * 64
    pieces = [values[start:stop] for start, stop in zip(bounds, bounds[1:], strict=False)]
    whole = codec.decode(codec.encode(values), len(values))
    apart = np.concatenate([codec.decode(codec.encode(piece), len(piece)) for piece in pieces])
    assert apart.tobytes() == whole.tobytes()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CODECS)
def test_decoding_into_a_row_touches_nothing_else(name: str, size: int) -> None:
    codec, values = get_codec(name), wild(size)
    data = codec.encode(values)
    rows = np.full((3, size), np.float32(9))
    assert codec.decode(data, size, rows[1]).base is rows
    assert rows[1].tobytes() == codec.decode(data, size).tobytes()
    assert (rows[[0, 2]] == 9).all()
    assert codec.decode(data, size, rows[0], good=True).tobytes() == rows[1].tobytes()


@pytest.mark.parametrize("name", CODECS)
def test_only_a_fitting_array_is_decoded_into(name: str) -> None:
    codec = get_codec(name)
    data = codec.encode(np.ones(100, dtype=np.float32))
    frozen = np.zeros(100, dtype=np.float32)
    frozen.flags.writeable = False
    wrongs: list[Any] = [
        np.zeros(99, np.float32), np.zeros((1, 100), np.float32), np.zeros(100), np.zeros(200, np.float32)[::2], frozen,
    ]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(ValueError, match="cannot be decoded into"):
            codec.decode(data, 100, wrong)
        assert not wrong.any()


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
@pytest.mark.parametrize(
    ("extra", "count"), [(b"x", 100), (b"", 102), (b"", 98), (b"", 1 << 40), (b"", 0), (b"", -1), (b"", -100)]
)
def test_wrong_sizes_are_refused_before_allocating(name: str, extra: bytes, count: int) -> None:
    data = get_codec(name).encode(np.ones(100, dtype=np.float32)) + extra
    with pytest.raises(ValueError, match=f"for {count} {name} values"):
        get_codec(name).decode(data, count)


def spoilt(name: str, count: int) -> bytes:
    """Bytes whose very last value is one that no encoder makes."""
    data = bytearray(get_codec(name).encode(np.ones(count, dtype=np.float32)))
    data[-1] = {"float32": 0x7F, "bf16": 0x7F, "int8": 0x80, "int4": 0x81}[name]
    if name in ("float32", "bf16"):
        data[-2] = 0x80
    return bytes(data)


@pytest.mark.parametrize("name", CODECS)
def test_malformed_values_are_refused_before_allocating(name: str) -> None:
    count = 4_000_000
    data, out = spoilt(name, count), np.zeros(count, dtype=np.float32)
    tracemalloc.start()
    try:
        for into in (None, out):
            with pytest.raises(ValueError, match="not finite|code -"):
                get_codec(name).decode(data, count, into)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert not out.any()


@settings(deadline=None)
@given(st.sampled_from(CODECS), st.data())
def test_any_bytes_decode_to_finite_values_or_are_refused(name: str, data: st.DataObject) -> None:
    size = get_codec(name).size(97)
    try:
        decoded = get_codec(name).decode(data.draw(st.binary(min_size=size, max_size=size)), 97)
    except ValueError:
        return
    assert np.isfinite(decoded).all()


@settings(deadline=None)
@given(st.sampled_from(CODECS), vectors)
def test_norms_and_bounds_are_those_of_the_decoded_values(name: str, values: Vector) -> None:
    codec = get_codec(name)
    data = codec.encode(values)
    decoded = codec.decode(data, len(values)).astype(np.float64)
    assert codec.norm2(data, len(values)) == pytest.approx(math.fsum(decoded**2), rel=1e-13, abs=0)
    bound, largest = codec.bound(data, len(values)), float(np.abs(decoded).max())
    assert largest <= bound <= 127 * largest


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", CODECS)
def test_norms_at_the_edges_of_blocks_too(name: str, size: int) -> None:
    codec = get_codec(name)
    data = codec.encode(np.random.default_rng(size).standard_normal(size, dtype=np.float32))
    decoded = codec.decode(data, size).astype(np.float64)
    assert codec.norm2(data, size) == pytest.approx(math.fsum(decoded**2), rel=1e-13)


@settings(deadline=None)
@given(st.sampled_from(CODECS), st.data())
def test_norms_and_bounds_refuse_what_decoding_refuses(name: str, data: st.DataObject) -> None:
    codec, count = get_codec(name), data.draw(st.integers(1, 150))
    raw = data.draw(st.binary(min_size=codec.size(count), max_size=codec.size(count)))
    found = []
    for call in (codec.decode, codec.norm2, codec.bound):
        try:
            call(raw, count)
            found.append("")
        except ValueError as error:
            found.append(str(error))
    assert len(set(found)) == 1


def test_an_unknown_codec_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="unknown codec 'zip'") as caught:
        get_codec("zip")
    assert caught.value.remedy == "choose one of float32, bf16, int8, int4"


def test_results_are_int8_or_finer() -> None:
    assert RESULT_CODECS == ("float32", "bf16", "int8")
