"""From the frozen Grams to weights, to weighted sums, to the new state (protocol.md 5.6, 5.7, 5.11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from .. import merkle
from ..compression import get_codec
from ..errors import RemoteError
from ..gram import from_upper, plausible, scaled_gram
from ..ids import Hash, PeerId, digest
from ..outer import next_state
from ..payloads import Piece
from ..reduce import present_scale, weighted_sum
from ..rules import weights
from .exchange import MAX_NORM2, NORM_TOLERANCE, Buffers, common_parts, unpack_bits
from .looking import look_at_result, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from ..messages import Gram
    from ..payloads import Look
    from ..ports import Buffer
    from ..statements import Statement
    from ..table import Table
    from .effects import Setting, Vector
    from .exchange import Rows
    from .roster import Cast


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
    if (gram.diagonal()[~have.any(axis=1)] != 0).any():
        raise RemoteError(statement.peer, "gram that counts a row it has nothing of")


def presence(cast_: Cast, grams: Mapping[PeerId, Statement]) -> NDArray[np.bool_]:
    """[rows, parts] that the reducers' Grams call present."""
    have = np.zeros((len(cast_.rows), len(cast_.owners)), dtype=bool)
    for each in cast_.working:
        owned = cast_.owned(each)
        have[:, owned] = unpack_bits(cast("Gram", grams[each].body).have, len(cast_.rows), len(owned))
    return have


def denies(cast_: Cast, statement: Statement, table: Table) -> bool:
    """Whether a Gram leaves out more than a third of the rows' weight in most of its parts (5.5)."""
    owned = cast_.owned(statement.peer)
    have = unpack_bits(cast("Gram", statement.body).have, len(cast_.rows), len(owned))
    refused = [
        table.is_third([row for row, here in zip(cast_.rows, column, strict=True) if not here], of=cast_.rows)
        for column in have.T
    ]
    return 2 * sum(refused) > len(owned)


@dataclass(frozen=True)
class Frozen:
    """What a freeze fixes: its core, the rows' weights, and who is present where."""

    core: Hash
    grams: tuple[Hash, ...]
    weights: tuple[float, ...]
    have: NDArray[np.bool_]


def freeze_core(roster: Hash, grams: Sequence[Hash]) -> Hash:
    """Names roster and Grams, not the view, so that a later coordinator can keep the work."""
    return digest(b"freeze", roster, *grams)


def counted(have: NDArray[np.bool_]) -> list[bool]:
    """Which rows are contributors: those present in at least half of the parts (5.6)."""
    return [2 * int(row.sum()) >= have.shape[1] for row in have]


def read_freeze(cast_: Cast, grams: Mapping[PeerId, Statement], table: Table, setting: Setting) -> Frozen:
    """The weights that follow from the frozen Grams, the same bits on every machine.

    ``grams`` must hold exactly one checked Gram of every reducer that owns a part. Raises ValueError where no row is
    present in half of the parts.
    """
    count = len(cast_.rows)
    total = np.zeros((count, count))
    for each in cast_.working:
        total = total + from_upper(cast("Gram", grams[each].body).gram, count)
    have = presence(cast_, grams)
    common = common_parts({each: have[:, cast_.owned(each)] for each in cast_.working}, cast_.working)
    row_weights = [
        table.members[row].weight if here else 0.0 for row, here in zip(cast_.rows, counted(have), strict=True)
    ]
    gram = scaled_gram(total, common, len(cast_.owners))
    found = weights(gram, row_weights, rule=setting.rule, tolerated=setting.tolerated)
    hashes = tuple(grams[each].hash for each in cast_.working)
    return Frozen(freeze_core(cast_.core, hashes), hashes, found, have)


@dataclass(frozen=True)
class Reduced:
    """A reducer's result parts and the tree whose root it signs."""

    indices: tuple[int, ...]
    data: tuple[Buffer, ...]
    looks: tuple[Look, ...]
    tree: merkle.Tree

    def pieces(self) -> tuple[Piece, ...]:
        """All of them, with their paths."""
        return tuple(
            Piece(index, self.data[place], self.tree.path(place), look=self.looks[place])
            for place, index in enumerate(self.indices)
        )


def reduce_parts(rows: Rows, frozen: Frozen, setting: Setting) -> Reduced:
    """R_p = encode(s_p · Σ w_i x_ip) for these parts, rows in contributor order.

    ``rows`` holds exactly what goes into the result (``Task.have``).
    """
    codec = get_codec(setting.result_codec)
    out = Buffers([codec.size(values_of(index, setting)) for index in rows.indices])
    looks = []
    for place, index in enumerate(rows.indices):
        present = [data is not None for data in rows.data[place]]
        used = [weight for weight, here in zip(frozen.weights, present, strict=True) if here]
        if any(used):
            values = weighted_sum(rows.decoded(place, setting), used, present_scale(frozen.weights, present))
        else:
            values = np.zeros(values_of(index, setting), dtype=np.float32)
        looks.append(look_at_result(out.put(place, codec.encode(values)), index, setting))
    tree = merkle.Tree(
        [merkle.result_leaf(frozen.core, index, look.hash) for index, look in zip(rows.indices, looks, strict=True)]
    )
    return Reduced(rows.indices, out.views, tuple(looks), tree)


@dataclass(frozen=True)
class Applied:
    """The state after the outer step, and its root."""

    params: Vector
    momentum: Vector
    root: Hash


def apply_update(update: Callable[[int, Vector], Vector], state: tuple[Vector, Vector], setting: Setting) -> Applied:
    """One outer step from (base, momentum) with the very bytes everyone holds (5.11); see ``outer.next_state``."""
    return Applied(*next_state(state, update, lr=setting.lr, momentum_factor=setting.momentum))
