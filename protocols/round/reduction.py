"""From the frozen Grams to weights, to weighted sums, to the result bytes everyone applies (protocol.md 5.6, 5.7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from .. import merkle, tensors
from ..compression import Codec, get_codec
from ..errors import RemoteError
from ..gram import from_upper, plausible, scaled_gram
from ..ids import Hash, PeerId, digest
from ..outer import nesterov_step, state_root
from ..payloads import Piece, Pieces
from ..reduce import present_scale, weighted_sum
from ..rules import weights
from .exchange import MAX_NORM2, NORM_TOLERANCE, Inbox, common_parts, part_sizes, unpack_bits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..messages import Freeze, Gram
    from ..statements import Statement
    from ..table import Table
    from .effects import Setting, Vector
    from .roster import Cast

MAX_RESULT = 2.0**91
"""Largest value of a result: a mean of rows within ``MAX_NORM2``, and room for rounding. Keeps the state finite."""


def check_gram(statement: Statement, cast_: Cast) -> None:
    """Refuse a Gram that no honest reducer sends; raises RemoteError naming its signer."""
    body = cast("Gram", statement.body)
    count, owned = len(cast_.rows), cast_.owned(statement.peer)
    if not owned:
        raise RemoteError(statement.peer, "gram from a peer that reduces nothing")
    if len(body.gram) != count * (count + 1) // 2:
        raise RemoteError(statement.peer, f"gram of {len(body.gram)} numbers for {count} contributors")
    gram = from_upper(body.gram, count)
    if not plausible(gram) or (gram.diagonal() > len(owned) * MAX_NORM2 * (1 + NORM_TOLERANCE)).any():
        raise RemoteError(statement.peer, "gram that no vectors have")
    try:
        have = unpack_bits(body.have, count, len(owned))
    except ValueError as error:
        raise RemoteError(statement.peer, f"gram's bitmap: {error}") from error
    if not have.all():  # without deadlines nobody sends a Gram before everything is in
        raise RemoteError(statement.peer, "gram that leaves out parts")


@dataclass(frozen=True)
class Frozen:
    """What a freeze fixes: its core, the rows' weights, and in how many parts each was present."""

    core: Hash
    grams: tuple[Hash, ...]
    weights: tuple[float, ...]
    parts: tuple[int, ...]


def freeze_core(roster: Hash, grams: Sequence[Hash]) -> Hash:
    """Names roster and Grams, not the view, so that a later coordinator can keep the work."""
    return digest(b"freeze", roster, *grams)


def read_freeze(body: Freeze, cast_: Cast, grams: Mapping[PeerId, Statement], table: Table, setting: Setting) -> Frozen:
    """The weights that follow from the frozen Grams, the same bits on every machine.

    ``grams`` must hold exactly one checked Gram of every reducer that owns a part.
    """
    count = len(cast_.rows)
    total = np.zeros((count, count))
    have = {}
    for each in cast_.working:
        gram = cast("Gram", grams[each].body)
        total = total + from_upper(gram.gram, count)
        have[each] = unpack_bits(gram.have, count, len(cast_.owned(each)))
    common = common_parts(have, cast_.working)
    parts = len(cast_.owners)
    present = [int(common[i, i]) for i in range(count)]
    row_weights = [table.members[row].weight if 2 * present[i] >= parts else 0.0 for i, row in enumerate(cast_.rows)]
    found = weights(scaled_gram(total, common, parts), row_weights, rule=setting.rule, tolerated=setting.tolerated)
    return Frozen(freeze_core(cast_.core, body.grams), body.grams, tuple(found), tuple(present))


def taken_parts(cast_: Cast, grams: Mapping[PeerId, Statement], peer: PeerId) -> list[bool]:
    """Which parts of ``peer`` the frozen Grams call present: those leave its drift."""
    taken = [False] * len(cast_.owners)
    if peer in cast_.rows:
        row = cast_.rows.index(peer)
        for each in cast_.working:
            owned = cast_.owned(each)
            have = unpack_bits(cast("Gram", grams[each].body).have, len(cast_.rows), len(owned))
            for place, index in enumerate(owned):
                taken[index] = bool(have[row, place])
    return taken


@dataclass(frozen=True)
class Reduced:
    """A reducer's result parts and the tree whose root it signs."""

    indices: tuple[int, ...]
    data: tuple[bytes, ...]
    tree: merkle.Tree

    def pieces(self) -> list[Piece]:
        """Result parts as they are pushed; paths are by place among the reducer's own parts."""
        return [
            Piece(index, data, self.tree.path(place))
            for place, (index, data) in enumerate(zip(self.indices, self.data, strict=True))
        ]


def reduce_parts(inbox: Inbox, frozen: Frozen, codec_name: str) -> Reduced:
    """R_p = encode(s_p · Σ w_i x_ip) for every owned part, rows in contributor order."""
    codec = get_codec(codec_name)
    out = []
    for index in inbox.indices:
        rows, present = inbox.rows(index)
        used = [weight for weight, here in zip(frozen.weights, present, strict=True) if here]
        scale = present_scale(frozen.weights, present)
        out.append(bytes(codec.encode(weighted_sum(rows, used, scale))))
    leaves = [
        merkle.result_leaf(frozen.core, index, digest(data)) for index, data in zip(inbox.indices, out, strict=True)
    ]
    return Reduced(tuple(inbox.indices), tuple(out), merkle.Tree(leaves))


class Results:
    """Everybody's store of result bytes, each checked against its reducer's signed root."""

    def __init__(self, cast_: Cast, core: Hash, codec: Codec, values: int) -> None:
        self._cast, self._core, self._codec, self._values = cast_, core, codec, values
        self._sizes = part_sizes(codec, values)
        self._data: list[bytes | memoryview | None] = [None] * len(self._sizes)
        self._left = len(self._sizes)
        self._places = {each: cast_.owned(each) for each in cast_.working}

    def add(self, sender: PeerId, frame: Pieces, root: Hash) -> None:
        """Keep result parts of reducer ``frame.maker`` under its ``root``; raises RemoteError naming the sender."""
        owned = self._places.get(frame.maker, [])
        for piece in frame.pieces:
            if self._cast.owners[piece.index] != frame.maker:
                raise RemoteError(sender, f"result {piece.index} is not {frame.maker}'s")
            leaf = merkle.result_leaf(self._core, piece.index, digest(piece.data))
            place = owned.index(piece.index)
            if not merkle.verify(root, leaf, index=place, count=len(owned), path=piece.path):
                raise RemoteError(sender, f"result {piece.index} is not what {frame.maker} signed")
            start, stop = tensors.part_bounds(piece.index, self._values)
            try:
                values = self._codec.decode(piece.data, stop - start)
            except ValueError as error:
                raise RemoteError(frame.maker, f"result {piece.index}: {error}") from error
            if max(float(values.max()), -float(values.min())) > MAX_RESULT:
                raise RemoteError(frame.maker, f"result {piece.index} is larger than any mean of updates")
            self._left -= self._data[piece.index] is None
            self._data[piece.index] = piece.data

    @property
    def core(self) -> Hash:
        """The freeze core that these results belong to."""
        return self._core

    def pieces(self, owner: PeerId) -> list[Piece]:
        """One reducer's parts with paths under its root; empty unless all of them are here."""
        indices = self._places.get(owner, [])
        held = [(index, data) for index in indices if (data := self._data[index]) is not None]
        if len(held) < len(indices):
            return []
        if not held:
            return []
        tree = merkle.Tree([merkle.result_leaf(self._core, index, digest(data)) for index, data in held])
        return [Piece(index, data, tree.path(place)) for place, (index, data) in enumerate(held)]

    @property
    def complete(self) -> bool:
        """Whether every result part is here."""
        return self._left == 0

    def missing(self) -> set[PeerId]:
        """Reducers of which some result part is not here yet."""
        return {owner for owner, data in zip(self._cast.owners, self._data, strict=True) if data is None}

    def update(self) -> Vector:
        """The decoded aggregate, float32 [values]."""
        out = np.empty(self._values, dtype=np.float32)
        for index, data in enumerate(self._data):
            start, stop = tensors.part_bounds(index, self._values)
            out[start:stop] = self._codec.decode(cast("bytes", data), stop - start)
        return out


@dataclass(frozen=True)
class Applied:
    """The state after the outer step, and its root."""

    params: Vector
    momentum: Vector
    root: Hash


def apply_results(results: Results, params: Vector, momentum: Vector, setting: Setting) -> Applied:
    """One outer step on copies of base and momentum with the very bytes everyone holds (5.11)."""
    params, momentum = params.copy(), momentum.copy()
    nesterov_step(params, momentum, results.update(), lr=setting.lr, momentum_factor=setting.momentum)
    if not (tensors.is_finite(params) and tensors.is_finite(momentum)):
        raise ValueError("the outer step left the finite numbers")
    return Applied(params, momentum, state_root(params, momentum))
