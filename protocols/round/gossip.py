"""Neighbours compare what they hold, so that a lost message costs seconds and not a view (protocol.md 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..payloads import Digest, Have
from . import gathering, loading, syncing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..ids import Hash, PeerId
    from ..statements import Statement
    from .context import Context, Settled

QUIET_BEATS = 3
"""A digest that has not changed is sent again after so many beats: it may have been lost."""
CATCH_UP_S = 4.0
"""A neighbour that is behind is told the next round this often."""
ANSWER_S = 1.0
"""What is held here is told to one neighbour this often."""


def beat(ctx: Context, now: float) -> None:
    """Tell neighbours what this peer stands on, once it has stopped changing or for the third time.

    Whoever said the same of itself need not be told: if that changes it says so.
    """
    ctx.set_timer("digest", now + ctx.setting.timing.digest)
    ctx.talk.beats += 1
    ctx.talk.keep(ctx.neighbours)
    mark = ctx.known.mark
    changed, ctx.talk.mark = mark != ctx.talk.mark, mark
    if ctx.joining.newcomer and ctx.neighbours and not ahead(ctx):
        near = sorted(ctx.neighbours)
        tell(ctx, near[ctx.talk.beats % len(near)], now, again=True)  # whoever is on the same head may be silent
    if changed and ctx.talk.beats % QUIET_BEATS:
        return
    for peer in sorted(ctx.neighbours):
        if ctx.talk.agreed.get(peer) != mark and (ctx.talk.told.get(peer) != mark or ctx.talk.beats % QUIET_BEATS == 0):
            greet(ctx, peer)


def greet(ctx: Context, peer: PeerId) -> None:
    """Say what this peer stands on."""
    ctx.talk.told[peer] = mark = ctx.known.mark
    ctx.push(peer, "digest", Digest(ctx.head.seal, mark).encode())


def tell(ctx: Context, peer: PeerId, now: float, *, again: bool) -> None:
    """Tell a neighbour what is held here."""
    ctx.talk.said[peer] = now
    ctx.push(peer, "have", Have(ctx.head.seal, ctx.known.prints, again).encode())


def press_on(ctx: Context, now: float) -> None:
    """This peer got a round further: neighbours that are ahead are asked for the next one at once.

    Where nobody is known to be ahead a newcomer is level.
    """
    loading.forget_old(ctx)
    ctx.round.behind = bool(ahead(ctx))
    if not ctx.round.behind:
        gathering.level(ctx, now)
    for peer in sorted(ctx.talk.strange):
        tell(ctx, peer, now, again=False)


def ahead(ctx: Context) -> list[PeerId]:
    """Neighbours on heads that this peer's chain does not lead to yet."""
    heads = ctx.talk.heads
    return sorted(each for each in ctx.neighbours if each in heads and ctx.chain.position(heads[each]) is None)


def on_digest(ctx: Context, sender: PeerId, digest: Digest, now: float) -> None:
    """Where the same head has other statements, or the sender is behind, compare them; other heads lead further."""
    ctx.talk.heads[sender] = digest.head
    if digest.head != ctx.head.seal and _next_round(ctx, digest.head) is None:
        _other_head(ctx, sender, digest.head, now)
        return
    if digest.head == ctx.head.seal:
        gathering.level(ctx, now)
    ctx.talk.strange.pop(sender, None)
    if digest.mark == ctx.known.mark:
        ctx.talk.agreed[sender] = digest.mark
    elif now - ctx.talk.answered.get(sender, -ANSWER_S) >= ANSWER_S:
        ctx.talk.answered[sender] = now
        tell(ctx, sender, now, again=True)


def on_have(ctx: Context, sender: PeerId, have: Have, now: float) -> None:
    """Push what the sender lacks: on top of the same head, or the next round where it is behind."""
    ctx.talk.heads[sender] = have.head
    settled = _next_round(ctx, have.head)
    if have.head == ctx.head.seal:
        gathering.level(ctx, now)
        ctx.talk.answered[sender] = now
        _give(ctx, sender, ctx.known.lacking(have.held))
    elif settled is None:
        _other_head(ctx, sender, have.head, now)
    else:
        told = ctx.talk.caught_up.get(sender)
        if told is None or told[0] != have.head or now - told[1] >= CATCH_UP_S:
            ctx.talk.caught_up[sender] = (have.head, now)
            _give(ctx, sender, settled.known.lacking(have.held))
    if have.again and now - ctx.talk.said.get(sender, -ANSWER_S) >= ANSWER_S:
        tell(ctx, sender, now, again=False)


def _give(ctx: Context, peer: PeerId, statements: Iterable[Statement]) -> None:
    for statement in statements:
        ctx.push(peer, "statement", statement.encode())


def _next_round(ctx: Context, head: Hash) -> Settled | None:
    """What is kept of the round that was made on top of a head."""
    return next((each for each in ctx.history if each.parent == head), None)


def _other_head(ctx: Context, sender: PeerId, head: Hash, now: float) -> None:
    """A neighbour is far behind, or on something unknown here, and is asked for it."""
    if ctx.chain.position(head) is not None:
        return  # far behind: it will ask
    first, since = ctx.talk.strange.setdefault(sender, (head, now))
    if ctx.chain.position(first) is not None:
        ctx.talk.strange[sender] = (head, now)  # it is only a little ahead; on another chain, both may go on for ever
    elif now - since >= syncing.patience(ctx, head):
        ctx.talk.strange[sender] = (head, now)
        syncing.ask(ctx, sender, head, now)
