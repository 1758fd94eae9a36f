"""Inputs that once broke a decoder, as the fuzzers found them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgpack
import pytest

from tests.fuzzing.decoders import table

if TYPE_CHECKING:
    from tests.fuzzing.decoder import Decoder

TABLE = {decoder.name: decoder for decoder in table()}
LISTS = b"\xdc\x0f\xff" * 1100
"""Lists in lists that only declare their 4095 items: 3.3 kB for which the decoder set 34 MB aside."""


def _tuples(depth: int) -> bytes:
    """hivemind's tuples, one in the other."""
    raw = b"\xc0"
    for _ in range(depth):
        raw = bytes(msgpack.packb(msgpack.ExtType(0x40, b"\x91" + raw)))
    return raw


FOUND: list[tuple[str, bytes, str]] = [
    ("signed vote", LISTS, "34 MB"),
    ("want", LISTS, "34 MB"),
    ("signed record", b"\xdc\xff\xff" * 1100, "82 MB"),
    ("value for hivemind", _tuples(400), "a segmentation fault"),
    ("value for hivemind", (b"\xdc\x90\x00" * 1000).ljust(38_000, b"\xc0"), "80 MB"),
    ("stored record", b"\x01\xa1" + b"\xdc\x3f\x00" * 5000, "lists of a directory value had no bound"),
    ("trainer channel", LISTS, "34 MB"),
    ("head of a checkpoint", b"\xdd\x00\x01\x00\x00" * 1100, "82 MB"),
    ("invitation", "murmur1adky\u00e9".encode(), "ValueError: letters beyond ASCII"),
    ("round log", b"[" * 1146, "RecursionError"),
    ("round log", b'{"round": 1}\n' + b'{"a":' * 1100, "RecursionError"),
    ("address book", b'["",' * 1100, "RecursionError"),
    ("api.json", b"[" * 1100, "RecursionError"),
    ("api.json", b'{"schema": 1, "port": -Infinity, "token": "abc", "pid": 12}', "OverflowError"),
    ("api.json", b'{"schema": 1, "port": 70000, "token": "abc", "pid": 12}', "OverflowError in the client"),
    ("api.json", b'{"schema": 1, "port": 4001, "token": "a\\nb: c", "pid": 12}', "ValueError in the client"),
    ("refusal", b'{"schema": 1, "error": true}', "AttributeError"),
    ("refusal", b"[" * 1149, "RecursionError"),
    ("refusal", b'{"schema": 1, "error": {"text": "' + b"0" * 10_000 + b'"}}', "an error of 10 kB"),
    ("status", b'{"schema": 1}', "KeyError: the status of another version"),
    ("status", b'{"schema": 1, "run": {}, "round": [], "model": 5}', "TypeError"),
    ("chain file", b"", "256 MB were set aside to read an empty file"),
    (
        "trace of p2pd",
        b'{"pid": -5, "started": 0, "executable": "", "owner": 1, "owner_started": 0, "directory": ""}',
        "ValueError of psutil",
    ),
    ("record of a journal", b"\x94\x81\xa1a\x01\x03\xc4\x00\xc4\x00", "TypeError: a map as a key"),
    ("record of a journal", b"\x94\xc4\x00\x91\x90\xc4\x00\xc4\x00", "TypeError: a list as a round"),
    ("manifest text", b"schema = 1\n" + b"x" * 3000 + b" = 1", "an error of 3 kB"),
    ("manifest text", b'schema = 1\n"\\u001b[31m\\n" = 1', "an error with line ends and colours"),
    ("manifest text", b"a." * 100_000, "7 s, and four times that for twice the length"),
]


@pytest.mark.parametrize(("name", "raw", "why"), FOUND, ids=[f"{name}: {why}" for name, _, why in FOUND])
def test_it_is_refused_at_once(name: str, raw: bytes, why: str) -> None:
    decoder: Decoder = TABLE[name]
    decoder.take(decoder.examples[0])  # loads what it needs
    started = time.process_time()
    decoder.take(raw)
    assert time.process_time() - started < 0.25, why  # fuzz.py has the true bound; other tests' garbage counts here
    assert decoder.peak(raw) <= decoder.allowed(raw), why
