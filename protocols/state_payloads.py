"""Unsigned frames of a state transfer: chunks asked for, chunks, and a joiner's place at its donor (protocol.md 6).

Whatever they say is checked: chunks by hashes in a seal; places are believed for as long as somebody else is asked too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from .canonical import pack, unpack
from .errors import RemoteError
from .ids import HASH_BYTES, Hash
from .outer import CHUNK_BYTES
from .shapes import hash32, integer, list_of, record

if TYPE_CHECKING:
    from .ports import Buffer

MAX_WANTED = 64
"""Chunks of one request."""
MAX_CHUNKS = 1 << 20
MAX_PLACE = 1 << 12
_META_BYTES = 4096
_PATH = 32
_NOWHERE = 0xFFFF


@dataclass(frozen=True, slots=True)
class WantState:
    """A request for chunks ``indices`` of the state as of ``seal``; without any it keeps the sender's place."""

    seal: Hash
    indices: tuple[int, ...]

    def encode(self) -> bytes:
        """The payload."""
        return pack({"seal": self.seal, "indices": list(self.indices)})

    @classmethod
    def decode(cls, payload: bytes, *, sender: str) -> WantState:
        """Parse a request of ``sender``; raises RemoteError."""
        try:
            fields = record(unpack(payload, depth=2, items=MAX_WANTED), _WANT_CHECKS)
        except ValueError as error:
            raise RemoteError(sender, f"malformed want-state: {error}") from error
        return cls(cast("Hash", fields["seal"]), cast("tuple[int, ...]", fields["indices"]))


@dataclass(frozen=True, slots=True)
class LeaveState:
    """The sender wants nothing more of the state as of ``seal``: its place is free."""

    seal: Hash

    def encode(self) -> bytes:
        """The payload: the seal."""
        return self.seal

    @classmethod
    def decode(cls, payload: bytes, *, sender: str) -> LeaveState:
        """Parse what ``sender`` said; raises RemoteError."""
        if len(payload) != HASH_BYTES:
            raise RemoteError(sender, f"malformed leave-state: {len(payload)} bytes")
        return cls(Hash(payload))


@dataclass(frozen=True, slots=True)
class StateQueue:
    """A joiner's place at a donor of the state as of ``seal``: 0 it is served, n it is the nth to wait.

    None: that state is not kept here, or no more may wait.
    """

    seal: Hash
    position: int | None

    def encode(self) -> bytes:
        """The payload: seal · u16 LE."""
        return self.seal + (_NOWHERE if self.position is None else self.position).to_bytes(2, "little")

    @classmethod
    def decode(cls, payload: bytes, *, sender: str) -> StateQueue:
        """Parse what ``sender`` said; raises RemoteError."""
        position = int.from_bytes(payload[HASH_BYTES:], "little")
        if len(payload) != HASH_BYTES + 2 or MAX_PLACE < position < _NOWHERE:
            raise RemoteError(sender, "malformed state-queue")
        return cls(Hash(payload[:HASH_BYTES]), None if position == _NOWHERE else position)


@dataclass(frozen=True, slots=True)
class StateChunk:
    """Chunk ``index`` of the state as of ``seal``: its bytes and their Merkle path."""

    seal: Hash
    index: int
    path: tuple[Hash, ...]
    data: Buffer

    def encode(self) -> list[Buffer]:
        """Buffers to send one after another (u32 LE length · msgpack · bytes); the chunk is not copied."""
        meta = pack({"seal": self.seal, "index": self.index, "path": list(self.path)})
        return [len(meta).to_bytes(4, "little") + meta, self.data]

    @classmethod
    def decode(cls, payload: Buffer, *, sender: str) -> StateChunk:
        """Parse a chunk from ``sender``; its bytes stay in ``payload``. Raises RemoteError."""
        view = memoryview(payload)
        try:
            size = int.from_bytes(view[:4], "little")
            if len(view) < 4 or size > min(_META_BYTES, len(view) - 4):
                raise ValueError("cut short")
            fields = record(unpack(bytes(view[4 : 4 + size]), depth=2, items=MAX_WANTED), _CHUNK_CHECKS)
            data = view[4 + size :]
            if not 0 < len(data) <= CHUNK_BYTES:
                raise ValueError(f"{len(data)} bytes, limit {CHUNK_BYTES}")
        except ValueError as error:
            raise RemoteError(sender, f"malformed state: {error}") from error
        path = cast("tuple[Hash, ...]", fields["path"])
        return cls(cast("Hash", fields["seal"]), cast("int", fields["index"]), path, data)


_WANT_CHECKS = {"seal": hash32, "indices": list_of(integer(0, MAX_CHUNKS - 1), MAX_WANTED)}
_CHUNK_CHECKS = {"seal": hash32, "index": integer(0, MAX_CHUNKS - 1), "path": list_of(hash32, _PATH)}
