"""Weighted sums, result bytes, the outer step (protocol.md 5.7, 5.11)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ..drift import settle
from ..messages import MAX_REDUCERS, MAX_REVISIONS, Freeze, Result
from ..payloads import MAX_PIECES, Pieces, Want
from .effects import Push
from .exchanging import lacks, task_of
from .reduction import Applied, Reduced, apply_update, reduce_parts
from .views import is_gone

if TYPE_CHECKING:
    from ..ids import PeerId
    from ..statements import Statement
    from .context import Context
    from .effects import Setting, Vector
    from .exchange import Rows
    from .reduction import Frozen
    from .results import Share
    from .task import Task


def step(ctx: Context, task: Task, now: float) -> None:
    """Go on with a frozen round as far as what is here allows."""
    if task.results is None or task.applied is not None:
        return
    _try_reduce(ctx, task)
    _try_apply(ctx, task, now)
    current = ctx.round.cast
    if current and task is ctx.round.task and current.coordinator == ctx.me and current.view == ctx.view:
        _try_refreeze(ctx, task, now)


def _try_reduce(ctx: Context, task: Task) -> None:
    """Compute each of this peer's shares whose rows are here."""
    frozen, setting = task.frozen, ctx.setting
    if frozen is None:
        return
    for share in task.shares.parts:
        if share[0] != ctx.me or share in task.reducing or lacks(ctx, task, share):
            continue
        task.reducing.add(share)
        rows = ctx.round.inbox.rows(task.cast, task.shares.parts[share], task.have)
        ctx.work("reduce", frozen.core, partial(_reduce, share, rows, frozen, setting))


def _reduce(share: Share, rows: Rows, frozen: Frozen, setting: Setting) -> tuple[Share, Reduced]:
    return share, reduce_parts(rows, frozen, setting)


def on_reduced(ctx: Context, about: bytes, value: tuple[Share, Reduced]) -> None:
    """Sign the result root of one share; the bytes follow it."""
    task = task_of(ctx, about)
    if task is None or task.results is None:
        return
    share, reduced = value
    task.reduced[share] = reduced
    ctx.sign(Result(task.results.core, task.shares.out[: share[1]], reduced.tree.root))
    _publish(ctx, task, share)


def on_result(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """A reducer's result root; behind one's own, the bytes go to every member that takes part."""
    body = cast("Result", statement.body)
    task = task_of(ctx, body.freeze)
    if task is None or task.results is None:
        return False
    share = (statement.peer, len(body.out))
    out = task.shares.out
    if body.out != out[: len(body.out)]:
        return len(body.out) <= len(out)
    if share not in task.shares.parts:
        return True
    if not ctx.first_in_slot(statement):
        return True
    task.results.learn(share, body.root)
    task.served[statement.peer] = now
    ctx.accept(statement, source)
    if statement.peer == ctx.me:
        _publish(ctx, task, share)
    elif ctx.me not in takers(ctx, task) and not ctx.round.behind:
        ctx.round.chased = now
        ctx.push(statement.peer, "want", Want(task.results.core, tuple(task.shares.parts[share][:MAX_PIECES])).encode())
    return True


def _publish(ctx: Context, task: Task, share: Share) -> None:
    """Keep one's own results, once they are both computed and signed, and push them to every member that takes part."""
    assert task.results is not None
    reduced, root = task.reduced.get(share), task.results.roots.get(share)
    if reduced is None or root is None:
        return
    if reduced.tree.root != root:
        ctx.trouble(ctx.me, "signed another result for this round before a restart; its bytes are gone")
        return
    task.results.add(ctx.me, Pieces(task.results.core, ctx.me, reduced.pieces()))
    others = sorted(takers(ctx, task) - {ctx.me})
    for payload in [frame.encode() for frame in task.results.frames(reduced.indices)]:
        for each in others:
            ctx.emit(Push(each, "results", payload))


def takers(ctx: Context, task: Task) -> set[PeerId]:
    """Who gets result bytes unasked: whoever committed, and the voters."""
    return {*task.cast.commits, *ctx.head.table.voters}


def on_results(ctx: Context, sender: PeerId, frame: Pieces, now: float) -> None:
    """Result bytes; their reducer's own come behind its signed root, unless the root takes another way."""
    task = task_of(ctx, frame.core)
    if task is None or task.results is None:
        ctx.miss(frame.core, sender)
    else:
        ctx.round.fed[sender] = now
        task.results.add(sender, frame)


def _try_refreeze(ctx: Context, task: Task, now: float) -> None:
    """The coordinator: reducers that give no result are put out, their parts go to others; the weights stay."""
    results, current = task.results, ctx.round.cast
    assert results is not None and current is not None
    rev = task.froze[1] + 1 if task.froze[0] == current.view else 0
    if results.complete or rev > MAX_REVISIONS or task.frozen is None:
        return
    patient = now < task.reduce_due + ctx.setting.timing.exchange
    if patient and not any(is_gone(ctx, each, now) for each in task.cast.reducers):
        return
    late = set(results.missing()) - {ctx.me}
    if not late or (patient and not all(is_gone(ctx, each, now) for each in late)):
        return
    out = (*results.shares.out, *sorted(late))
    if len(out) < len(task.cast.reducers) and len(out) <= MAX_REDUCERS and ctx.once(f"freeze {current.view} {rev}"):
        task.reduce_due = now + ctx.setting.timing.exchange
        ctx.sign(Freeze(current.view, rev, task.cast.core, task.frozen.grams, out))


def _try_apply(ctx: Context, task: Task, now: float) -> None:
    """With every result byte and the weights in hand, take the outer step on a copy of the state."""
    results, frozen = task.results, task.frozen
    if results is None or frozen is None or not results.complete or task.applying:
        return
    task.applying = True
    if task is ctx.round.task:
        ctx.enter("apply", now)
    state, drift, setting = (ctx.params, ctx.momentum), ctx.drift, ctx.setting
    sent, taken, out = ctx.sent_in(task.cast), task.taken(ctx.me), task.shares.out
    data = sent.data if sent and not sent.covers(drift) else None
    scope, told = ctx.scope, task.told

    def run() -> tuple[tuple[PeerId, ...], Applied, tuple[Vector, Vector]]:
        left = settle(drift, data, taken, setting.update_codec, setting.part)
        applied = scope.shared(("apply", *told), lambda: apply_update(results.values, state, setting))
        return out, applied, (drift, left)

    ctx.work("apply", results.core, run)


def on_applied(ctx: Context, about: bytes, value: Any, now: float) -> None:
    """The state after this round is known: propose it, or compare the proposal with it."""
    task = task_of(ctx, about)
    if task is None:
        return
    out, applied, left = value
    if out == task.shares.out:  # else somebody was put out meanwhile
        task.applied, task.left = applied, left
        ctx.round.tally = True
        if task is ctx.round.task:
            ctx.enter("seal", now)
