"""Canonical msgpack: one value, one string of bytes, so that hashes and signatures agree everywhere.

Maps have string keys in sorted order, integers and lengths their shortest form, floats are
IEEE doubles. Decoding refuses anything that does not encode back to the same bytes.
"""

from __future__ import annotations

from typing import TypeAlias

import msgpack

Value: TypeAlias = "None | bool | int | float | str | bytes | list[Value] | tuple[Value, ...] | dict[str, Value]"


def pack(value: Value) -> bytes:
    """The canonical bytes of ``value``."""
    packed: bytes = msgpack.packb(_sorted(value), use_bin_type=True)
    return packed


def unpack(raw: bytes, *, depth: int = 8) -> Value:
    """The value of canonical bytes; raises ValueError when they are malformed or not canonical.

    ``raw`` is already in memory, so every length inside is bounded by its size.
    """
    try:
        value: Value = msgpack.unpackb(raw, raw=False, strict_map_key=True, use_list=True)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"not msgpack: {error}") from error
    if _depth(value, depth) < 0:
        raise ValueError(f"nested deeper than {depth}")
    try:
        same = pack(value) == raw
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"not canonical: {error}") from error
    if not same:
        raise ValueError("not in canonical form")
    return value


def _sorted(value: Value) -> Value:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_sorted(item) for item in value]
    return value


def _depth(value: Value, left: int) -> int:
    if left < 0:
        return left
    if isinstance(value, dict):
        return min((_depth(item, left - 1) for item in value.values()), default=left)
    if isinstance(value, list):
        return min((_depth(item, left - 1) for item in value), default=left)
    return left
