"""Checks that turn a decoded msgpack value into a typed one, or say in a few words what is wrong.

Every check takes a value and returns the converted value, raising ValueError. They are
written out at each message, so that what a peer may send can be read in one place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from .errors import RemoteError
from .ids import HASH_BYTES, Hash, PeerId, public_key

T = TypeVar("T")
Check = Callable[[object], T]


def hash32(value: object) -> Hash:
    """A BLAKE3 digest."""
    if type(value) is not bytes or len(value) != HASH_BYTES:
        raise ValueError("is not a 32-byte hash")
    return Hash(value)


def hashes(limit: int) -> Check[tuple[Hash, ...]]:
    """A list of at most ``limit`` digests, checked at once: a frame of parts has a hundred."""

    def check(value: object) -> tuple[Hash, ...]:
        if type(value) is not list or len(value) > limit:
            raise ValueError(f"is not a list of at most {limit} items")
        if not {*map(type, value)} <= {bytes} or not {*map(len, value)} <= {HASH_BYTES}:
            raise ValueError("is not a 32-byte hash")
        return tuple(value)

    return check


def identity(value: object) -> PeerId:
    """A peer id that holds an Ed25519 key."""
    if type(value) is not str:
        raise ValueError("is not a peer id")
    try:
        public_key(value)
    except RemoteError as error:
        raise ValueError(error.text) from error
    return PeerId(value)


def integer(low: int, high: int) -> Check[int]:
    """An integer in [low, high]; booleans are not integers."""

    def check(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"is not an integer from {low} to {high}")
        return value

    return check


def boolean(value: object) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise ValueError("is not true or false")
    return value


def real(value: object) -> float:
    """A finite double."""
    if type(value) is not float or not math.isfinite(value):
        raise ValueError("is not a finite number")
    return value


def text(limit: int) -> Check[str]:
    """A string of at most ``limit`` characters."""

    def check(value: object) -> str:
        if type(value) is not str or len(value) > limit:
            raise ValueError(f"is not a string of at most {limit} characters")
        return value

    return check


def data(limit: int) -> Check[bytes]:
    """A byte string of at most ``limit`` bytes."""

    def check(value: object) -> bytes:
        if type(value) is not bytes or len(value) > limit:
            raise ValueError(f"is not a byte string of at most {limit} bytes")
        return value

    return check


def list_of(item: Check[T], limit: int) -> Check[tuple[T, ...]]:
    """A list of at most ``limit`` items of one kind."""

    def check(value: object) -> tuple[T, ...]:
        if type(value) is not list or len(value) > limit:
            raise ValueError(f"is not a list of at most {limit} items")
        return tuple(item(each) for each in value)

    return check


def record(value: object, checks: Mapping[str, Check[object]]) -> dict[str, object]:
    """A map with exactly the keys of ``checks``, each value converted by its check."""
    if type(value) is not dict:
        raise ValueError("is not a map")
    missing, extra = checks.keys() - value.keys(), value.keys() - checks.keys()
    if missing or extra:
        unknown = [name[:16] for name in sorted(map(str, extra))[:4]]
        raise ValueError(f"has missing fields {sorted(missing)} or unknown fields {unknown}")
    out: dict[str, object] = {}
    for name, check in checks.items():
        try:
            out[name] = check(value[name])
        except ValueError as error:
            raise ValueError(f"{name} {error}") from error
    return out
