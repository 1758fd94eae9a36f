"""Encoded parts on their way to their reducers, and the Gram matrix a reducer makes of them (protocol.md 5.3, 5.5)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .. import merkle, tensors
from ..compression import Codec, get_codec
from ..compression.codec import peak
from ..errors import RemoteError
from ..gram import part_gram, upper
from ..ids import Hash, PeerId, digest
from ..messages import Gram
from ..payloads import Piece, Pieces, batches
from .looking import look_at_part, values_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ..payloads import Look
    from ..ports import Buffer
    from ..statements import Scope
    from .effects import Setting, Vector
    from .roster import Cast

MAX_VALUE = 2.0**82
MAX_NORM2 = 2.0**180
"""Largest squared norm of a part: sums of 64 such rows stay far inside float32."""
NORM_TOLERANCE = 1e-6
"""A leaf's squared norm may differ this much, relatively, from that of its decoded bytes (5.2)."""


def part_sizes(codec: Codec, values: int, part: int) -> list[int]:
    """Encoded bytes of every part of a vector of ``values``."""
    bounds = (tensors.part_bounds(k, values, part) for k in range(tensors.part_count(values, part)))
    return [codec.size(stop - start) for start, stop in bounds]


def is_sound(update: Vector) -> bool:
    """Finite, and small enough that no part exceeds MAX_NORM2."""
    return peak(update) <= MAX_VALUE  # a NaN is not


@dataclass(frozen=True)
class Encoded:
    """A peer's own update, encoded part by part, with the tree whose root it commits to."""

    drift: Vector
    """What was encoded, with the opposite sign."""
    data: tuple[Buffer, ...]
    looks: tuple[Look, ...]
    tree: merkle.Tree
    exact: bool

    def covers(self, drift: Vector) -> bool:
        """Whether nothing is left of ``drift`` where this is taken: no rounding, no training since."""
        return self.exact and self.drift is drift

    def piece(self, index: int) -> Piece:
        """Part ``index`` as it is pushed."""
        look = self.looks[index]
        return Piece(index, self.data[index], self.tree.path(index), look.measure, look)


def encode_update(drift: Vector, setting: Setting, scope: Scope, parent: Hash, peer: PeerId) -> Encoded:
    """Encode the update −drift for the round after ``parent``; raises ValueError if it is not finite."""
    codec = get_codec(setting.update_codec)
    data = Buffers(part_sizes(codec, setting.values, setting.part))
    update = np.empty(min(setting.part, len(drift)), dtype=np.float32)
    looks, leaves, leaf = [], [], merkle.Leaves(scope.run, scope.cell, parent, peer).leaf
    for index in range(len(data)):
        values = tensors.part_view(drift, index, setting.part)
        np.negative(values, out=update[: len(values)])
        look = look_at_part(data.put(index, codec.encode(update[: len(values)])), index, setting)
        if look.measure > MAX_NORM2:
            raise ValueError("the trained update is larger than any training makes it")
        looks.append(look)
        leaves.append(leaf(index, look.measure, look.hash))
    return Encoded(drift, data.views, tuple(looks), merkle.Tree(leaves), codec.exact)


class Buffers:
    """Encoded parts back to back in one piece of memory: many small ones cost the kernel more than the work on them."""

    def __init__(self, sizes: Sequence[int]) -> None:
        whole = np.empty(sum(sizes), dtype=np.uint8).data
        ends = np.cumsum(sizes, dtype=np.int64).tolist()
        self._rooms = tuple(whole[end - size : end] for end, size in zip(ends, sizes, strict=True))
        self.views = tuple(each.toreadonly() for each in self._rooms)

    def __len__(self) -> int:
        return len(self.views)

    def put(self, place: int, data: Buffer) -> memoryview:
        """Copy ``data``, which has the size of this place, to it."""
        self._rooms[place][:] = data
        return self.views[place]


def pushes(encoded: Encoded, core: Hash, me: PeerId, indices: Sequence[int]) -> Iterator[Pieces]:
    """The frames that carry one's own parts to one of their owners."""
    for batch in batches([encoded.piece(index) for index in indices]):
        yield Pieces(core, me, batch)


@dataclass(frozen=True)
class Rows:
    """What a reducer holds of some parts at one moment: ``data[place][row]`` encoded, None where nothing came."""

    indices: tuple[int, ...]
    data: tuple[tuple[Buffer | None, ...], ...]

    def have(self) -> NDArray[np.bool_]:
        """[rows, parts] which are present."""
        return np.array([[each is not None for each in column] for column in self.data], dtype=bool).T

    def decoded(self, place: int, setting: Setting) -> list[Vector]:
        """The present rows of a part in contributor order, each float32 [values of the part]."""
        codec, size = get_codec(setting.update_codec), values_of(self.indices[place], setting)
        return [codec.decode(data, size, good=True) for data in self.data[place] if data is not None]


class Inbox:
    """A reducer's store of checked parts, under the roots they were committed to, for one parent.

    It outlives a cast: when other reducers are put out, what came for the earlier one stays good. Holds no part that
    the cast in force has not given to this peer, so its size is bounded by rows × parts.
    """

    def __init__(self, scope: Scope, parent: Hash, setting: Setting) -> None:
        self._scope, self._parent, self._setting = scope, parent, setting
        self._parts: dict[Hash, dict[int, Buffer]] = {}
        self._known: dict[Hash, merkle.Known] = {}
        self._leaves: dict[PeerId, merkle.Leaves] = {}

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def add(self, sender: PeerId, frame: Pieces, cast_: Cast, mine: Collection[int]) -> None:
        """Check every piece against its maker's commit and keep it; raises RemoteError naming the sender.

        Parts that are not this peer's any more are passed over.
        """
        if frame.maker not in cast_.rows:
            raise RemoteError(sender, f"parts of {frame.maker}, which is no contributor of this round")
        root = cast_.commit(frame.maker).root
        held = self._parts.setdefault(root, {})
        for piece in frame.pieces:
            if piece.index not in mine or piece.index in held:
                continue
            try:
                self._check(frame.maker, root, piece)
            except ValueError as error:
                raise RemoteError(sender, f"part {piece.index} of {frame.maker}: {error}") from error
            held[piece.index] = piece.data

    def _check(self, maker: PeerId, root: Hash, piece: Piece) -> None:
        look = piece.look or look_at_part(piece.data, piece.index, self._setting)
        if maker not in self._leaves:
            self._leaves[maker] = merkle.Leaves(self._scope.run, self._scope.cell, self._parent, maker)
        leaf = self._leaves[maker].leaf(piece.index, piece.norm2, look.hash)
        if root not in self._known:
            self._known[root] = merkle.Known(root, tensors.part_count(self._setting.values, self._setting.part))
        if not self._known[root].verify(leaf, index=piece.index, path=piece.path):
            raise ValueError("is not what it committed to")
        if look.fault:
            raise ValueError(look.fault)
        if look.measure > MAX_NORM2:
            raise ValueError("is larger than any training makes it")
        if abs(look.measure - piece.norm2) > NORM_TOLERANCE * look.measure:
            raise ValueError(f"claims squared norm {piece.norm2:.6g}, has {look.measure:.6g}")

    def rows(self, cast_: Cast, indices: Iterable[int], wanted: NDArray[np.bool_] | None = None) -> Rows:
        """What is here of these parts; with ``wanted`` [rows, all parts] only what that names."""
        order = tuple(indices)
        columns = []
        for row, root in enumerate(cast_.roots):
            held = self._parts.get(root, {})
            columns.append([held.get(index) if wanted is None or wanted[row, index] else None for index in order])
        return Rows(order, tuple(zip(*columns, strict=True)) if columns else ((),) * len(order))

    def holds(self, cast_: Cast, count: int) -> bool:
        """Whether at least so many parts of every contributor are here: those asked for may all be."""
        return all(len(self._parts.get(root, ())) >= count for root in cast_.roots)

    def missing(
        self, cast_: Cast, indices: Iterable[int], wanted: NDArray[np.bool_] | None = None
    ) -> dict[PeerId, list[int]]:
        """By contributor, the parts among ``indices`` (and in ``wanted``) that are not here."""
        out: dict[PeerId, list[int]] = {}
        order = set(indices)
        for row, (peer, root) in enumerate(zip(cast_.rows, cast_.roots, strict=True)):
            lacks = order.difference(self._parts.get(root, ()))
            if wanted is not None:
                lacks = {index for index in lacks if wanted[row, index]}
            if lacks:
                out[peer] = sorted(lacks)
        return out


def make_gram(core: Hash, rows: Rows, count: int, setting: Setting) -> Gram:
    """The signed summary of a reducer's parts: who sent what, Σ of per-part Grams, root of the per-part Grams."""
    total = np.zeros((count, count))
    have = rows.have()
    leaves = []
    for place, index in enumerate(rows.indices):
        present = have[:, place]
        own = np.zeros((count, count))
        if count and present.all():
            own = part_gram(rows.decoded(place, setting))
        elif present.any():
            own[np.ix_(present, present)] = part_gram(rows.decoded(place, setting))
        leaves.append(digest(b"gram", struct.pack(f"<Q{count * (count + 1) // 2}d", index, *upper(own))))
        total += own
    return Gram(core, pack_bits(have), tuple(float(value) for value in upper(total)), merkle.Tree(leaves).root)


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
