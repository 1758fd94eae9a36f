"""Canonical msgpack: one value, one string of bytes, so that hashes and signatures agree everywhere.

Maps have string keys in sorted order, integers and lengths their shortest form, floats are
IEEE doubles but never NaN. Decoding refuses anything that does not encode back to the same bytes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import msgpack

if TYPE_CHECKING:
    from collections.abc import Iterable

Value: TypeAlias = "None | bool | int | float | str | bytes | list[Value] | tuple[Value, ...] | dict[str, Value]"

MAX_ITEMS = 1 << 16
"""Items of one list: the rows of the largest table."""
MAX_FIELDS = 64
SPARE_ITEMS = 256
"""Items of the maps around a message's lists."""
_Container = TypeVar("_Container", list[object], dict[object, object])


def pack(value: Value) -> bytes:
    """The canonical bytes of ``value``."""
    packed: bytes = msgpack.packb(_sorted(value), use_bin_type=True)
    return packed


def pack_sorted(value: Value) -> bytes:
    """``pack`` of a value all of whose maps are in order as they are: long lists need not be walked through."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack(raw: bytes, *, depth: int = 8, items: int = MAX_ITEMS) -> Value:
    """The value of canonical bytes; raises ValueError when they are malformed or not canonical.

    A list has at most ``items``; all lists and maps together hold at most 4 · ``items`` + 256 of them.
    """
    value = cast("Value", decode_bounded(raw, items=items, total=4 * items + SPARE_ITEMS))
    _check(value, depth)
    try:
        same = msgpack.packb(value) == raw
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"not canonical: {error}") from error
    if not same:
        raise ValueError("not in canonical form")
    return value


def decode_bounded(raw: bytes, *, items: int, total: int) -> object:
    """One msgpack value, canonical or not; raises ValueError. Lists have at most ``items``, all containers ``total``.

    The decoder sets lists aside by their declared lengths: those of 3 kB, nested in each other, come to 34 MB. So the
    value is walked through first, which makes nothing and shows that all that is declared is here. And half a
    megabyte of empty maps takes a third of a second to make: what is made is counted, and too much is not finished.
    """
    left = total

    def made(container: _Container) -> _Container:
        nonlocal left
        left -= 1 + len(container)
        if left < 0:
            raise ValueError(f"more than {total} items")
        return container

    try:
        walker = msgpack.Unpacker(read_size=len(raw) or 1, max_buffer_size=len(raw) or 1)
        walker.feed(raw)
        walker.skip()
        return msgpack.unpackb(raw, max_array_len=items, max_map_len=MAX_FIELDS, list_hook=made, object_hook=made)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"not msgpack: {error}") from error


def _sorted(value: Value) -> Value:
    if isinstance(value, dict):
        return {key: item if type(item := value[key]) in _SCALARS else _sorted(item) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [item if type(item) in _SCALARS else _sorted(item) for item in value]
    return value


def _check(value: object, depth: int) -> None:
    """Only the types that ``pack`` is meant for, so that no extension or binary key slips through."""
    if depth < 0:
        raise ValueError("nested too deep")
    if type(value) is dict:
        keys = list(value)
        if not all(type(key) is str for key in keys) or keys != sorted(keys):
            raise ValueError("keys that are not strings in order")
        _check_all(value.values(), depth - 1)
    elif type(value) is list:
        _check_all(value, depth - 1)
    elif type(value) is float:
        if math.isnan(value):
            raise ValueError("not a number")
    elif value is not None and type(value) not in _SCALARS:
        raise ValueError(f"a {type(value).__name__}")


def _check_all(values: Iterable[object], depth: int) -> None:
    for each in values:
        if depth < 0 or type(each) not in _SCALARS:
            _check(each, depth)


_SCALARS = frozenset((bool, int, str, bytes))
