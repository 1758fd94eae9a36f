"""The seal every voter computes for itself, and how two are compared (protocol.md 5.9)."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from ..canonical import pack
from ..messages import Contribution, ResultRoot, Seal
from ..table import Table, advance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..ids import Hash, PeerId
    from .chain import Head
    from .reduction import Frozen
    from .roster import Cast


def next_table(head: Head, cast: Cast, probation: int) -> Table:
    """The members after a seal with this cast."""
    return advance(
        head.table, head.seal, {each: cast.commit(each).direct for each in cast.commits}, probation=probation
    )


def build_seal(
    head: Head, cast: Cast, frozen: Frozen, roots: Mapping[PeerId, Hash], outcome: tuple[Hash, Hash]
) -> Seal:
    """The only body a voter signs for. ``roots``: result roots; ``outcome``: (table root, state root) after it."""
    rows = {row: place for place, row in enumerate(cast.rows)}
    contributions = tuple(
        Contribution(
            peer=each,
            commit=statement.hash,
            tokens=sum(leg.tokens for leg in cast.commit(each).legs),
            parts=frozen.parts[rows[each]] if each in rows else 0,
            weight=frozen.weights[rows[each]] if each in rows else 0.0,
        )
        for each, statement in cast.commits.items()
    )
    return Seal(
        view=cast.view,
        parent=head.seal,
        round=head.round + 1,
        roster=cast.core,
        freeze=frozen.core,
        grams=frozen.grams,
        contributions=contributions,
        results=tuple(ResultRoot(each, roots[each]) for each in cast.working),
        table=outcome[0],
        state=outcome[1],
    )


def differences(proposed: Seal, own: Seal) -> list[str]:
    """Names of the fields in which a proposal is not what this peer computed."""
    theirs, ours = proposed.to_wire(), own.to_wire()
    return [field.name for field in fields(Seal) if pack(theirs[field.name]) != pack(ours[field.name])]
