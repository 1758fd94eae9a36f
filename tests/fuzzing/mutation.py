"""Inputs that nobody honest sends: valid examples with a few bytes, lengths or values changed, and bombs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import msgpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

WEIRD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 127, 128, 255, 65536, 2**31, 2**32, 2**48 + 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1,
    -(2**63), 0.0, -0.0, 1.5, 1e308, 5e-324, math.nan, math.inf, -math.inf, "", "x", "x" * 300, "é\x00\u202e", b"",
    bytes(8), bytes(31), bytes(32), bytes(33), bytes(64), bytes(5000), [], [[]], [[[[[[[[[[]]]]]]]]]], [None] * 70,
    {}, {"a": 1}, {"a": {"b": []}}, [0, 1], ["", ""],
)  # fmt: skip
"""Values that a field may be set to."""

EDGES = (
    0x00,
    0x01,
    0x7F,
    0x80,
    0x90,
    0x91,
    0xA0,
    0xC0,
    0xC1,
    0xC4,
    0xC7,
    0xCA,
    0xCB,
    0xCF,
    0xD3,
    0xD6,
    0xD9,
    0xDB,
    0xDC,
)
"""Bytes that mean much in msgpack, and the edges of small integers."""

LENGTHS = (0, 1, 31, 32, 33, 255, 256, 65535, 65536, 2**20, 2**24, 2**31 - 1, 2**31, 2**32 - 1)

_BOMBS = (
    b"\xdc\xff\xff", b"\xdc\x3f\x00", b"\xdc\x0f\xff", b"\xdd\x00\x01\x00\x00", b"\xdd\xff\xff\xff\xff",
    b"\x91", b"\x90", b"\xde\x00\x40", b"\xdf\xff\xff\xff\xff", b"\x81\xa1a", b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff", b"\xc0", b"\xa0", b"\x80", b"[", b'{"a":', b'["",', b"{", b"[[a]]\n", b"a.", b"\xff",
    b"\x00",
)  # fmt: skip
BOMB_COUNTS = (3, 40, 600, 1100, 20_000)


def bombs(limit: int) -> list[bytes]:
    """Repeated openings, alone and after what makes a list of them, none longer than ``limit``."""
    found = [one * min(count, limit // len(one)) for one in _BOMBS for count in BOMB_COUNTS]
    many = [b"\xdc\xff\xff" + one * 65535 for one in (b"\x90", b"\xc0", b"\x80", b"\xa0")]
    return [each for each in dict.fromkeys([*found, *many]) if 0 < len(each) <= limit]


def mutate(draw: Random, examples: Sequence[bytes], limit: int) -> bytes:
    """One of ``examples`` after one to four changes, at most ``limit`` + 64 bytes."""
    data = bytearray(draw.choice(examples))
    for _ in range(draw.choice((1, 1, 1, 2, 3, 4))):
        data = bytearray(draw.choice(_CHANGES)(draw, data, examples))
    return bytes(data[: limit + 64])


def _flip(draw: Random, data: bytearray, _: Sequence[bytes]) -> bytes:
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def _edge(draw: Random, data: bytearray, _: Sequence[bytes]) -> bytes:
    if data:
        data[draw.randrange(len(data))] = draw.choice(EDGES)
    return bytes(data)


def _cut(draw: Random, data: bytearray, _: Sequence[bytes]) -> bytes:
    return bytes(data[: draw.randrange(len(data) + 1)])


def _remove(draw: Random, data: bytearray, _: Sequence[bytes]) -> bytes:
    start = draw.randrange(len(data) + 1)
    del data[start : start + draw.choice((1, 2, 4, 8, 32, 100))]
    return bytes(data)


def _insert(draw: Random, data: bytearray, _: Sequence[bytes]) -> bytes:
    start = draw.randrange(len(data) + 1)
    data[start:start] = draw.randbytes(draw.choice((1, 1, 2, 4, 8, 32)))
    return bytes(data)


def _repeat(draw: Random, data: bytearray, _: Sequence[bytes]) -> bytes:
    start = draw.randrange(len(data) + 1)
    piece = data[start : start + draw.choice((1, 2, 8, 40, 200))]
    data[start:start] = piece * draw.choice((1, 2, 50))
    return bytes(data)


def _splice(draw: Random, data: bytearray, examples: Sequence[bytes]) -> bytes:
    other = draw.choice(examples)
    return bytes(data[: draw.randrange(len(data) + 1)]) + other[draw.randrange(len(other) + 1) :]


def _length(draw: Random, data: bytearray, _: Sequence[bytes]) -> bytes:
    start = draw.choice((0, draw.randrange(len(data) + 1)))
    size = draw.choice((2, 4))
    data[start : start + size] = (draw.choice(LENGTHS) % (1 << 8 * size)).to_bytes(size, draw.choice(("little", "big")))
    return bytes(data)


def _bomb(draw: Random, data: bytearray, _: Sequence[bytes]) -> bytes:
    start = draw.choice((0, draw.randrange(len(data) + 1)))
    bomb = draw.choice(_BOMBS) * draw.choice(BOMB_COUNTS[:4])
    return bytes(data[:start]) + bomb + bytes(data[start:])


def _restructure(draw: Random, data: bytearray, _: Sequence[bytes]) -> bytes:
    """Change a value inside msgpack (whole, or behind a u32 LE length) or JSON; the frame around it fits again."""
    raw = bytes(data)
    for read, write in _FORMATS:
        try:
            value, rest = read(raw)
            changed = _change(draw, value)
            return write(changed) + rest
        except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
            continue
    return raw


def _change(draw: Random, value: Any) -> Any:
    """``value`` with one node of it replaced, removed, added or doubled."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        out = dict(value)
        action = draw.random()
        if action < 0.06:
            del out[key]
        elif action < 0.12:
            out[draw.choice(("zz", "", "a" * 70))] = draw.choice(WEIRD)
        else:
            out[key] = _change(draw, value[key])
        return out
    if isinstance(value, list) and value and draw.random() < 0.85:
        place = draw.randrange(len(value))
        out_list = list(value)
        action = draw.random()
        if action < 0.1:
            del out_list[place]
        elif action < 0.2:
            out_list += out_list[place : place + 1] * draw.choice((1, 3, 200))
        else:
            out_list[place] = _change(draw, value[place])
        return out_list
    if isinstance(value, bytes) and len(value) > 40 and draw.random() < 0.5:
        return _restructure(draw, bytearray(value), ())  # bytes that hold msgpack themselves
    if isinstance(value, int | float) and not isinstance(value, bool) and draw.random() < 0.4:
        return value + draw.choice((-1, 1, 1 << 20))
    return draw.choice(WEIRD)


def plausible(draw: Random, value: Any, known: Sequence[Any]) -> Any:
    """``value`` with one leaf changed to another of its type: a neighbour, an edge, or one of the ``known`` values."""
    if isinstance(value, dict) and value:
        key = draw.choice(list(value))
        return {**value, key: plausible(draw, value[key], known)}
    if isinstance(value, list) and value and draw.random() < 0.6:
        place = draw.randrange(len(value))
        return [*value[:place], plausible(draw, value[place], known), *value[place + 1 :]]
    if isinstance(value, list):
        return draw.choice((value[1:], value + value[:1], value[::-1], []))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice((0, 1, 2, value + 1, max(0, value - 1), 2**40))
    if isinstance(value, float):
        return draw.choice((0.0, -value, value * 2, 1e300, -1e300, 5e-324, value + 1e-9))
    alike = [each for each in known if type(each) is type(value) and len(each) == len(value)]
    if alike:
        return draw.choice(alike)
    return draw.choice((b"", value[:-1], bytes(len(value)))) if isinstance(value, bytes) else value


def _read_prefixed(raw: bytes) -> tuple[Any, bytes]:
    size = int.from_bytes(raw[:4], "little")
    if not 0 < size <= len(raw) - 4:
        raise ValueError("no length")
    return msgpack.unpackb(raw[4 : 4 + size]), raw[4 + size :]


def _write_prefixed(value: Any) -> bytes:
    packed = _pack(value)
    return len(packed).to_bytes(4, "little") + packed


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(_sorted(value))
    return packed


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value, key=str)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _write_json(value: Any) -> bytes:
    return json.dumps(value, default=lambda item: item.hex()).encode()


_FORMATS: tuple[tuple[Callable[[bytes], tuple[Any, bytes]], Callable[[Any], bytes]], ...] = (
    (lambda raw: (msgpack.unpackb(raw), b""), _pack),
    (_read_prefixed, _write_prefixed),
    (lambda raw: (json.loads(raw), b""), _write_json),
)
_CHANGES = (
    _flip, _flip, _edge, _cut, _remove, _insert, _repeat, _splice, _length, _bomb, _restructure, _restructure,
    _restructure, _restructure,
)  # fmt: skip
