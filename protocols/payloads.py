"""Unsigned bulk frames: parts on their way to a reducer, result parts on their way to everyone.

Payload: ``u32 LE length · canonical msgpack · encoded parts back to back``. Their bytes are bound by
Merkle paths to signed roots, so nothing here needs a signature.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from .canonical import pack, pack_sorted, unpack
from .errors import RemoteError
from .ids import HASH_BYTES, Hash
from .messages import MAX_PARTS
from .shapes import hash32, hashes, identity, integer, list_of, real, record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .ids import PeerId
    from .ports import Buffer

FRAME_VALUES_BYTES = 1 << 20
"""Encoded bytes a frame carries at most; one part always fits."""
_META_LIMIT = 256 * 1024
MAX_PIECES = 4096
_PATHS = list_of(hashes(32), MAX_PIECES)
_INDICES = list_of(integer(0, MAX_PARTS - 1), MAX_PIECES)


@dataclass(frozen=True, slots=True)
class Look:
    """What it takes time to know of encoded bytes: their hash, and a ``measure`` of the values if they decode.

    The measure is Σx² of a part of an update and a bound on |x| of a result; ``fault`` says why bytes do not decode.
    """

    hash: Hash
    measure: float
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """One encoded part with its Merkle path; ``norm2`` is the squared norm its leaf claims (0 for results)."""

    index: int
    data: Buffer
    path: tuple[Hash, ...]
    norm2: float = 0.0
    look: Look | None = field(default=None, compare=False)
    """Taken by this peer, off the event loop; never from the wire."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """A frame of parts for ``core`` (a roster or freeze core) made by ``maker`` (contributor or reducer)."""

    core: Hash
    maker: PeerId
    pieces: tuple[Piece, ...]

    def encode(self) -> list[Buffer]:
        """Buffers to send one after another; part bytes are not copied."""
        meta = pack_sorted(
            {
                "core": self.core,
                "indices": [piece.index for piece in self.pieces],
                "maker": self.maker,
                "norms": [piece.norm2 for piece in self.pieces],
                "paths": [list(piece.path) for piece in self.pieces],
            }
        )
        return [len(meta).to_bytes(4, "little") + meta, *(piece.data for piece in self.pieces)]

    @classmethod
    def decode(cls, payload: bytes, sizes: Sequence[int], *, sender: str) -> Pieces:
        """Parse a frame from ``sender``; ``sizes[k]`` = bytes of encoded part k. Raises RemoteError."""
        try:
            return cls._decode(payload, sizes)
        except ValueError as error:
            raise RemoteError(sender, f"malformed parts: {error}") from error

    @classmethod
    def _decode(cls, payload: bytes, sizes: Sequence[int]) -> Pieces:
        length = int.from_bytes(payload[:4], "little")
        if len(payload) < 4 or length > min(_META_LIMIT, len(payload) - 4):
            raise ValueError("cut short")
        fields = record(unpack(bytes(payload[4 : 4 + length]), depth=4, items=MAX_PIECES), _CHECKS)
        indices = cast("tuple[int, ...]", fields["indices"])
        norms = cast("tuple[float, ...]", fields["norms"])
        paths = cast("tuple[tuple[Hash, ...], ...]", fields["paths"])
        if not len(indices) == len(set(indices)) == len(norms) == len(paths):
            raise ValueError("lists of different lengths, or a part twice")
        if any(index >= len(sizes) for index in indices):
            raise ValueError(f"index beyond {len(sizes)} parts")
        if sum(sizes[index] for index in indices) != len(payload) - 4 - length:
            raise ValueError("bytes do not fit the parts named")
        rest = memoryview(payload)[4 + length :]
        pieces = []
        for index, norm2, path in zip(indices, norms, paths, strict=True):
            pieces.append(Piece(index, rest[: sizes[index]], path, norm2))
            rest = rest[sizes[index] :]
        return cls(cast("Hash", fields["core"]), cast("PeerId", fields["maker"]), tuple(pieces))


@dataclass(frozen=True, slots=True)
class Want:
    """A request for parts: those of one's update (roster ``core``), or result parts (freeze ``core``)."""

    core: Hash
    indices: tuple[int, ...]

    def encode(self) -> bytes:
        """The payload."""
        return pack({"core": self.core, "indices": list(self.indices)})

    @classmethod
    def decode(cls, payload: bytes, *, sender: str) -> Want:
        """Parse a request of ``sender``; raises RemoteError."""
        try:
            fields = record(unpack(payload, items=MAX_PIECES), {"core": hash32, "indices": _INDICES})
        except ValueError as error:
            raise RemoteError(sender, f"malformed want: {error}") from error
        return cls(cast("Hash", fields["core"]), cast("tuple[int, ...]", fields["indices"]))


@dataclass(frozen=True, slots=True)
class Digest:
    """What a peer stands on: its head, and a mark over every statement it holds above it."""

    head: Hash
    mark: bytes

    def encode(self) -> bytes:
        """The payload: head · mark."""
        return self.head + self.mark

    @classmethod
    def decode(cls, payload: bytes, *, sender: str) -> Digest:
        """Parse a digest of ``sender``; raises RemoteError."""
        if len(payload) != 2 * HASH_BYTES:
            raise RemoteError(sender, f"malformed digest: {len(payload)} bytes")
        return cls(Hash(payload[:HASH_BYTES]), payload[HASH_BYTES:])


@dataclass(frozen=True, slots=True)
class Have:
    """The statements a peer holds above its head, by the first 8 bytes of their hashes; ``again`` asks for the same."""

    head: Hash
    prints: bytes
    again: bool

    @property
    def held(self) -> set[bytes]:
        """The prints one by one."""
        return {self.prints[at : at + PRINT_BYTES] for at in range(0, len(self.prints), PRINT_BYTES)}

    def encode(self) -> bytes:
        """The payload: head · again (one byte) · prints."""
        return self.head + bytes([self.again]) + self.prints

    @classmethod
    def decode(cls, payload: bytes, *, sender: str) -> Have:
        """Parse what ``sender`` holds; raises RemoteError."""
        prints = payload[HASH_BYTES + 1 :]
        if len(payload) <= HASH_BYTES or payload[HASH_BYTES] > 1 or len(prints) % PRINT_BYTES:
            raise RemoteError(sender, f"malformed have: {len(payload)} bytes")
        return cls(Hash(payload[:HASH_BYTES]), prints, payload[HASH_BYTES] == 1)


PRINT_BYTES = 8
MAX_PRINTS = 6 * 1024


_CHECKS = {"core": hash32, "maker": identity, "indices": _INDICES, "norms": list_of(real, MAX_PIECES), "paths": _PATHS}


def batches(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, ...]]:
    """Cut pieces into frames of at most 1 MiB of part bytes."""
    batch: list[Piece] = []
    total = 0
    for piece in pieces:
        if batch and total + len(piece.data) > FRAME_VALUES_BYTES:
            yield tuple(batch)
            batch, total = [], 0
        batch.append(piece)
        total += len(piece.data)
    if batch:
        yield tuple(batch)
