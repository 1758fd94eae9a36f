"""Everybody's store of a round's result bytes, each checked against its reducer's signed root (protocol.md 5.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import merkle, tensors
from ..compression import get_codec
from ..errors import RemoteError
from ..ids import Hash, PeerId, digest
from ..payloads import Piece, Pieces, batches
from .exchange import part_sizes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..ports import Buffer
    from .effects import Setting, Vector
    from .shares import Shares

MAX_RESULT = 2.0**91
"""Largest value of a result: a mean of rows within ``MAX_NORM2``, and room for rounding. Keeps the state finite."""

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
        self._left = len(self.sizes)
        self.nbytes = 0
        """Bytes of result parts held."""
        self._early: dict[int, Piece] = {}
        self._trees: dict[Share, merkle.Tree] = {}

    def reshare(self, shares: Shares) -> None:
        """Reducers were put out: forget the parts that went to others."""
        for index, (old, new) in enumerate(zip(self.shares.holders, shares.holders, strict=True)):
            data = self._data[index]
            if old != new and data is not None:
                self._data[index] = None
                self._left += 1
                self.nbytes -= len(data)
        self._early.clear()
        self._trees.clear()
        self.shares = shares

    def learn(self, share: Share, root: Hash) -> None:
        """A share's signed root came; bytes that its reducer had sent before are checked now."""
        self.roots[share] = root
        for index in self.shares.parts.get(share, ()):
            piece = self._early.pop(index, None)  # perhaps made before its reducer learned who was put out
            if piece is not None and self._data[index] is None and self._fits(piece, root):
                self._check(share[0], piece, root)
                self._put(piece)

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
            if root is not None and (sender == frame.maker or self._fits(piece, root)):
                self._check(sender, piece, root)
                self._put(piece)
            elif root is None and sender == frame.maker:
                self._early[piece.index] = piece

    def _put(self, piece: Piece) -> None:
        self._data[piece.index] = piece.data
        self._left -= 1
        self.nbytes += len(piece.data)

    def _fits(self, piece: Piece, root: Hash) -> bool:
        indices = self.shares.parts[self.shares.holders[piece.index]]
        leaf = merkle.result_leaf(self.core, piece.index, digest(piece.data))
        return merkle.verify(root, leaf, index=indices.index(piece.index), count=len(indices), path=piece.path)

    def _check(self, sender: PeerId, piece: Piece, root: Hash) -> None:
        maker, _ = self.shares.holders[piece.index]
        if not self._fits(piece, root):
            raise RemoteError(sender, f"result {piece.index} is not what {maker} signed")
        try:
            values = self._decode(piece.index, piece.data)
        except ValueError as error:
            raise RemoteError(maker, f"result {piece.index}: {error}") from error
        if max(float(values.max()), -float(values.min())) > MAX_RESULT:
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
                leaves = [merkle.result_leaf(self.core, k, digest(data)) for k, data in zip(indices, held, strict=True)]
                self._trees[share] = merkle.Tree(leaves)
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

    def update(self) -> Vector:
        """The decoded aggregate, float32 [values]; every part must be here."""
        out = np.empty(self._setting.values, dtype=np.float32)
        for index, data in enumerate(self._data):
            assert data is not None
            start, stop = tensors.part_bounds(index, len(out), self._setting.part)
            out[start:stop] = self._codec.decode(data, stop - start)
        return out

    def _decode(self, index: int, data: Buffer) -> Vector:
        start, stop = tensors.part_bounds(index, self._setting.values, self._setting.part)
        return self._codec.decode(data, stop - start)
