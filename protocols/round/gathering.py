"""Train and commit: what goes into a round (protocol.md 5.3).

Handlers return whether the statement was dealt with; False = it does not fit yet, keep it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from ..drift import MAX_AGE
from ..messages import MAX_LEGS, Commit, Leg
from .context import Context, Training
from .effects import Train, Window
from .exchange import Encoded, encode_update, is_sound
from .roster import fits, newcomers_room
from .views import is_gone, say_ready

if TYPE_CHECKING:
    from ..ids import Hash, PeerId
    from ..statements import Statement


def begin(ctx: Context, now: float) -> None:
    """Start the round on top of the head."""
    ctx.view = max(ctx.head.view + 1, ctx.signed_view)
    signed = ctx.readys.in_view(ctx.view).get(ctx.me)
    if signed is not None and not fits(signed, ctx.view, ctx.head):
        ctx.view += 1  # on a chain that was left: of no use to anybody on this one
    ctx.round = ctx.new_round()
    for name in ("view", "propose", "grams", "gram", "results", "shrink", "grace"):
        ctx.timers.pop(name, None)
    ctx.enter("train", now)
    if ctx.finishing:
        say_ready(ctx, ctx.view, now)
        return
    ctx.set_timer("grace", now + ctx.setting.deadline + ctx.setting.timing.grace)
    if ctx.training is None and not ctx.joining.newcomer:
        _train(ctx, now)


def _train(ctx: Context, now: float) -> None:
    ctx.training = Training(ctx.head.seal, ctx.drift, now, round=ctx.head.round)
    ctx.emit(Train(ctx.head.seal, ctx.round.number, ctx.params, ctx.drift))


def resume(ctx: Context, now: float) -> None:
    """Windows are trained again. One that a pause has held up goes on, unless its base is too far away by now."""
    ctx.paused = False
    if ctx.training is not None and ctx.head.round - ctx.training.round >= MAX_AGE:
        _train(ctx, now)
    if ctx.round.ready < ctx.view:
        ctx.set_timer("grace", now + ctx.setting.deadline + ctx.setting.timing.grace)


def level(ctx: Context, now: float) -> None:
    """A neighbour is on the same head: a newcomer has what there is, and begins to train."""
    if ctx.joining.newcomer:
        ctx.joining.newcomer = False
        if ctx.training is None and not ctx.finishing:
            _train(ctx, now)


def commit_untaken(ctx: Context, now: float) -> None:
    """At the start of a round: who does not vote is not waited for, and commits at once what came too late before."""
    if not ctx.votes_here and not ctx.finishing and _has_untaken(ctx):
        commit(ctx, now)


def on_trained(ctx: Context, parent: Hash, window: Window, now: float) -> None:
    """A window is in: the drift grows by it, and unless the round has gone on without it, it is committed."""
    training = ctx.training
    if training is None or training.parent != parent:
        return
    ctx.training = None
    if training.stale:  # others have gone too far ahead for it to be of use
        _train(ctx, now)
        return
    if not is_sound(window.drift):
        ctx.trouble(ctx.me, "training ended in values that are not finite or far too large; this window is thrown away")
        window = replace(window, drift=training.drift, steps=0, tokens=0)
    new = ctx.drift is not training.drift  # a seal has taken or dropped some of it meanwhile
    ctx.drift = ctx.drift + (window.drift - training.drift) if new else window.drift
    ctx.legs = [*ctx.legs, Leg(parent, window.steps, window.tokens)][-MAX_LEGS:]
    grace = max(ctx.setting.timing.grace, ctx.setting.timing.patience * (now - training.since))
    ctx.set_timer("grace", now + grace, sooner=True)
    commit(ctx, now)


def commit(ctx: Context, now: float) -> None:
    """Encode the drift and commit to it, once a round, unless the roster is made."""
    if ctx.round.promised is not None or (ctx.round.cast is not None and ctx.me not in ctx.round.cast.commits):
        return
    steps, tokens = sum(leg.steps for leg in ctx.legs), sum(leg.tokens for leg in ctx.legs)
    ctx.round.promised, ctx.round.carried = Window(ctx.drift, steps, tokens), len(ctx.legs)
    ctx.enter("commit", now)
    drift, setting, scope, parent, me = ctx.drift, ctx.setting, ctx.scope, ctx.head.seal, ctx.me
    ctx.work("encode", b"", lambda: encode_update(drift, setting, scope, parent, me))


def on_encoded(ctx: Context, encoded: Encoded) -> None:
    """Commit to the encoded update."""
    ctx.round.encoded = encoded
    _notice_lost_bytes(ctx)
    ctx.sign(Commit(ctx.head.seal, encoded.tree.root, tuple(ctx.legs[: ctx.round.carried]), up=0, direct=ctx.direct))


def on_commit(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """Somebody's commit for this round."""
    body = cast("Commit", statement.body)
    if body.parent != ctx.head.seal:
        return body.parent in ctx.parents
    before = ctx.round.commits.get(statement.peer)
    if before is not None and before.hash != statement.hash:
        _second_face(ctx, statement, source)
        return True
    if not _has_room(ctx, statement.peer) or not ctx.first_in_slot(statement):
        return True
    ctx.round.commits[statement.peer] = statement
    ctx.accept(statement, source)
    _notice_lost_bytes(ctx)
    return True


def step(ctx: Context, now: float) -> None:
    """Ready as soon as every voter has committed whose stream is not gone."""
    voters = ctx.head.table.voters
    if ctx.round.ready >= ctx.view or len(ctx.round.commits) + len(ctx.gone) < len(voters):
        return
    late = [each for each in voters if each not in ctx.round.commits]
    if (ctx.me not in late or not ctx.votes_here) and all(is_gone(ctx, each, now) for each in late):
        say_ready(ctx, ctx.view, now)


def _second_face(ctx: Context, statement: Statement, source: PeerId | None) -> None:
    """Somebody signed two commits. Whoever coordinates must know both, for a third may have seen either."""
    ctx.shame(statement)
    if statement.peer not in ctx.round.second:
        ctx.round.second[statement.peer] = statement
        ctx.accept(statement, source)
        ctx.stirred = True


def on_grace(ctx: Context, now: float) -> None:
    """Others had their time: go on with what is here. Untaken drift of earlier windows goes in even so."""
    if _has_untaken(ctx):
        commit(ctx, now)
    elif ctx.paused and not ctx.round.commits:  # nobody trains: a void round would serve nobody
        ctx.set_timer("grace", now + ctx.setting.timing.grace)
        return
    say_ready(ctx, ctx.view, now)


def _has_untaken(ctx: Context) -> bool:
    """Whether a window waits in the drift, not just a codec's residual. After a restart only its age tells."""
    return bool((ctx.legs or any(ctx.ages)) and np.any(ctx.drift))


def _has_room(ctx: Context, peer: PeerId) -> bool:
    """Voters and members with weight always; others while there is room for newcomers (5.4)."""
    table = ctx.head.table
    if table.weighs(peer):
        return True
    newcomers = sum(not table.weighs(each) for each in ctx.round.commits)
    return newcomers < newcomers_room(table)


def _notice_lost_bytes(ctx: Context) -> None:
    encoded, own = ctx.round.encoded, ctx.own_commit
    if encoded and own and own.root != encoded.tree.root and ctx.once("lost bytes"):
        ctx.trouble(ctx.me, "committed other bytes for this round before a restart; its update waits for the next")
