"""Which phase of a round deals with which statement, frame and timer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..chain_payloads import AskChain, ChainReply
from ..errors import RemoteError
from ..ids import PeerId
from ..messages import Body, Commit, Freeze, Gram, Ready, Result, Roster, Seal, Vote
from ..payloads import Digest, Have, Pieces, Want
from ..state_payloads import LeaveState, StateChunk, StateQueue, WantState
from ..statements import Statement
from . import (
    donating,
    exchanging,
    filling,
    gathering,
    gossip,
    histories,
    loading,
    reducing,
    rostering,
    serving,
    syncing,
    views,
    voting,
)
from .context import Context
from .looking import LOOKED_AT, looked_at

Handler = Callable[[Context, Statement, PeerId | None, float], bool]

HANDLERS: Mapping[type[Body], Handler] = {
    Commit: gathering.on_commit,
    Ready: views.on_ready,
    Roster: rostering.on_roster,
    Gram: exchanging.on_gram,
    Freeze: exchanging.on_freeze,
    Result: reducing.on_result,
    Seal: voting.on_seal,
    Vote: voting.on_vote,
}

TIMERS: Mapping[str, Callable[[Context, float], None]] = {
    "grace": gathering.on_grace,
    "view": views.give_up,
    "propose": lambda ctx, now: rostering.try_roster(ctx, now, settled=True),
    "shrink": rostering.try_shrink,
    "gone": views.on_gone,
    "chase": serving.chase,
    "digest": gossip.beat,
    "sync": loading.beat,
    "donate": donating.beat,
    "opinions": syncing.on_opinions,
    "fill": filling.beat,
    "rivals": histories.show_rivals,
    # At these times ``_step`` finds that it need not wait any longer.
    "gram": lambda ctx, now: None,
    "grams": lambda ctx, now: None,
    "results": lambda ctx, now: None,
}

_WORK = (*LOOKED_AT, "want")
"""Frames of a round in flight."""
PATIENT = ("opinions", "sync", "digest", "gone", "fill", "donate")
"""Timers of a peer that takes no part in rounds yet."""
_BULK: Mapping[str, Callable[[Context, PeerId, Pieces, float], None]] = {
    "parts": exchanging.on_parts,
    "results": reducing.on_results,
}
_QUESTIONS: Mapping[str, type[AskChain | WantState]] = {"ask-chain": AskChain, "want-state": WantState}
EARLY = 32
"""Questions of peers to whom no stream is open yet."""
_STATE: Mapping[str, Callable[[Context, PeerId, bytes, float], None]] = {
    "want-state": lambda ctx, sender, raw, now: donating.on_want_state(
        ctx, sender, WantState.decode(raw, sender=sender), now
    ),
    "leave-state": lambda ctx, sender, raw, now: donating.on_leave_state(
        ctx, sender, LeaveState.decode(raw, sender=sender), now
    ),
    "state-queue": lambda ctx, sender, raw, now: loading.on_queue(
        ctx, sender, StateQueue.decode(raw, sender=sender), now
    ),
    "state": lambda ctx, sender, raw, now: syncing.on_state(ctx, sender, StateChunk.decode(raw, sender=sender), now),
}


def read(ctx: Context, sender: PeerId, kind: str, payload: bytes) -> bytes | Pieces:
    """What takes time of a frame of parts or results: parse it, look at its bytes. Touches nothing of the round.

    A malformed frame comes back as it is, for ``on_frame`` to refuse.
    """
    try:
        return looked_at(kind, _parsed(ctx, sender, kind, payload), ctx.setting)
    except RemoteError:
        return payload


def _parsed(ctx: Context, sender: PeerId, kind: str, payload: bytes) -> Pieces:
    sizes = ctx.part_sizes if kind == "parts" else ctx.result_sizes
    return Pieces.decode(payload, sizes, sender=sender)


def on_frame(ctx: Context, sender: PeerId, kind: str, payload: bytes | Pieces, now: float) -> None:
    """Any unsigned frame from ``sender``, perhaps ``read`` already; raises RemoteError naming it."""
    if ctx.waits and kind in _WORK:
        return
    if isinstance(payload, Pieces):
        _BULK[kind](ctx, sender, payload, now)
    elif kind in _QUESTIONS and sender not in ctx.neighbours:
        _note_early(ctx, sender, kind, payload)
    elif kind in _BULK:
        frame = ctx.scope.shared((kind, payload), lambda: _parsed(ctx, sender, kind, payload))
        _BULK[kind](ctx, sender, frame, now)
    elif kind == "want":
        serving.on_want(ctx, sender, Want.decode(payload, sender=sender), now)
    elif kind == "digest":
        gossip.on_digest(ctx, sender, Digest.decode(payload, sender=sender), now)
    elif kind == "have":
        gossip.on_have(ctx, sender, Have.decode(payload, sender=sender), now)
    elif kind == "ask-chain":
        syncing.on_ask_chain(ctx, sender, AskChain.decode(payload, sender=sender), now)
    elif kind == "chain" and not syncing.awaits_chain(ctx, sender):
        pass  # to read it costs hundreds of signatures
    elif kind == "chain":
        syncing.on_chain(ctx, sender, ChainReply.decode(payload, ctx.scope, sender=sender), now)
    elif kind in _STATE:
        _STATE[kind](ctx, sender, payload, now)
    else:
        raise RemoteError(sender, f"{kind} is not a frame of a round")


def answer_early(ctx: Context, peer: PeerId, now: float) -> None:
    """A stream to ``peer`` opened: answer what it has asked since it opened its own."""
    if peer in ctx.talk.early:
        on_frame(ctx, peer, *ctx.talk.early.pop(peer), now)


def _note_early(ctx: Context, sender: PeerId, kind: str, payload: bytes) -> None:
    """Each end opens a stream of its own, and a newcomer asks as soon as its own is open. Raises RemoteError."""
    _QUESTIONS[kind].decode(payload, sender=sender)
    ctx.talk.early.pop(sender, None)
    ctx.talk.early[sender] = kind, payload
    while len(ctx.talk.early) > EARLY:
        del ctx.talk.early[next(iter(ctx.talk.early))]
