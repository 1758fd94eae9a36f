"""What travels on a stream: ``u32 LE header length · msgpack header · payload``.

The header is decoded strictly, and its declared payload size is checked against the limit
of its kind, before a single payload byte is read or allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import msgpack

from .errors import RemoteError
from .ids import HASH_BYTES, PROTOCOL

HEADER_LIMIT = 1024
"""Bytes of a header; statements and parts travel as payload."""

PAYLOAD_LIMITS = MappingProxyType(
    {
        "hello": 4 * 1024,
        "statement": 512 * 1024,
        "parts": 1280 * 1024,
        "results": 1280 * 1024,
        "want": 64 * 1024,
        "digest": 256,
        "have": 64 * 1024,
        "ask-chain": 8 * 1024,
        "chain": 4 * 1024 * 1024,
        "want-state": 4 * 1024,
        "leave-state": 32,
        "state-queue": 64,
        "state": 1280 * 1024,
        "ask-blob": 256,
        "blob": 128,
        "bytes": 1024 * 1024,
        "manifest": 4 * 1024 * 1024,
        "ask-reach": 512,
        "reach": 1024,
        "ping": 0,
    }
)
"""Largest payload of each kind, bytes. ``parts`` holds up to 1 MiB of values plus Merkle paths."""


@dataclass(frozen=True, slots=True)
class Header:
    """The validated start of a frame: its kind, the run it belongs to, and its payload's size in bytes."""

    kind: str
    run: bytes
    size: int


def encode_header(header: Header) -> bytes:
    """Length prefix and header, ready to be followed by ``header.size`` payload bytes."""
    raw: bytes = msgpack.packb({"protocol": PROTOCOL, "kind": header.kind, "run": header.run, "size": header.size})
    return len(raw).to_bytes(4, "little") + raw


def decode_header(raw: bytes, *, run: bytes, peer: str) -> Header:
    """Parse header bytes (without their length prefix) from ``peer``; raises RemoteError naming it."""
    if len(raw) > HEADER_LIMIT:
        raise RemoteError(peer, f"header of {len(raw)} bytes, limit {HEADER_LIMIT}")
    try:
        fields = msgpack.unpackb(raw, max_map_len=8, max_array_len=0, max_str_len=32, max_bin_len=HASH_BYTES)
    except Exception as error:  # msgpack raises many kinds, all of them mean "not a header"
        raise RemoteError(peer, "header is not msgpack") from error
    if not isinstance(fields, dict) or set(fields) != {"protocol", "kind", "run", "size"}:
        raise RemoteError(peer, "header has missing or unknown fields")
    kind, size = fields["kind"], fields["size"]
    if fields["protocol"] != PROTOCOL:
        raise RemoteError(peer, f"speaks protocol {fields['protocol']!r}, this daemon speaks {PROTOCOL}")
    if fields["run"] != run:
        raise RemoteError(peer, "belongs to another run")
    if not isinstance(kind, str) or kind not in PAYLOAD_LIMITS:
        raise RemoteError(peer, f"unknown frame kind {kind!r}")
    if type(size) is not int or not 0 <= size <= PAYLOAD_LIMITS[kind]:
        raise RemoteError(peer, f"{kind} frame of {size!r} bytes, limit {PAYLOAD_LIMITS[kind]}")
    return Header(kind, run, size)
