"""Views: ready with its lock, giving a view up, moving up with the others, finality (protocol.md 5.4, 5.9, 5.10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..messages import MAX_CONTRIBUTORS, MAX_REDUCERS, Ready
from ..turns import seats
from .effects import Final
from .roster import SHRINK_AFTER, fits

if TYPE_CHECKING:
    from ..ids import Hash, PeerId
    from ..statements import Statement
    from .context import Context

MAX_LEAD = 1 << 18
"""Views above the head's that the others may lead to: years of failed ones. A liar may be a third of those who are
here for a moment, and whoever has signed ready for the last view of all never votes again."""


def say_ready(ctx: Context, view: int, now: float) -> None:
    """Sign ready for ``view`` on top of the head, once; from here on this peer votes in no lower view.

    Newcomers' commits are not named: every peer may have heard others first, and a roster has not room for all.
    """
    if view <= max(ctx.round.ready, ctx.head.view):
        return
    ctx.view = ctx.round.ready = view
    ctx.stirred = True
    ctx.timers.pop("grace", None)
    ctx.timers.pop("propose", None)
    if not ctx.votes_here:
        allow(ctx, "roster", now)
        return
    ctx.signed_view = max(ctx.signed_view, view)
    cast_ = ctx.round.cast
    kept = cast_ if cast_ is not None and not cast_.void else None
    ctx.sign(
        Ready(
            view=view,
            head=ctx.head.seal,
            head_view=ctx.head.view,
            commits=_seen(ctx),
            kept=kept.base if kept else b"",
            kept_view=kept.view if kept else 0,
            unserved=unserved_here(ctx, now),
        )
    )
    if kept is None:
        ctx.enter("roster", now)
    allow(ctx, "roster", now)
    if ctx.round.barren >= SHRINK_AFTER:
        ctx.set_timer("shrink", now + ctx.setting.timing.shrink)


def _seen(ctx: Context) -> tuple[Hash, ...]:
    """The commits that a ready names: voters', and of others with weight no more than a roster holds if all differ."""
    table = ctx.head.table
    single = [peer for peer in ctx.round.commits if peer not in ctx.round.second and table.weighs(peer)]
    others = seats(table, ctx.scope, ctx.round.number, [peer for peer in single if not table.stands(peer)])
    few = others[: (2 * MAX_CONTRIBUTORS - len(table.voters)) // 3]  # a third of the readys names what must be held
    return tuple(sorted(ctx.round.commits[peer].hash for peer in single if table.stands(peer) or peer in few))


def unserved_here(ctx: Context, now: float) -> tuple[PeerId, ...]:
    """Reducers of the cast that owe this peer a Gram or result: late, gone, put out, or known by two faces."""
    cast_, task = ctx.round.cast, ctx.round.task
    if cast_ is None or task is None:
        return ()
    late = now >= (task.reduce_due if task.results else task.due) + ctx.setting.timing.exchange
    owing = {each for each in cast_.working if each not in task.grams}
    if task.results is not None:  # who has inherited parts may lack what only the one before it had
        holders = task.results.shares.holders
        missing = [holders[part] for parts in task.results.missing().values() for part in parts]
        owing = {owner for owner, stage in missing if stage == 0}
    bad = {each for each in owing if late or is_gone(ctx, each, now)} | (ctx.round.faced & set(cast_.working))
    if cast_.view not in ctx.round.unfair:
        bad |= {*cast_.out, *task.shares.out}
    return tuple(sorted(bad - {ctx.me})[:MAX_REDUCERS])


def is_gone(ctx: Context, peer: PeerId, now: float) -> bool:
    """Whether a peer to which there was a stream has none any more."""
    return peer in ctx.gone and now >= ctx.gone[peer] + ctx.setting.timing.gone  # the very time its timer is set to


def allow(ctx: Context, stage: str, now: float) -> None:
    """Give the coordinator of the view in flight the time for its next step."""
    timing, task = ctx.setting.timing, ctx.round.task
    seconds = timing.roster * ctx.stretch
    if stage == "exchange":
        seconds = (max(0.0, task.due - now) if task else 0.0) + (timing.exchange + timing.slack) * ctx.stretch
    elif stage == "reduce":
        seconds = (max(0.0, task.reduce_due - now) if task else 0.0) + timing.reduce * ctx.stretch
    elif stage == "seal":
        seconds = timing.certificate * ctx.stretch
    ctx.set_timer("view", now + seconds)


def give_up(ctx: Context, now: float) -> None:
    """The view has come to nothing here: ready for the next one."""
    ctx.stirred = True
    ctx.round.barren = 0 if ctx.head.table.is_quorum(fitting(ctx)) else ctx.round.barren + 1
    say_ready(ctx, ctx.view + 1, now)


def fitting(ctx: Context) -> dict[PeerId, Statement]:
    """Readys that a roster of the view in flight may hold, in order of signers."""
    found = ctx.readys.in_view(ctx.view)
    return {each: found[each] for each in sorted(found) if fits(found[each], ctx.view, ctx.head)}


def on_ready(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """A voter is ready; a quorum on top of the head makes it final, a third moves this peer up."""
    body, table = cast("Ready", statement.body), ctx.head.table
    if statement.peer == ctx.me:  # it may come from another machine, which ran with this key before
        ctx.signed_view = max(ctx.signed_view, body.view)
    if body.view <= ctx.head.view:
        return True
    if not table.stands(statement.peer):
        return body.head == ctx.head.seal
    if not ctx.keep(ctx.readys, body.view, statement):
        return True
    ctx.accept(statement, source)
    if statement.peer == ctx.me and body.view == ctx.round.ready and not fits(statement, body.view, ctx.head):
        say_ready(ctx, body.view + 1, now)  # signed on a head that was lost with a checkpoint: of no use on this one
    if body.view > ctx.heard.get(statement.peer, (0, 0.0))[0]:
        ctx.heard[statement.peer] = (body.view, now)
        ctx.highest = max(ctx.highest, body.view)
    if body.view == ctx.head.view + 1:
        try_final(ctx)
    move_up(ctx, now)
    _hurry(ctx, now)
    return True


def try_final(ctx: Context) -> None:
    """More than 2/3 of voters and lost are ready right above the head: it is never undone."""
    if ctx.final == ctx.head.seal or ctx.head.proposal is None:
        return
    found = ctx.readys.in_view(ctx.head.view + 1)
    if not ctx.head.table.is_quorum(found):
        return
    proof = {peer: each for peer, each in found.items() if _on_head(ctx, each)}
    if ctx.head.table.holds(proof, ctx.head.round) and ctx.chain.agrees(proof):
        ctx.final = ctx.head.seal
        ctx.root(ctx.head.seal, final=True)
        ctx.chain.mark_final(ctx.head.seal, tuple(proof[each] for each in sorted(proof)))
        ctx.emit(Final(ctx.head.seal, ctx.head.round))


def _on_head(ctx: Context, ready: Statement) -> bool:
    return cast("Ready", ready.body).head == ctx.head.seal


def move_up(ctx: Context, now: float) -> None:
    """Join the highest view that more than a third of the weight heard from in the last minute has signed."""
    if ctx.highest <= ctx.view:
        return
    table, since = ctx.head.table, now - ctx.setting.timing.heard
    heard = {peer: view for peer, (view, at) in ctx.heard.items() if at >= since and table.stands(peer)}
    present = {ctx.me, *heard, *ctx.neighbours}  # who is here and silent counts as well: it may be training
    views = sorted({view for view in heard.values() if ctx.view < view <= ctx.head.view + MAX_LEAD}, reverse=True)
    for view in views:
        if table.is_third([peer for peer, own in heard.items() if own >= view], of=present):
            give_up_for(ctx, view, now)
            return


def give_up_for(ctx: Context, view: int, now: float) -> None:
    """The others are further: join them."""
    if ctx.round.ready == ctx.view and not ctx.head.table.is_quorum(fitting(ctx)):
        ctx.round.barren += 1
    say_ready(ctx, view, now)


def _hurry(ctx: Context, now: float) -> None:
    """A third of the weight is ready in the view in flight: whoever still trains has the grace to end it."""
    if ctx.round.ready < ctx.view and ctx.head.table.is_third(ctx.readys.in_view(ctx.view)):
        ctx.set_timer("grace", now + ctx.setting.timing.grace, sooner=True)


def on_gone(ctx: Context, now: float) -> None:
    """A stream has been closed for a while: set the timer for the next one."""
    later = [at + ctx.setting.timing.gone for at in ctx.gone.values() if now < at + ctx.setting.timing.gone]
    if later:
        ctx.set_timer("gone", min(later))


def step(ctx: Context, now: float) -> None:
    """A coordinator that is gone needs no further waiting, once the others could go on in its view."""
    while ctx.round.ready == ctx.view and is_gone(ctx, ctx.coordinator, now) and ctx.head.table.is_quorum(fitting(ctx)):
        give_up(ctx, now)
