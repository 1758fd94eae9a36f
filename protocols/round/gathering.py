"""Train, commit, ready, roster: who takes part in the round (protocol.md 5.3, 5.4).

Handlers return whether the statement was dealt with; False = it does not fit yet, keep it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from ..messages import Commit, Leg, Ready, Roster
from ..payloads import Pieces, Want
from .context import Context, Round
from .effects import Final, Train, Window, Work
from .exchange import Encoded, Inbox, encode_update, is_sound
from .exchanging import try_gram
from .roster import newcomers_room, read_roster, required
from .serving import deliver_to

if TYPE_CHECKING:
    from ..ids import PeerId
    from ..statements import Statement


def begin(ctx: Context, now: float) -> None:
    """Start the round on top of the head."""
    ctx.round = Round(ctx.head.round + 1, ctx.head.view + 1)
    ctx.enter("train", now)
    ctx.emit(Train(ctx.head.seal, ctx.round.number, ctx.params, ctx.drift))


def on_trained(ctx: Context, window: Window, now: float) -> None:
    """A window of training is in: encode the update it makes."""
    if ctx.round.window is not None:
        return  # a restart brought this round's window back already
    if not is_sound(window.drift):
        ctx.trouble(ctx.me, "training left the numbers that an update may have; this window is thrown away")
        window = replace(window, drift=np.zeros_like(window.drift))
    ctx.round.window = window
    ctx.drift = window.drift
    ctx.enter("commit", now)
    parent, codec = ctx.head.seal, ctx.setting.update_codec
    ctx.work(Work("encode", parent, lambda: encode_update(window.drift, codec, ctx.scope, parent, ctx.me)))


def on_encoded(ctx: Context, encoded: Encoded) -> None:
    """Commit to the encoded update; after a restart the roster may be here already."""
    ctx.round.encoded = encoded
    _notice_lost_bytes(ctx)
    if ctx.round.cast is not None:
        _deliver(ctx)
        try_gram(ctx)
    window = cast("Window", ctx.round.window)
    leg = Leg(ctx.head.seal, window.steps, window.tokens)
    ctx.sign(Commit(ctx.head.seal, encoded.tree.root, (leg,), up=0, direct=True))


def on_commit(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """Somebody's commit for this round."""
    body = cast("Commit", statement.body)
    if body.parent != ctx.head.seal:
        return body.parent in ctx.past
    if not _has_room(ctx, statement.peer) or not ctx.first_in_slot(statement):
        return True
    ctx.round.commits[statement.peer] = statement
    ctx.accept(statement, source)
    _notice_lost_bytes(ctx)
    if _all_committed(ctx):
        say_ready(ctx, now)
        try_roster(ctx)
    return True


def _has_room(ctx: Context, peer: PeerId) -> bool:
    """Voters always; others while there is room for newcomers (5.4)."""
    if ctx.head.table.stands(peer):
        return True
    newcomers = sum(not ctx.head.table.stands(each) for each in ctx.round.commits)
    return newcomers < newcomers_room(ctx.head.table)


def _notice_lost_bytes(ctx: Context) -> None:
    if ctx.round.encoded and ctx.own_commit and not ctx.sent and ctx.once("lost bytes"):
        ctx.trouble(ctx.me, "committed other bytes for this round before a restart; its update waits for the next")


def _all_committed(ctx: Context) -> bool:
    return all(each in ctx.round.commits for each in ctx.head.table.voters)


def say_ready(ctx: Context, now: float) -> None:
    """Sign ready for the view in flight, once, naming the voters' commits seen.

    Newcomers' commits are not named: every peer may have heard others first, and a roster has not room for all.
    """
    table = ctx.head.table
    if table.stands(ctx.me) and ctx.once("ready"):
        seen = sorted(each.hash for peer, each in ctx.round.commits.items() if table.stands(peer))
        ctx.sign(Ready(ctx.round.view, ctx.head.seal, tuple(seen)))
        ctx.enter("roster", now)


def on_ready(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """A voter is ready on top of a head; a quorum of them makes the head final (5.9)."""
    body = cast("Ready", statement.body)
    if body.view <= ctx.head.view or (body.view == ctx.round.view and not ctx.head.table.stands(statement.peer)):
        return True
    if body.view != ctx.round.view or body.head != ctx.head.seal:
        return False
    if not ctx.first_in_slot(statement):
        return True
    ctx.round.readys[statement.peer] = statement
    ctx.accept(statement, source)
    if not ctx.round.final and ctx.head.table.is_quorum(ctx.round.readys):
        ctx.round.final = True
        ctx.emit(Final(ctx.head.seal, ctx.head.round))
    try_roster(ctx)
    return True


def try_roster(ctx: Context) -> None:
    """The coordinator, with every commit and a quorum of readys in hand, proposes the roster."""
    current = ctx.round
    complete = _all_committed(ctx) and ctx.head.table.is_quorum(current.readys)
    if not complete or not ctx.coordinates or "roster" in current.asked:
        return
    seen = required(ctx.head.table, list(current.readys.values()))
    if not seen <= {each.hash for each in current.commits.values()}:
        if ctx.once("no roster"):
            ctx.trouble(ctx.me, "cannot make a roster: a third of the members saw a commit that is not here")
    elif ctx.once("roster"):
        commits = tuple(current.commits[each].encode() for each in sorted(current.commits))
        readys = tuple(current.readys[each].encode() for each in sorted(current.readys))
        ctx.sign(Roster(current.view, ctx.head.seal, commits, readys))


def on_roster(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """The cast is fixed: reducers open their inboxes, contributors push."""
    body = cast("Roster", statement.body)
    if body.view <= ctx.head.view:
        return True
    if body.view != ctx.round.view or body.parent != ctx.head.seal:
        return False
    if ctx.round.cast is not None or not ctx.first_in_slot(statement):
        return True
    current = ctx.round
    cast_ = current.cast = read_roster(
        statement, ctx.scope, ctx.head, parts=len(ctx.part_sizes), open_=ctx.setting.open
    )
    ctx.accept(statement, source)
    current.commits = dict(cast_.commits)
    ctx.enter("exchange", now)
    if cast_.owned(ctx.me):
        current.inbox = Inbox(cast_, ctx.me, ctx.scope, ctx.head.seal, ctx.setting)
    ctx.ask_again(Want(cast_.core, ()))
    _deliver(ctx)
    try_gram(ctx)
    return True


def _deliver(ctx: Context) -> None:
    """Push every part to its owner, one's own into one's own inbox.

    Starts behind one's own place among the owners, so that not everybody pushes to the same one first.
    """
    cast_, sent = ctx.round.cast, ctx.sent
    assert cast_ is not None
    if sent is None or ctx.me not in cast_.rows:
        return
    start = sum(ctx.me > each for each in cast_.working)
    for owner in (*cast_.working[start:], *cast_.working[:start]):
        if owner != ctx.me:
            deliver_to(ctx, owner)
    if ctx.round.inbox is not None:
        own = tuple(sent.piece(index) for index in cast_.owned(ctx.me))
        ctx.round.inbox.add(ctx.me, Pieces(cast_.core, ctx.me, own))
