"""Weights, weighted sums, result bytes, the outer step (protocol.md 5.6, 5.7, 5.11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..drift import settle
from ..errors import RemoteError
from ..messages import Freeze, Result
from ..payloads import Pieces
from .effects import Vector, Work
from .reduction import Applied, Frozen, Reduced, apply_results, read_freeze, reduce_parts, taken_parts
from .serving import publish_to, takers
from .voting import try_propose

if TYPE_CHECKING:
    from ..ids import PeerId
    from ..statements import Statement
    from .context import Context


def start_reduce(ctx: Context, freeze: Freeze) -> None:
    """Compute the weights and, at a reducer, the results of its parts."""
    cast_, inbox = ctx.round.cast, ctx.round.inbox
    assert cast_ is not None
    grams, table, setting = dict(ctx.round.grams), ctx.head.table, ctx.setting
    whole = inbox is not None and inbox.complete  # after a restart parts may still be on their way again

    def run() -> tuple[Frozen, Reduced | None]:
        frozen = read_freeze(freeze, cast_, grams, table, setting)
        return frozen, reduce_parts(inbox, frozen, setting.result_codec) if inbox and whole else None

    ctx.work(Work("reduce", ctx.head.seal, run))


def on_reduced(ctx: Context, value: tuple[Frozen, Reduced | None], now: float) -> None:
    """Sign one's result root; the bytes follow it."""
    ctx.round.frozen, reduced = value
    if reduced is not None:
        ctx.round.reduced = reduced
        ctx.sign(Result(ctx.round.frozen.core, reduced.tree.root))
        _publish(ctx)
    try_apply(ctx, now)


def on_result(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """A reducer's result root; behind one's own, the bytes go to every member that takes part."""
    body, cast_ = cast("Result", statement.body), ctx.round.cast
    if cast_ is None or body.freeze != ctx.round.freeze:
        return False
    if statement.peer not in cast_.working:
        raise RemoteError(statement.peer, "result from a peer that reduces nothing")
    if not ctx.first_in_slot(statement):
        return True
    ctx.round.roots[statement.peer] = body.root
    ctx.accept(statement, source)
    if statement.peer == ctx.me:
        _publish(ctx)
        try_apply(ctx, now)
    return True


def _publish(ctx: Context) -> None:
    """Keep one's own results, once they are both computed and signed, and push them to every member that takes part."""
    reduced, root, results = ctx.round.reduced, ctx.round.roots.get(ctx.me), ctx.round.results
    if reduced is None or root is None or results is None:
        return
    if reduced.tree.root != root:
        ctx.trouble(ctx.me, "signed another result for this round before a restart; its bytes are gone")
        return
    results.add(ctx.me, Pieces(results.core, ctx.me, tuple(reduced.pieces())), root)
    for each in sorted(takers(ctx) - {ctx.me}):
        publish_to(ctx, each)


def on_results(ctx: Context, sender: PeerId, frame: Pieces, now: float) -> None:
    """Result bytes; the signed root they must fit travels before them on every stream."""
    results, root = ctx.round.results, ctx.round.roots.get(frame.maker)
    if results is None or root is None or frame.core != ctx.round.freeze:
        ctx.miss(frame.core, sender)
        return
    results.add(sender, frame, root)
    try_apply(ctx, now)


def try_apply(ctx: Context, now: float) -> None:
    """With every result byte and the weights in hand, take the outer step on a copy of the state."""
    results = ctx.round.results
    cast_ = ctx.round.cast
    if cast_ is None or results is None or ctx.round.frozen is None or not results.complete or not ctx.once("apply"):
        return
    ctx.enter("apply", now)
    params, momentum, drift, setting = ctx.params, ctx.momentum, ctx.drift, ctx.setting
    sent, taken = ctx.sent, taken_parts(cast_, ctx.round.grams, ctx.me)

    def run() -> tuple[Applied, Vector]:
        left = settle(drift, sent.data, taken, setting.update_codec) if sent else drift
        return apply_results(results, params, momentum, setting), left

    ctx.work(Work("apply", ctx.head.seal, run))


def on_applied(ctx: Context, value: tuple[Applied, Vector], now: float) -> None:
    """The state after this round is known: propose it, or compare the proposal with it."""
    ctx.round.applied, ctx.round.left = value
    ctx.enter("seal", now)
    try_propose(ctx)
