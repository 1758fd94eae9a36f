"""Everybody's store of a round's result bytes, each checked against its reducer's signed root (protocol.md 5.7)."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from .. import merkle
from ..compression import get_codec
from ..errors import RemoteError
from ..ids import Hash, PeerId
from ..payloads import Piece, Pieces, batches
from .exchange import part_sizes
from .looking import look_at_result, values_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..payloads import Look
    from ..ports import Buffer
    from .effects import Setting, Vector
    from .shares import Shares

MAX_RESULT = 2.0**91
"""Largest value of a result: a mean of rows within ``MAX_NORM2``, and room for rounding. Keeps the state finite.

Codecs of blocks stay far below it whatever their bytes are.
"""

Share = tuple[PeerId, int]


class Results:
    """Result parts by share. A share is a reducer and the stage at which its parts came to it (``Shares``)."""

    def __init__(self, core: Hash, shares: Shares, setting: Setting) -> None:
        """``core`` of the freeze."""
        self.core, self.shares, self._setting = core, shares, setting
        self.roots: dict[Share, Hash] = {}
        self._codec = get_codec(setting.result_codec)
        self.sizes = part_sizes(self._codec, setting.values, setting.part)
        self._data: list[Buffer | None] = [None] * len(self.sizes)
        self._hashes: dict[int, Hash] = {}
        self._left = len(self.sizes)
        self.nbytes = 0
        """Bytes of result parts held."""
        self._early: dict[int, Piece] = {}
        self._trees: dict[Share, merkle.Tree] = {}
        self._known: dict[Share, merkle.Known] = {}

    def reshare(self, shares: Shares) -> None:
        """Reducers were put out: forget the parts that went to others."""
        for index, (old, new) in enumerate(zip(self.shares.holders, shares.holders, strict=True)):
            data = self._data[index]
            if old != new and data is not None:
                self._data[index] = None
                del self._hashes[index]
                self._left += 1
                self.nbytes -= len(data)
        self._early.clear()
        self._trees.clear()
        self._known.clear()
        self.shares = shares

    def learn(self, share: Share, root: Hash) -> None:
        """A share's signed root came; bytes that its reducer had sent before are checked now."""
        self.roots[share] = root
        self._known.pop(share, None)
        for index in self.shares.parts.get(share, ()):
            piece = self._early.pop(index, None)  # perhaps made before its reducer learned who was put out
            if piece is None or self._data[index] is not None:
                continue
            look = self._look(piece)
            if self._fits(piece, look, root):
                self._check(share[0], piece, look, root)
                self._put(piece, look)

    def add(self, sender: PeerId, frame: Pieces) -> None:
        """Keep result parts; raises RemoteError naming the reducer that sent them.

        What others pass on and does not fit is no fault of theirs: the reducer may have signed two roots. Those whose
        root is not known yet wait, one a part, if they come from their reducer itself.
        """
        for piece in frame.pieces:
            share = self.shares.holders[piece.index]
            root = self.roots.get(share)
            if share[0] != frame.maker or self._data[piece.index] is not None:
                continue
            if root is None:
                if sender == frame.maker:
                    self._early[piece.index] = piece
                continue
            look = self._look(piece)
            if sender == frame.maker or self._fits(piece, look, root):
                self._check(sender, piece, look, root)
                self._put(piece, look)

    def _look(self, piece: Piece) -> Look:
        return piece.look or look_at_result(piece.data, piece.index, self._setting)

    def _put(self, piece: Piece, look: Look) -> None:
        self._data[piece.index] = piece.data
        self._hashes[piece.index] = look.hash
        self._left -= 1
        self.nbytes += len(piece.data)

    def _fits(self, piece: Piece, look: Look, root: Hash) -> bool:
        share = self.shares.holders[piece.index]
        indices = self.shares.parts[share]
        if share not in self._known:
            self._known[share] = merkle.Known(root, len(indices))
        leaf = merkle.result_leaf(self.core, piece.index, look.hash)
        return self._known[share].verify(leaf, index=bisect_left(indices, piece.index), path=piece.path)

    def _check(self, sender: PeerId, piece: Piece, look: Look, root: Hash) -> None:
        maker, _ = self.shares.holders[piece.index]
        if not self._fits(piece, look, root):
            raise RemoteError(sender, f"result {piece.index} is not what {maker} signed")
        if look.fault:
            raise RemoteError(maker, f"result {piece.index}: {look.fault}")
        if look.measure > MAX_RESULT:
            raise RemoteError(maker, f"result {piece.index} is larger than any mean of updates")

    def frames(self, wanted: Iterable[int]) -> Iterator[Pieces]:
        """Those of the wanted parts whose whole share is here, as frames with their paths."""
        chosen = set(wanted)
        for share, indices in self.shares.parts.items():
            asked = [place for place, index in enumerate(indices) if index in chosen]
            held = [data for index in indices if (data := self._data[index]) is not None]
            if not asked or len(held) < len(indices):
                continue
            if share not in self._trees:
                self._trees[share] = merkle.Tree([merkle.result_leaf(self.core, k, self._hashes[k]) for k in indices])
            tree = self._trees[share]
            for batch in batches([Piece(indices[place], held[place], tree.path(place)) for place in asked]):
                yield Pieces(self.core, share[0], batch)

    @property
    def complete(self) -> bool:
        """Whether every result part is here."""
        return self._left == 0

    def missing(self) -> dict[PeerId, list[int]]:
        """By reducer, the result parts that are not here yet."""
        out: dict[PeerId, list[int]] = {}
        for index, data in enumerate(self._data):
            if data is None:
                out.setdefault(self.shares.holders[index][0], []).append(index)
        return out

    def values(self, start: int, room: Vector) -> Vector:
        """As many values of the aggregate as ``room`` has, from ``start`` on; every part must be here.

        They are written to ``room``, or lie in memory already where a codec keeps them as they are.
        """
        done = 0
        while done < len(room):
            index, skip = divmod(start + done, self._setting.part)
            data, count = self._data[index], values_of(index, self._setting)
            assert data is not None
            if not done and skip == 0 and count == len(room):
                return self._codec.decode(data, count, None if self._codec.exact else room, good=True)
            values = self._codec.decode(data, count, good=True)[skip : skip + len(room) - done]
            room[done : done + len(values)] = values
            done += len(values)
        return room
