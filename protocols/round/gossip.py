"""Neighbours compare what they hold, so that a lost message costs seconds and not a view (protocol.md 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ids import HASH_BYTES, Hash, PeerId
from ..payloads import MAX_PRINTS, PRINT_BYTES, Digest, Have
from . import syncing

if TYPE_CHECKING:
    from .context import Context

QUIET_BEATS = 3
"""A digest that has not changed is sent again after so many beats: it may have been lost."""
STRANGE_S = 4.0
"""A neighbour that is still on an unknown head after this long is asked for its chain."""
COMING_S = 60.0
"""The same where that head is a proposal whose bytes are on their way here."""
CATCH_UP_S = 4.0
"""A neighbour that is behind is told the next round this often."""
ANSWER_S = 1.0
"""What is held here is told to one neighbour this often."""


def beat(ctx: Context, now: float) -> None:
    """Tell neighbours what this peer stands on, once it has stopped changing or for the third time."""
    ctx.set_timer("digest", now + ctx.setting.timing.digest)
    ctx.beats += 1
    mark = _mark(ctx)
    changed, ctx.last_mark = mark != ctx.last_mark, mark
    if changed and ctx.beats % QUIET_BEATS:
        return
    payload = Digest(ctx.head.seal, ctx.head.view, mark).encode()
    for peer in sorted(ctx.neighbours):
        if changed or ctx.told.get(peer) != mark or ctx.beats % QUIET_BEATS == 0:
            ctx.told[peer] = mark
            ctx.push(peer, "digest", payload)


def _mark(ctx: Context) -> bytes:
    """One value for head and set of statements, whatever the order in which they came."""
    found = int.from_bytes(ctx.head.seal, "big")
    for name in ctx.known:
        found ^= int.from_bytes(name, "big")
    return found.to_bytes(HASH_BYTES, "big")


def tell(ctx: Context, peer: PeerId, *, again: bool) -> None:
    """Tell a neighbour what is held here."""
    prints = b"".join(name[:PRINT_BYTES] for name in list(ctx.known)[:MAX_PRINTS])
    ctx.push(peer, "have", Have(ctx.head.seal, ctx.head.view, prints, again).encode())


def on_digest(ctx: Context, sender: PeerId, digest: Digest, now: float) -> None:
    """Where the same head has other statements, compare them; a different head leads further."""
    if digest.head != ctx.head.seal:
        _other_head(ctx, sender, digest.head, now)
        return
    ctx.strange.pop(sender, None)
    if digest.mark != _mark(ctx) and now - ctx.answered.get(sender, -ANSWER_S) >= ANSWER_S:
        ctx.answered[sender] = now
        tell(ctx, sender, again=True)


def on_have(ctx: Context, sender: PeerId, have: Have, now: float) -> None:
    """Push what the sender lacks."""
    if have.head != ctx.head.seal:
        _other_head(ctx, sender, have.head, now)
        if have.again:
            tell(ctx, sender, again=False)
        return
    held = have.held
    for name, statement in ctx.known.items():
        if name[:PRINT_BYTES] not in held:
            ctx.push(sender, "statement", statement.encode())
    if have.again:
        tell(ctx, sender, again=False)


def _other_head(ctx: Context, sender: PeerId, head: Hash, now: float) -> None:
    """A neighbour is behind, and is told what comes next; or it is on something unknown here, and is asked for it."""
    settled = next((each for each in ctx.history if each.parent == head), None)
    if settled is not None:
        told = ctx.caught_up.get(sender)
        if told is None or told[0] != head or now - told[1] >= CATCH_UP_S:
            ctx.caught_up[sender] = (head, now)
            for statement in settled.known:
                ctx.push(sender, "statement", statement.encode())
        return
    if ctx.chain.position(head) is not None:
        return  # far behind: it will ask
    before = ctx.strange.get(sender)
    if before is None or before[0] != head:
        ctx.strange[sender] = (head, now)
        return
    patience = COMING_S if head in ctx.round.proposals and not ctx.diverged else STRANGE_S
    if now - before[1] >= patience:
        syncing.ask(ctx, sender, head, now)
