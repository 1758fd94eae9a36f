"""Encoded parts on their way to their reducers, and the Gram matrix a reducer makes of them (protocol.md 5.3, 5.5)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .. import merkle, tensors
from ..compression import Codec, get_codec
from ..errors import RemoteError
from ..gram import part_gram, upper
from ..ids import Hash, PeerId, digest
from ..messages import Gram
from ..payloads import Piece, Pieces, batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ..ports import Buffer
    from ..statements import Scope
    from .effects import Setting, Vector
    from .roster import Cast

MAX_VALUE = 2.0**82
MAX_NORM2 = 2.0**180
"""Largest squared norm of a part: sums of 64 such rows stay far inside float32."""
NORM_TOLERANCE = 1e-6
"""A leaf's squared norm may differ this much, relatively, from that of its decoded bytes (5.2)."""


def part_sizes(codec: Codec, values: int) -> list[int]:
    """Encoded bytes of every part of a vector of ``values``."""
    bounds = (tensors.part_bounds(k, values) for k in range(tensors.part_count(values)))
    return [codec.size(stop - start) for start, stop in bounds]


def squared_norm(values: Vector) -> float:
    """Σx² in doubles."""
    return float(np.square(values, dtype=np.float64).sum())


def is_sound(update: Vector) -> bool:
    """Finite, and small enough that no part exceeds MAX_NORM2."""
    return tensors.is_finite(update) and float(np.max(np.abs(update))) <= MAX_VALUE


@dataclass(frozen=True)
class Encoded:
    """A peer's own update, encoded part by part, with the tree whose root it commits to."""

    data: tuple[Buffer, ...]
    norms: tuple[float, ...]
    tree: merkle.Tree

    def piece(self, index: int) -> Piece:
        """Part ``index`` as it is pushed."""
        return Piece(index, self.data[index], self.tree.path(index), self.norms[index])


def encode_update(drift: Vector, codec_name: str, scope: Scope, parent: Hash, peer: PeerId) -> Encoded:
    """Encode the update −drift for the round after ``parent``; raises ValueError if it is not finite."""
    if not tensors.is_finite(drift):
        raise ValueError("the trained update is not finite")
    codec = get_codec(codec_name)
    update = np.negative(drift)
    data: list[Buffer] = []
    norms, leaves = [], []
    for index in range(tensors.part_count(len(update))):
        encoded = codec.encode(tensors.part_view(update, index))
        norm2 = squared_norm(codec.decode(encoded, len(tensors.part_view(update, index))))
        if norm2 > MAX_NORM2:
            raise ValueError("the trained update is larger than any training makes it")
        data.append(encoded)
        norms.append(norm2)
        leaves.append(_leaf(scope, parent, peer, index, norm2, encoded))
    return Encoded(tuple(data), tuple(norms), merkle.Tree(leaves))


def _leaf(scope: Scope, parent: Hash, peer: PeerId, index: int, norm2: float, data: Buffer) -> Hash:
    return merkle.leaf_hash(scope.run, scope.cell, parent, peer, index, norm2, digest(data))


def pushes(encoded: Encoded, cast_: Cast, me: PeerId, owner: PeerId) -> Iterator[Pieces]:
    """The frames that carry one's parts to one of their owners."""
    for batch in batches([encoded.piece(index) for index in cast_.owned(owner)]):
        yield Pieces(cast_.core, me, batch)


class Inbox:
    """A reducer's store of the parts it owns. Nothing is accepted that the roster does not foresee."""

    def __init__(self, cast_: Cast, me: PeerId, scope: Scope, parent: Hash, setting: Setting) -> None:
        self.cast = cast_
        self.indices = cast_.owned(me)
        self._place = {index: place for place, index in enumerate(self.indices)}
        self._scope, self._parent = scope, parent
        self._codec, self._values = get_codec(setting.update_codec), setting.values
        self._parts: dict[tuple[PeerId, int], Buffer] = {}

    def add(self, sender: PeerId, frame: Pieces) -> None:
        """Check every piece against its maker's commit and keep it; raises RemoteError naming the sender."""
        if frame.maker not in self.cast.rows:
            raise RemoteError(sender, f"parts of {frame.maker}, which is no contributor of this round")
        root = self.cast.commit(frame.maker).root
        for piece in frame.pieces:
            if piece.index not in self._place:
                raise RemoteError(sender, f"part {piece.index} is not owned by this peer")
            try:
                self._check(frame.maker, root, piece)
            except ValueError as error:
                raise RemoteError(sender, f"part {piece.index} of {frame.maker}: {error}") from error
            self._parts[frame.maker, piece.index] = piece.data

    def _check(self, maker: PeerId, root: Hash, piece: Piece) -> None:
        leaf = _leaf(self._scope, self._parent, maker, piece.index, piece.norm2, piece.data)
        count = tensors.part_count(self._values)
        if not merkle.verify(root, leaf, index=piece.index, count=count, path=piece.path):
            raise ValueError("is not what it committed to")
        norm2 = squared_norm(self._decode(piece.index, piece.data))
        if norm2 > MAX_NORM2:
            raise ValueError("is larger than any training makes it")
        if abs(norm2 - piece.norm2) > NORM_TOLERANCE * norm2:
            raise ValueError(f"claims squared norm {piece.norm2:.6g}, has {norm2:.6g}")

    def _decode(self, index: int, data: Buffer) -> Vector:
        start, stop = tensors.part_bounds(index, self._values)
        return self._codec.decode(data, stop - start)

    @property
    def complete(self) -> bool:
        """Whether every owned part of every contributor is here."""
        return len(self._parts) == len(self.cast.rows) * len(self.indices)

    def missing(self) -> set[PeerId]:
        """Contributors of which some owned part has not arrived."""
        return {row for row in self.cast.rows for index in self.indices if (row, index) not in self._parts}

    def rows(self, index: int) -> tuple[list[Vector], list[bool]]:
        """Decoded rows of an owned part that are present, in contributor order, and who is present."""
        present = [(row, index) in self._parts for row in self.cast.rows]
        rows = [self._decode(index, self._parts[row, index]) for row in self.cast.rows if (row, index) in self._parts]
        return rows, present

    def gram(self) -> Gram:
        """The signed summary of the owned parts: who sent what, Σ of per-part Grams, root of the per-part Grams."""
        count = len(self.cast.rows)
        total = np.zeros((count, count))
        have = np.zeros((count, len(self.indices)), dtype=bool)
        leaves = []
        for place, index in enumerate(self.indices):
            rows, present = self.rows(index)
            have[:, place] = present
            own = np.zeros((count, count))
            if rows:
                own[np.ix_(present, present)] = part_gram(np.stack(rows))
            leaves.append(digest(b"gram", struct.pack(f"<Q{count * (count + 1) // 2}d", index, *upper(own))))
            total += own
        tree = merkle.Tree(leaves)
        return Gram(self.cast.core, pack_bits(have), tuple(float(value) for value in upper(total)), tree.root)


def pack_bits(have: NDArray[np.bool_]) -> bytes:
    """Row-major bits, most significant first."""
    return np.packbits(have.reshape(-1)).tobytes()


def unpack_bits(data: bytes, rows: int, columns: int) -> NDArray[np.bool_]:
    """[rows, columns] from ``pack_bits``; raises ValueError for a wrong length or set padding."""
    count = rows * columns
    if len(data) != (count + 7) // 8:
        raise ValueError(f"{len(data)} bytes for {count} bits")
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8))
    if bits[count:].any():
        raise ValueError("padding bits are set")
    return bits[:count].reshape(rows, columns).astype(bool)


def common_parts(have: Mapping[PeerId, NDArray[np.bool_]], order: Sequence[PeerId]) -> NDArray[np.int64]:
    """[n, n] parts in which both of a pair are present, over all reducers."""
    counts = [have[each].astype(np.int64) for each in order]
    total: NDArray[np.int64] = np.sum([matrix @ matrix.T for matrix in counts], axis=0, dtype=np.int64)
    return total
