"""What adopting a seal does to a peer's own state: base, drift, legs, history (protocol.md 5.11)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..drift import MAX_AGE, grow_old
from .context import HISTORY, HISTORY_BYTES, Settled

if TYPE_CHECKING:
    from .chain import Head
    from .context import Context
    from .task import Task


def settle_round(ctx: Context, task: Task, head: Head) -> None:
    """Move to ``head``, a child of the head that ``task`` computed; what it took leaves the drift."""
    assert task.applied is not None
    _remember(ctx, task)
    if task.cast.lost:
        ctx.root(ctx.head.seal, final=False)
    if not task.cast.void:
        _settle_drift(ctx, task)
    ctx.parents.append(ctx.head.seal)
    ctx.params, ctx.momentum, ctx.state_root = task.applied.params, task.applied.momentum, task.applied.root
    ctx.move_head(head)
    ctx.chain.append(head)
    ctx.moved = True


def jump(ctx: Context, seals: int) -> None:
    """A jump over so many seals of rounds that did not take this peer's drift, which grows as old (5.11).

    A window that began before a jump over three is of no use either: its base is too far away.
    """
    nothing, before = (False,) * len(ctx.ages), ctx.ages
    for _ in range(min(seals, MAX_AGE)):
        ctx.drift, ctx.ages = grow_old(ctx.drift, ctx.ages, nothing, ctx.setting.part)
    ctx.ages = tuple(0 if age + seals >= MAX_AGE else age + seals for age in before)  # what is dropped begins anew
    if seals >= MAX_AGE:
        ctx.legs = []
        ctx.training = replace(ctx.training, stale=True) if ctx.training else None


def _settle_drift(ctx: Context, task: Task) -> None:
    """In each part that was taken the bytes sent go; a part that three seals have left is dropped."""
    assert task.frozen is not None and task.left is not None
    taken, (start, left) = task.taken(ctx.me), task.left
    drift = left if ctx.drift is start else left + (ctx.drift - start)  # a window came in meanwhile
    if 2 * sum(taken) >= len(taken):
        ctx.legs = ctx.legs[ctx.round.carried :]
    ctx.drift, ctx.ages = grow_old(drift, ctx.ages, taken, ctx.setting.part)


def _remember(ctx: Context, task: Task) -> None:
    """Keep the round for members that missed its end, within bounds."""
    ctx.history.append(Settled(ctx.head.seal, ctx.known, task.results))
    size = sum(each.results.nbytes for each in ctx.history if each.results)
    while len(ctx.history) > HISTORY or (size > HISTORY_BYTES and len(ctx.history) > 1):
        old = ctx.history.popleft().results
        size -= old.nbytes if old else 0
