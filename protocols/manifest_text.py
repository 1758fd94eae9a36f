"""Manifest text → values, strictly: every key checked, one ConfigError that names the key and what to do."""

from __future__ import annotations

import re
import tomllib
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from .compression import BLOCK_VALUES, CODECS, RESULT_CODECS
from .errors import ConfigError
from .ids import PROTOCOL
from .manifest import (
    SCHEMA,
    Cells,
    Codec,
    Data,
    Inner,
    Manifest,
    Members,
    Model,
    Outer,
    Rule,
    Run,
    ShardEntry,
    Signature,
    Start,
    Window,
    verify,
)
from .messages import MAX_VIEW
from .rules import RULES
from .shapes import Check, boolean, identity, integer, list_of, record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TEXT_LIMIT = 1 << 20
"""Characters of a manifest."""
DOTS_LIMIT = 256
"""Of one dotted key, and more than a shard's id holds: the TOML parser takes their square in time."""
SHARD_LIMIT = 4096
FOUNDER_LIMIT = 64
ALLOW_LIMIT = 1024
STATE_LIMIT = 1 << 40
"""Bytes of a start state."""

_DECIMAL = re.compile(r"\d{1,9}(\.\d{1,12})?([eE][+-]?\d)?")
_FRACTION = re.compile(r"\d{1,4}/[1-9]\d{0,3}")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_SHARD_ID = re.compile(r"[^\x00-\x1f\x7f/\\][^\x00-\x1f\x7f\\]{0,199}")


def one_of(*choices: str) -> Check[str]:
    """One of a few words."""

    def check(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"is none of {', '.join(choices)}")
        return value

    return check


def decimal(low: str, high: str) -> Check[str]:
    """A decimal number in quotes within [low, high], in canonical form: ``"8e-3"`` → ``"0.008"``."""

    def check(value: object) -> str:
        if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
            raise ValueError('is not a decimal number in quotes, like "0.008" or "8e-3"')
        number = Decimal(value)
        if not Decimal(low) <= number <= Decimal(high):
            raise ValueError(f"is outside {low} … {high}")
        return format(number.normalize(), "f")

    return check


def share(value: object) -> str:
    """A fraction in quotes below one half, in lowest terms."""
    if not isinstance(value, str) or not _FRACTION.fullmatch(value):
        raise ValueError('is not a fraction in quotes, like "1/3"')
    fraction = Fraction(value)
    if not fraction < Fraction(1, 2):
        raise ValueError("is not below 1/2")
    return f"{fraction.numerator}/{fraction.denominator}"


def matching(pattern: re.Pattern[str], what: str) -> Check[str]:
    """A string of one form."""

    def check(value: object) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(f"is not {what}")
        return value

    return check


def hexadecimal(size: int) -> Check[str]:
    """Lower-case hex of ``size`` bytes."""
    return matching(re.compile(f"[0-9a-f]{{{2 * size}}}"), f"{2 * size} lower-case hex digits")


def some(item: Check[Any], limit: int) -> Check[tuple[Any, ...]]:
    """A list of 1 … ``limit`` different items."""

    def check(value: object) -> tuple[Any, ...]:
        items = list_of(item, limit)(value)
        if not items:
            raise ValueError("is empty")
        if len(set(items)) != len(items):
            raise ValueError("names something twice")
        return items

    return check


def allow(value: object) -> tuple[str, ...] | None:
    """Different keys; an empty list is none, so that both are one run."""
    return None if value == [] else some(identity, ALLOW_LIMIT)(value)


def state_bytes(value: object) -> int:
    """The size of two float32 vectors of one length."""
    size = integer(8, STATE_LIMIT)(value)
    if size % 8:
        raise ValueError("is not the size of two float32 vectors")
    return size


def result_codec(value: object) -> str:
    """A codec fine enough for results."""
    name = one_of(*CODECS)(value)
    if name not in RESULT_CODECS:
        fine = ", ".join(RESULT_CODECS)
        raise ValueError(f"is {name}, too coarse for what everybody applies: results are {fine}; updates may be {name}")
    return name


def betas(value: object) -> tuple[str, ...]:
    """Two decimals below one."""
    pair = list_of(decimal("0", "0.999999"), 2)(value)
    if len(pair) != 2:
        raise ValueError("is not a pair")
    return pair


def shards(value: object) -> tuple[ShardEntry, ...]:
    """Shards with different ids, none empty."""
    entries = some(_shard, SHARD_LIMIT)(value)
    if len({entry.id for entry in entries}) != len(entries):
        raise ValueError("names a shard twice")
    return entries


def _shard(value: object) -> ShardEntry:
    # A relative path is a fair id; one that climbs out of its folder is not.
    checks = {
        "id": matching(_SHARD_ID, "the name of a shard"),
        "bytes": integer(1, 1 << 50),
        "hash": hexadecimal(32),
    }
    entry = ShardEntry(**record(value, checks))  # type: ignore[arg-type]
    if ".." in entry.id.split("/"):
        raise ValueError("id leaves its folder")
    return entry


_NAMED = matching(_NAME, "a name of 1 … 64 lower-case letters, digits and hyphens")
_KEYS: Mapping[str, tuple[Callable[..., Any], Mapping[str, Check[Any]]]] = MappingProxyType(
    {
        "run": (
            Run,
            {
                "name": _NAMED,
                "seed": integer(0, 2**63 - 1),
                "protocol": integer(1, 1 << 16),
                "rounds": integer(0, 10**9),
            },
        ),
        "model": (
            Model,
            {"kind": one_of("gpt"), "size": one_of("nano", "tiny", "small", "base"), "context": integer(2, 8192)},
        ),
        "data": (
            Data,
            {"name": _NAMED, "shards": shards, "held_out": decimal("0.001", "0.5"), "deal": one_of("round", "fixed")},
        ),
        "round": (
            Window,
            {"steps": integer(1, 10**6), "seconds": integer(1, 86_400), "deadline": integer(20, 7 * 86_400)},
        ),
        "inner": (
            Inner,
            {
                "optimizer": one_of("adamw", "sgd"),
                "lr": decimal("0.000000001", "10"),
                "betas": betas,
                "weight_decay": decimal("0", "10"),
                "clip": decimal("0", "1000000"),
                "warmup": integer(0, 10**6),
                "reset": boolean,
                "batch": integer(1, 4096),
            },
        ),
        "outer": (Outer, {"lr": decimal("0.000001", "10"), "momentum": decimal("0", "0.999999")}),
        "codec": (
            Codec,
            {
                "update": one_of(*CODECS),
                "result": result_codec,
                "block": integer(BLOCK_VALUES, BLOCK_VALUES),
                "error_feedback": decimal("1", "1"),
            },
        ),
        "rule": (Rule, {"name": one_of(*RULES), "fallback": one_of("mean"), "tolerated": share}),
        "members": (
            Members,
            {
                "founders": some(identity, FOUNDER_LIMIT),
                "open": boolean,
                "probation": integer(0, 10**6),
                "allow": allow,
            },
        ),
        "cells": (Cells, {"list": some(one_of("model"), 1)}),
        "start": (
            Start,
            {
                "run": hexadecimal(32),
                "round": integer(0, MAX_VIEW),
                "seal": hexadecimal(32),
                "bytes": state_bytes,
                "hash": hexadecimal(32),
            },
        ),
        "signature": (Signature, {"peer": identity, "signature": hexadecimal(64)}),
    }
)
_OPTIONAL = frozenset({("round", "steps"), ("round", "seconds"), ("members", "allow")})
_OPTIONAL_SECTIONS = frozenset({"start", "signature"})
_UNKNOWN = "remove it, or update murmur if a newer version wrote it"


def parse(text: str) -> Manifest:
    """The manifest of TOML ``text``; a signature in it must hold, a missing one is ``verify``'s business.

    Raises ConfigError naming the first key that is unknown, missing, of a wrong type or out of range.
    """
    manifest = _parse(_decode(text))
    if manifest.signature is not None:
        verify(manifest)
    return manifest


def parse_unsigned(text: str) -> Manifest:
    """Like ``parse``, but any signature is dropped unseen: what one is about to sign anew."""
    top = _decode(text)
    top.pop("signature", None)
    return _parse(top)


def from_plain(plain: Mapping[str, object]) -> Manifest:
    """The manifest of maps and lists as ``to_plain`` makes them, any signature dropped unseen; raises ConfigError."""
    return _parse({name: plain[name] for name in plain if name != "signature"})


def _parse(top: Mapping[str, object]) -> Manifest:
    _refuse_newer(top)
    expected = {"schema", *_KEYS}
    for name in sorted(top.keys() - expected):
        _refuse(str(name), "is unknown", _UNKNOWN)
    for name in sorted(expected - top.keys() - _OPTIONAL_SECTIONS):
        _refuse(f"[{name}]", "is missing", "compare with `murmur run init`")
    manifest = Manifest(**{name: _section(name, top[name]) for name in _KEYS if name in top})
    _check_together(manifest)
    return manifest


def _decode(text: str) -> dict[str, object]:
    if len(text) > TEXT_LIMIT:
        _refuse(f"{len(text)} characters", f"are above the limit of {TEXT_LIMIT}", "name fewer, larger shards")
    if _longest_dotted(text) > DOTS_LIMIT:
        _refuse("the text", f"has a name of more than {DOTS_LIMIT} parts", "start anew from `murmur run init`")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        _refuse("the text", f"is not TOML: {error}", "correct the line, or start anew from `murmur run init`")


def _longest_dotted(text: str) -> int:
    """Dots that follow each other within a line with no equals sign between."""
    longest = run = 0
    for piece in text.split("."):
        run = 0 if "\n" in piece or "=" in piece else run + 1
        longest = max(longest, run)
    return longest


def _refuse_newer(top: Mapping[str, object]) -> None:
    schema = top.get("schema", SCHEMA)
    if type(schema) is not int or schema != SCHEMA:
        _refuse("schema", f"is {schema!r}, this version reads {SCHEMA}", "update murmur to the version that wrote it")
    run = top.get("run")
    protocol = run.get("protocol", PROTOCOL) if isinstance(run, dict) else PROTOCOL
    if type(protocol) is int and protocol != PROTOCOL:
        remedy = "update murmur on this machine" if protocol > PROTOCOL else "ask the founders for a new manifest"
        _refuse("[run] protocol", f"is {protocol}, this version speaks {PROTOCOL}", remedy)


def _section(name: str, table: object) -> Any:
    build, checks = _KEYS[name]
    if not isinstance(table, dict):
        _refuse(f"[{name}]", "is not a section", "compare with `murmur run init`")
    for key in sorted(table.keys() - checks.keys()):
        _refuse(f"[{name}] {key}", "is unknown", _UNKNOWN)
    values = {}
    for key, check in checks.items():
        if key not in table:
            if (name, key) in _OPTIONAL:
                continue
            _refuse(f"[{name}] {key}", "is missing", "compare with `murmur run init`")
        try:
            values[key] = check(table[key])
        except ValueError as error:
            _refuse(f"[{name}] {key}", str(error), "correct the value")
    return build(**values)


def _check_together(manifest: Manifest) -> None:
    window = manifest.round
    if (window.steps is None) == (window.seconds is None):
        _refuse("[round]", "needs either steps or seconds", "keep one of the two")
    if window.seconds is not None and window.deadline < window.seconds:
        _refuse("[round] deadline", "is shorter than seconds", "make it at least as long")
    if manifest.members.open and manifest.members.allow is not None:
        _refuse("[members] open", "lets everybody in, and allow only some", "keep one of the two")


def _refuse(key: str, why: str, remedy: str) -> NoReturn:
    raise ConfigError(f"manifest: {key:.200} {why:.400}", remedy=remedy)
