"""The seal every voter computes for itself, and how two are compared (protocol.md 5.9, 5.10)."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from ..canonical import pack
from ..messages import Contribution, ResultRoot, Seal
from ..table import Table, Turnover, advance
from ..turns import failed_turns

if TYPE_CHECKING:
    from ..statements import Scope
    from .chain import Head
    from .task import Task


def outcome(head: Head, task: Task, view: int, scope: Scope, probation: int) -> tuple[Seal, Table]:
    """The only body a voter signs for in ``view``, and the members after it. ``task.applied`` must be known."""
    assert task.applied is not None
    table = _next_table(head, task, view, scope, probation)
    cast_, results = task.cast, task.results
    return Seal(
        view=view,
        parent=head.seal,
        round=head.round + 1,
        roster=cast_.core,
        freeze=results.core if results else b"",
        out=results.shares.out if results else (),
        grams=task.frozen.grams if task.frozen else (),
        contributions=_contributions(task),
        results=tuple(ResultRoot(*share, results.roots[share]) for share in results.shares.parts) if results else (),
        lost=cast_.lost,
        table=table.root,
        state=task.applied.root,
    ), table


def _contributions(task: Task) -> tuple[Contribution, ...]:
    cast_, frozen = task.cast, task.frozen
    if frozen is None:
        return ()
    rows = {row: place for place, row in enumerate(cast_.rows)}
    parts = [int(row.sum()) for row in task.have]
    return tuple(
        Contribution(
            peer=each,
            commit=statement.hash,
            tokens=sum(leg.tokens for leg in cast_.commit(each).legs),
            parts=parts[rows[each]] if each in rows else 0,
            weight=frozen.weights[rows[each]] if each in rows else 0.0,
        )
        for each, statement in cast_.commits.items()
    )


def _next_table(head: Head, task: Task, view: int, scope: Scope, probation: int) -> Table:
    cast_ = task.cast
    half = {each.peer for each in _contributions(task) if 2 * each.parts >= len(cast_.owners)}
    newcomers = {each for each in cast_.commits if each not in cast_.rows}  # they push nothing (5.6)
    commits = {each: (cast_.commit(each).direct, each in half or each in newcomers) for each in cast_.commits}
    turn = Turnover(
        parent=head.seal,
        round=head.round + 1,
        commits=None if cast_.void else commits,
        failed=failed_turns(head.table, scope, range(head.view + 1, view)),
        out=(*cast_.out, *(task.results.shares.out if task.results else ())),
        lost=cast_.lost,
    )
    return advance(head.table, turn, probation=probation)


def differences(proposed: Seal, own: Seal) -> list[str]:
    """Names of the fields in which a proposal is not what this peer computed."""
    theirs, ours = proposed.to_wire(), own.to_wire()
    return [field.name for field in fields(Seal) if pack(theirs[field.name]) != pack(ours[field.name])]
