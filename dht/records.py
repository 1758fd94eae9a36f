"""What a peer says about itself in the directory, signed: a hint where to find it, never truth about the run.

On the wire: canonical msgpack of ``{"record": {...}, "signature": 64 bytes}``; the signature covers the record's
canonical bytes after a domain tag.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from protocols.canonical import Value, pack, unpack
from protocols.errors import LocalError, RemoteError
from protocols.ids import HASH_BYTES
from protocols.signing import verify

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD_LIMIT = 16 * 1024
"""Bytes of an encoded record."""

MAX_ADDRESSES = 16
MAX_ADDRESS_CHARS = 512
MAX_ROLES = 16
MAX_WORD_CHARS = 64
MAX_INTEGER = 2**63 - 1
INSTANCE_BYTES = 16

CLOCK_LIMIT_S = 3.0
"""hivemind's own bound on the difference between two nodes' clocks, and so ours on what a record says of time."""

_DOMAIN = b"murmur/1/peer-record\0"


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """One peer of one run, as it describes itself."""

    run: bytes
    """The run's id, 32 bytes."""
    peer: str
    addresses: tuple[str, ...]
    """Multiaddrs ending in ``/p2p/<peer>``."""
    roles: tuple[str, ...]
    version: str
    """Software version, for people."""
    head_round: int
    """Number of the last round that the peer holds a seal of."""
    sequence: int
    """Grows with every issue: max(last + 1, unix milliseconds)."""
    expires: int
    """Unix seconds."""
    instance: bytes = bytes(INSTANCE_BYTES)
    """Which home on which machine issued it (``lease.instance_of``): one key belongs on one machine."""
    since: int = 0
    """Since when that instance holds the key, unix seconds."""
    left: bool = False
    """Its issuer has left, and the key is free."""


_FIELDS = frozenset(field.name for field in fields(PeerRecord))


def key_of(run: bytes) -> str:
    """The directory key under which a run's peer records lie, one subkey per peer."""
    return f"{run.hex()}/peer"


def next_sequence(last: int, unix_ms: int) -> int:
    """The sequence number to issue after ``last`` (0 = none yet): grows even when the clock was set back."""
    return max(last + 1, unix_ms)


def expiration_of(record: PeerRecord) -> float:
    """Until when the directory keeps ``record``, unix seconds: of two of one second the later one stays longer.

    hivemind keeps of one owner's records the one that expires last, and of equal ones the first.
    """
    return record.expires + record.sequence % 1000 / 1000


def encode_record(record: PeerRecord, sign: Callable[[bytes], bytes]) -> bytes:
    """Signed bytes of ``record``; raises LocalError when it is larger than a directory entry may be."""
    body = _body(record)
    encoded = pack({"record": body, "signature": sign(_DOMAIN + pack(body))})
    if len(encoded) > RECORD_LIMIT:
        raise LocalError(f"a peer record of {len(encoded)} bytes is larger than the directory takes ({RECORD_LIMIT})")
    try:
        _record(body)
    except ValueError as error:
        raise LocalError(str(error)) from error
    return encoded


def decode_record(encoded: bytes, *, source: str, checked: bool = False) -> PeerRecord:
    """The record in ``encoded`` if its own peer signed it; raises RemoteError naming ``source``, who handed it over.

    ``checked``: its signature was found good before, and is not looked at again.
    """
    if len(encoded) > RECORD_LIMIT:
        raise RemoteError(source, f"peer record of {len(encoded)} bytes, limit {RECORD_LIMIT}")
    try:
        value = unpack(encoded, depth=4, items=4 * MAX_ADDRESSES)
        if not isinstance(value, dict) or set(value) != {"record", "signature"}:
            raise ValueError("peer record has missing or unknown fields")
        body, signature = value["record"], value["signature"]
        if not isinstance(body, dict) or not isinstance(signature, bytes):
            raise ValueError("peer record has fields of a wrong type")
        record = _record(body)
    except ValueError as error:
        raise RemoteError(source, str(error)) from error
    if not checked and not verify(record.peer, _DOMAIN + pack(body), signature):
        raise RemoteError(source, f"peer record of {record.peer} is not signed by it")
    return record


def _body(record: PeerRecord) -> dict[str, Value]:
    return {
        "run": record.run,
        "peer": record.peer,
        "addresses": record.addresses,
        "roles": record.roles,
        "version": record.version,
        "head_round": record.head_round,
        "sequence": record.sequence,
        "expires": record.expires,
        "instance": record.instance,
        "since": record.since,
        "left": record.left,
    }


def _record(body: dict[str, Value]) -> PeerRecord:
    """The record with these fields; raises ValueError when one is missing, unknown, of a wrong type or too long."""
    if set(body) != _FIELDS:
        raise ValueError("peer record has missing or unknown fields")
    run = body["run"]
    if not isinstance(run, bytes) or len(run) != HASH_BYTES:
        raise ValueError("peer record names no run")
    instance, left = body["instance"], body["left"]
    if not isinstance(instance, bytes) or len(instance) != INSTANCE_BYTES or not isinstance(left, bool):
        raise ValueError("peer record names no instance")
    numbers = ("head_round", "sequence", "expires", "since")
    head_round, sequence, expires, since = (_integer(body[name]) for name in numbers)
    return PeerRecord(
        run=run,
        peer=_word(body["peer"], MAX_WORD_CHARS),
        addresses=_words(body["addresses"], MAX_ADDRESSES, MAX_ADDRESS_CHARS),
        roles=_words(body["roles"], MAX_ROLES, MAX_WORD_CHARS),
        version=_word(body["version"], MAX_WORD_CHARS),
        head_round=head_round,
        sequence=sequence,
        expires=expires,
        instance=instance,
        since=since,
        left=left,
    )


def _integer(value: Value) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise ValueError("peer record has a number out of range")
    return value


def _word(value: Value, limit: int) -> str:
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise ValueError(f"peer record has a text that is not printable or longer than {limit}")
    return value


def _words(value: Value, count: int, limit: int) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > count:
        raise ValueError(f"peer record has a list longer than {count}")
    return tuple(_word(item, limit) for item in value)
