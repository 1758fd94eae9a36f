"""Parts arrive at their reducers, Grams at everybody, the freeze fixes them (protocol.md 5.5, 5.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..errors import RemoteError
from ..messages import Freeze, Gram
from ..payloads import Want
from .effects import Work
from .reducing import start_reduce
from .reduction import Results, check_gram, freeze_core

if TYPE_CHECKING:
    from ..ids import PeerId
    from ..payloads import Pieces
    from ..statements import Statement
    from .context import Context


def on_parts(ctx: Context, sender: PeerId, frame: Pieces) -> None:
    """Parts for this reducer.

    The roster travels before them on every stream. So frames for another one are late, or this peer is behind and
    could not read the roster yet: then it asks again when it has.
    """
    inbox = ctx.round.inbox
    if inbox is None or frame.core != inbox.cast.core:
        ctx.miss(frame.core, sender)
        return
    if "gram" in ctx.round.asked:
        return
    inbox.add(sender, frame)
    try_gram(ctx)


def try_gram(ctx: Context) -> None:
    """With every part in, compute the Gram matrix; where the freeze came first, after a restart, also the results."""
    inbox, frozen_before = ctx.round.inbox, ctx.round.frozen_short
    if inbox is not None and inbox.complete and ctx.once("gram"):
        ctx.work(Work("gram", ctx.head.seal, inbox.gram))
        if frozen_before is not None:
            start_reduce(ctx, frozen_before)


def on_gram(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """A reducer's Gram."""
    cast_ = ctx.round.cast
    if cast_ is None or cast("Gram", statement.body).roster != cast_.core:
        return False
    check_gram(statement, cast_)
    if ctx.first_in_slot(statement):
        ctx.round.grams[statement.peer] = statement
        ctx.accept(statement, source)
        _try_freeze(ctx)
    return True


def _try_freeze(ctx: Context) -> None:
    cast_, grams = ctx.round.cast, ctx.round.grams
    assert cast_ is not None
    if ctx.coordinates and all(each in grams for each in cast_.working) and ctx.once("freeze"):
        ctx.sign(Freeze(ctx.round.view, cast_.core, tuple(grams[each].hash for each in cast_.working)))


def on_freeze(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """The Grams are fixed: from here the weights are a pure function, and results can be told apart."""
    body, cast_ = cast("Freeze", statement.body), ctx.round.cast
    if body.view <= ctx.head.view:
        return True
    if cast_ is None or body.view != ctx.round.view:
        return False
    if statement.peer != cast_.coordinator:
        raise RemoteError(statement.peer, f"froze view {body.view} out of turn")
    by_hash = {each.hash: peer for peer, each in ctx.round.grams.items()}
    if body.roster == cast_.core and any(each not in by_hash for each in body.grams):
        return False
    if body.roster != cast_.core or tuple(by_hash[each] for each in body.grams) != cast_.working:
        raise RemoteError(statement.peer, "froze other than one gram of every reducer")
    if ctx.first_in_slot(statement):
        ctx.accept(statement, source)
        ctx.round.freeze = freeze_core(cast_.core, body.grams)
        ctx.round.results = Results(cast_, ctx.round.freeze, ctx.result_codec, ctx.setting.values)
        ctx.enter("reduce", now)
        ctx.ask_again(Want(ctx.round.freeze, cast_.working))
        if ctx.round.inbox is not None and not ctx.round.inbox.complete:
            ctx.round.frozen_short = body
        start_reduce(ctx, body)
    return True
