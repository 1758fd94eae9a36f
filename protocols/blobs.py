"""Frames of ``/murmur/1/blob``: files that a run names by BLAKE3 hash, and the run's manifest, by range (design.md 6).

A request is ``ask-blob``; the reply to it ``blob``, which says what follows: ``bytes`` frames in order, or nothing.
Who asks for the run id gets the ``manifest`` frame instead. On one stream a request follows the end of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from blake3 import blake3

from .canonical import pack, unpack
from .errors import ConfigError, RemoteError
from .frames import PAYLOAD_LIMITS
from .manifest import Manifest, ShardEntry, Signature, run_id, to_plain, verify
from .manifest_text import SHARD_LIMIT, from_plain
from .shapes import data, hash32, identity, integer, record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .ids import Hash, PeerId
    from .ports import Buffer

MAX_BLOB = 1 << 50
"""Bytes of the largest blob that a manifest can name."""
PIECE = PAYLOAD_LIMITS["bytes"]
"""Bytes of the largest ``bytes`` frame."""
LEAST = 4096
"""Bytes of the smallest ``bytes`` frame that is not the last one."""
MAX_POSITION = 1 << 16
MAX_WAITS = 256
"""Words about the place in a queue before one reply; an honest donor says one every few seconds."""

HERE = "here"
"""The blob has ``size`` bytes; those asked for follow."""
WAIT = "wait"
"""Others come first; ``position`` in the queue. Said again when it changes; HERE follows on the same stream."""
TURN = "turn"
"""Before all that was asked for has come: others wait, ask again for the rest."""
NONE = "none"
"""Not here."""
BUSY = "busy"
"""The queue is full; ``position`` waiting in it."""
_WORDS = frozenset({HERE, WAIT, TURN, NONE, BUSY})

_SEAL_BYTES = 256


def needed_blobs(manifest: Manifest) -> tuple[ShardEntry, ...]:
    """All that a run names by hash, each once; raises ConfigError when one hash has two sizes."""
    found: dict[str, ShardEntry] = {}
    start = manifest.start
    state = (ShardEntry("start", start.bytes, start.hash),) if start else ()
    for entry in (*manifest.data.shards, *state):
        if found.setdefault(entry.hash, entry).bytes != entry.bytes:
            raise ConfigError(
                f"the manifest gives two sizes for the hash {entry.hash}",
                remedy="tell its founder: no such data exists",
            )
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class AskBlob:
    """A request for bytes ``offset`` … ``offset + length`` of the blob ``hash``, or as many of them as there are."""

    hash: Hash
    offset: int = 0
    length: int = MAX_BLOB

    def encode(self) -> bytes:
        """The payload."""
        return pack({"hash": self.hash, "offset": self.offset, "length": self.length})

    @classmethod
    def decode(cls, payload: bytes, *, sender: str) -> AskBlob:
        """Parse a request of ``sender``; raises RemoteError."""
        fields = _fields(payload, _ASK, "ask-blob", sender)
        return cls(cast("Hash", fields["hash"]), cast("int", fields["offset"]), cast("int", fields["length"]))


@dataclass(frozen=True, slots=True)
class Reply:
    """What a donor says before bytes or in place of them: one of the words above."""

    word: str
    size: int = 0
    position: int = 0

    def encode(self) -> bytes:
        """The payload."""
        return pack({"word": self.word, "size": self.size, "position": self.position})

    @classmethod
    def decode(cls, payload: bytes, *, sender: str) -> Reply:
        """Parse a reply of ``sender``; raises RemoteError."""
        fields = _fields(payload, _REPLY, "blob", sender)
        return cls(cast("str", fields["word"]), cast("int", fields["size"]), cast("int", fields["position"]))


class Incoming:
    """The reply to one request, taken frame by frame; ``size`` is what the manifest says the blob has."""

    def __init__(self, ask: AskBlob, size: int, sender: str) -> None:
        self._sender, self._size = sender, size
        self._begun = self._flowing = False
        self._waits = 0
        self.left = max(0, min(ask.length, size - ask.offset))
        """Bytes that are still to come."""

    def take(self, kind: str, payload: bytes) -> Reply | bytes:
        """Bytes to keep, or a word; raises RemoteError for whatever no honest donor sends.

        After all bytes, or after NONE, BUSY or TURN, the reply is over.
        """
        if kind == "bytes":
            return self._bytes(payload)
        if kind != "blob":
            raise RemoteError(self._sender, f"a {kind} frame in place of a blob")
        reply = Reply.decode(payload, sender=self._sender)
        if (reply.word == TURN) != self._flowing or (self._begun and not self._flowing):
            raise RemoteError(self._sender, f"says {reply.word} {'among' if self._begun else 'before'} the bytes")
        self._waits += reply.word == WAIT
        if self._waits > MAX_WAITS:
            raise RemoteError(self._sender, f"tells {self._waits} times how long its queue is")
        if reply.word == HERE:
            if reply.size != self._size:
                raise RemoteError(self._sender, f"has a blob of {reply.size} bytes where the run names {self._size}")
            self._begun = True
        return reply

    def _bytes(self, payload: bytes) -> bytes:
        if not self._begun or not min(LEAST, self.left) <= len(payload) <= self.left:
            raise RemoteError(self._sender, f"{len(payload)} bytes of a blob where {self.left} were to come")
        self._flowing = True
        self.left -= len(payload)
        return payload


def encode_manifest(manifest: Manifest) -> list[Buffer]:
    """The ``manifest`` frame: who signed, then the canonical bytes whose BLAKE3 is the run id.

    Raises ConfigError when nobody signed it.
    """
    verify(manifest)
    signature = cast("Signature", manifest.signature)
    seal = pack({"peer": signature.peer, "signature": bytes.fromhex(signature.signature)})
    return [len(seal).to_bytes(4, "little") + seal, pack(to_plain(replace(manifest, signature=None)))]


def decode_manifest(payload: bytes, run: bytes, *, sender: str) -> Manifest:
    """The manifest of ``run`` in a frame of ``sender``; raises RemoteError unless it is that one and a founder signed.

    The hash is compared before anything of it is parsed: what a stranger writes never reaches the parser.
    """
    size = int.from_bytes(payload[:4], "little")
    seal, body = payload[4 : 4 + size], payload[4 + size :]
    if size > _SEAL_BYTES or len(seal) != size:
        raise RemoteError(sender, "malformed manifest: cut short")
    if blake3(body).digest() != run:
        raise RemoteError(sender, "sent another manifest than the run's")
    fields = _fields(seal, _SEAL, "manifest", sender)
    try:
        plain = unpack(body, items=2 * SHARD_LIMIT)
        if not isinstance(plain, dict):
            raise ValueError("is not a map")
        signature = Signature(cast("PeerId", fields["peer"]), cast("bytes", fields["signature"]).hex())
        manifest = replace(from_plain(plain), signature=signature)
        if run_id(manifest) != run:
            raise ValueError("is not in canonical form")
        verify(manifest)
    except (ValueError, ConfigError) as error:
        raise RemoteError(sender, f"the run's manifest cannot be used: {error}") from error
    return manifest


def _fields(payload: bytes, checks: Mapping[str, object], kind: str, sender: str) -> dict[str, object]:
    try:
        return record(unpack(payload, depth=1, items=0), checks)  # type: ignore[arg-type]
    except ValueError as error:
        raise RemoteError(sender, f"malformed {kind}: {error}") from error


def _word(value: object) -> str:
    if type(value) is not str or value not in _WORDS:
        raise ValueError("is no known word")
    return value


def _signature(value: object) -> bytes:
    signature = data(64)(value)
    if len(signature) != 64:
        raise ValueError("is not a signature of 64 bytes")
    return signature


_ASK = {"hash": hash32, "offset": integer(0, MAX_BLOB), "length": integer(1, MAX_BLOB)}
_REPLY = {"word": _word, "size": integer(0, MAX_BLOB), "position": integer(0, MAX_POSITION)}
_SEAL = {"peer": identity, "signature": _signature}
