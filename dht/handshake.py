"""The first words on a stream: do both ends speak the same protocol, and about the same run?

Both sides send one ``u32 LE length · msgpack {protocol, run, software, refusal}``. Its form never changes with the
protocol version, so that two versions can tell each other why they part.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from protocols.errors import RemoteError
from protocols.ids import HASH_BYTES, PROTOCOL

from .limits import HELLO_BYTES

HELLO_LIMIT = HELLO_BYTES
"""Bytes of a hello, without its length prefix."""

MAX_TEXT = 256

PRIVATE = "private run: this key is not on its list"
"""Why a peer is refused that the run's manifest does not admit."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What one end says about itself; ``refusal`` is empty or why it hangs up."""

    run: bytes
    software: str
    protocol: int = PROTOCOL
    refusal: str = ""


def encode_hello(hello: Hello) -> bytes:
    """The hello with its length prefix."""
    fields = {
        "protocol": hello.protocol,
        "run": hello.run,
        "software": hello.software[:MAX_TEXT],
        "refusal": hello.refusal[:MAX_TEXT],
    }
    raw: bytes = msgpack.packb(fields)
    return len(raw).to_bytes(4, "little") + raw


def decode_hello(raw: bytes, *, peer: str) -> Hello:
    """Parse a hello (without length prefix) from ``peer``; raises RemoteError naming it."""
    if len(raw) > HELLO_LIMIT:
        raise RemoteError(peer, f"hello of {len(raw)} bytes, limit {HELLO_LIMIT}")
    try:
        fields = msgpack.unpackb(raw, max_map_len=8, max_array_len=0, max_str_len=HELLO_LIMIT, max_bin_len=HASH_BYTES)
    except Exception as error:  # msgpack raises many kinds, all of them mean "not a hello"
        raise RemoteError(peer, "hello is not msgpack") from error
    if not isinstance(fields, dict) or set(fields) != {"protocol", "run", "software", "refusal"}:
        raise RemoteError(peer, "hello has missing or unknown fields")
    protocol, run, software, refusal = (fields[name] for name in ("protocol", "run", "software", "refusal"))
    if type(protocol) is not int or not isinstance(run, bytes) or len(run) != HASH_BYTES:
        raise RemoteError(peer, "hello names no protocol or no run")
    return Hello(run, _text(software, peer), protocol, _text(refusal, peer))


def difference(own: Hello, theirs: Hello) -> str:
    """In words, why the two ends must part; empty when they agree."""
    if own.protocol != theirs.protocol:
        return (
            f"speaks protocol {theirs.protocol} (software {theirs.software}), "
            f"this daemon {own.protocol} (software {own.software})"
        )
    if own.run != theirs.run:
        return f"belongs to run {theirs.run.hex()[:16]}, this daemon to run {own.run.hex()[:16]}"
    return ""


def _text(value: object, peer: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        raise RemoteError(peer, "hello has a text that is not printable or too long")
    return value
