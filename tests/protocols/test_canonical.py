"""Canonical msgpack: one value, one string of bytes; anything else is a ValueError and nothing else."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.canonical import pack, unpack

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    | st.binary(max_size=300)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text("abcxyz", max_size=3), inner, max_size=20),
    max_leaves=30,
)


def bits(value: Any) -> Any:
    """A value in which floats are their bits and every type is itself, so that -0.0 and 1 == 1.0 do not pass."""
    if isinstance(value, float):
        return struct.pack(">d", value), "float"
    if isinstance(value, list):
        return [bits(each) for each in value]
    if isinstance(value, dict):
        return {key: bits(each) for key, each in value.items()}
    return type(value).__name__, value


@settings(max_examples=60)
@given(values)
def test_every_value_comes_back_in_every_bit(value: Any) -> None:
    assert bits(unpack(pack(value), depth=40)) == bits(value)


@given(st.dictionaries(st.text("abc", max_size=4), scalars, max_size=6), st.randoms())
def test_bytes_do_not_depend_on_the_order_of_insertion(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert pack(dict(items)) == pack(value)


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_canonical_value_or_a_value_error(raw: bytes) -> None:
    try:
        value = unpack(raw)
    except ValueError:
        return
    assert pack(value) == raw


@settings(max_examples=80)
@given(values, st.data())
def test_damaged_bytes_are_a_canonical_value_or_a_value_error(value: Any, data: st.DataObject) -> None:
    raw = bytearray(pack(value))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = unpack(bytes(raw), depth=40)
    except ValueError:
        return
    assert pack(found) == raw


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("nothing", b""),
        ("a byte msgpack never uses", b"\xc1"),
        ("unsorted keys", msgpack.packb({"b": 1, "a": 2})),
        ("a key twice", b"\x82\xa1a\x01\xa1a\x01"),
        ("a binary key", b"\x81\xc4\x01a\x01"),
        ("a number as key", b"\x81\x01\x01"),
        ("a list as key", b"\x81\x90\x01"),
        ("binary and text keys", b"\x82\xc4\x01a\x01\xa1a\x01"),
        ("one as a byte", b"\xcc\x01"),
        ("one as a signed byte", b"\xd0\x01"),
        ("200 in eight bytes", b"\xcf" + (200).to_bytes(8, "big")),
        ("-1 in two bytes", b"\xd1\xff\xff"),
        ("a short string with a long length", b"\xd9\x01a"),
        ("a short list with a long length", b"\xdc\x00\x01\xc0"),
        ("a short map with a long length", b"\xde\x00\x01\xa1a\xc0"),
        ("a short binary with a long length", b"\xc5\x00\x01a"),
        ("a float of four bytes", b"\xca\x3f\x80\x00\x00"),
        ("not a number", b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"),
        ("not a number inside", pack([1, {"a": [float("nan")]}])),
        ("text that is not UTF-8", b"\xa2\xc3\x28"),
        ("a lone surrogate", b"\xa3\xed\xa0\x80"),
        ("an extension", b"\xd4\x05a"),
        ("an extension inside", b"\x91\xd4\x05a"),
        ("a timestamp", b"\xd6\xff\x00\x00\x00\x01"),
        ("a timestamp inside", b"\x81\xa1a\xd6\xff\x00\x00\x00\x01"),
        ("a wrong timestamp", b"\xc7\x03\xff\x01\x02\x03"),
        ("bytes behind the value", b"\x01\x01"),
        ("a value cut short", pack([1, "abc"])[:-1]),
        ("too deep", b"\x91" * 9 + b"\xc0"),
        ("much too deep", b"\x91" * 200_000 + b"\xc0"),
        ("maps much too deep", b"\x81\xa1a" * 3_000 + b"\xc0"),
        ("a list of four thousand million", b"\xdd\xff\xff\xff\xff"),
        ("a map of four thousand million", b"\xdf\xff\xff\xff\xff"),
        ("two gigabytes", b"\xc6\x80\x00\x00\x00" + b"\x00" * 100),
    ],
)
def test_what_is_not_canonical_is_refused(name: str, raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"not|nested|key|a "):
        unpack(raw)


def test_depth_and_items_are_limits_and_not_a_hair_less() -> None:
    assert unpack(b"\x91" * 3 + b"\xc0", depth=3) == [[[None]]]
    with pytest.raises(ValueError, match="deep"):
        unpack(b"\x91" * 3 + b"\xc0", depth=2)
    assert unpack(pack([1, 2, 3]), items=3) == [1, 2, 3]
    with pytest.raises(ValueError, match="not msgpack"):
        unpack(pack([1, 2, 3]), items=2)


@pytest.mark.parametrize("head", [b"\xdd\x00\x00\x10\x00", b"\xdd\x00\x07\xff\x00", b"\xdf\x00\x00\x00\x40\xa1a"])
def test_declared_sizes_set_little_aside(head: bytes) -> None:
    """Half a megabyte that promises list in list in list, each as long as it may be."""
    raw = (head * 500).ljust(1 << 19, b"\xc0")
    tracemalloc.start()
    with pytest.raises(ValueError, match="not msgpack"):
        unpack(raw, items=4096)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20
