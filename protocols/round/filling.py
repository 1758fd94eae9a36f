"""A peer whose chain does not reach down to the manifest asks its neighbours for what lies below (protocol.md 6).

It came by an invitation, or its disk was damaged. It needs none of that itself, but newcomers who know only the
manifest can learn nothing from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..chain_payloads import AskChain
from ..errors import RemoteError
from . import loading
from .walking import LONGEST, LONGEST_BYTES, Branch, walk

if TYPE_CHECKING:
    from ..chain_payloads import ChainReply
    from ..ids import PeerId
    from .context import Context

FILL_S = 30.0
"""Between two questions."""


def begin(ctx: Context, now: float) -> None:
    """Ask before long, where there is something to ask for."""
    if _lacks(ctx):
        ctx.set_timer("fill", now + FILL_S, sooner=True)


def beat(ctx: Context, now: float) -> None:
    """Ask one neighbour, another one each time."""
    trust = ctx.trust
    trust.filling, trust.gap, trust.gap_bytes = None, Branch(()), 0
    if not _lacks(ctx):
        return
    ctx.set_timer("fill", now + FILL_S)
    asked = [each for each in sorted(ctx.neighbours) if now - ctx.lied.get(each, -loading.LIED_S) >= loading.LIED_S]
    if asked and ctx.sync is None and not ctx.deciding and trust.zero is not None:
        trust.filling = asked[int(now / FILL_S) % len(asked)]
        ctx.push(trust.filling, "ask-chain", AskChain((trust.zero.seal,)).encode())


def on_chain(ctx: Context, sender: PeerId, reply: ChainReply, now: float) -> None:
    """What a neighbour shows on top of seal 0; it is kept where it leads to this peer's own chain."""
    trust, zero = ctx.trust, ctx.trust.zero
    assert zero is not None
    start = trust.gap.heads[-1] if trust.gap.heads else zero
    if reply.start != start.seal or not reply.links:
        trust.filling = None
        return
    try:
        trust.gap = trust.gap.then(walk(ctx.scope, start, reply.links, sender=sender))
        trust.gap_bytes += reply.size
        if len(trust.gap.heads) > LONGEST or trust.gap_bytes > LONGEST_BYTES:
            raise RemoteError(sender, f"shows a chain of more than {LONGEST} seals or {LONGEST_BYTES >> 20} MiB")
    except RemoteError:
        trust.filling, trust.gap = None, Branch(())
        loading.lied(ctx, sender, now)
        raise
    if reply.more:
        ctx.push(sender, "ask-chain", AskChain((trust.gap.heads[-1].seal,)).encode())
        return
    ctx.chain.fill(zero, trust.gap.heads)
    trust.filling, trust.gap = None, Branch(())


def _lacks(ctx: Context) -> bool:
    return ctx.chain.anchor.proposal is not None and ctx.trust.zero is not None
