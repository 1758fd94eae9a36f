"""Bytes for whoever missed them: a new neighbour, a member that was away or behind, and asking for one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..payloads import Pieces, Want, batches
from .effects import Push
from .exchange import pushes

if TYPE_CHECKING:
    from ..ids import PeerId
    from .context import Context

SERVINGS = 3
"""How often a member gets the results of one round for the asking."""


def deliver_to(ctx: Context, owner: PeerId) -> None:
    """Push one's parts, again if the owner's stream was not open, unless its results are here already."""
    cast_, sent, results = ctx.round.cast, ctx.sent, ctx.round.results
    if cast_ is None or sent is None or ctx.me not in cast_.rows or (results and owner not in results.missing()):
        return
    for frame in pushes(sent, cast_, ctx.me, owner):
        ctx.emit(Push(owner, "parts", frame.encode()))


def takers(ctx: Context) -> set[PeerId]:
    """Who gets result bytes: whoever committed, and the voters."""
    return {*(ctx.round.cast.commits if ctx.round.cast else ()), *ctx.head.table.voters}


def publish_to(ctx: Context, peer: PeerId) -> None:
    """Push one's results, if they are signed, to a peer; again if its stream was not open."""
    reduced, core = ctx.round.reduced, ctx.round.freeze
    if reduced is None or core is None or ctx.round.roots.get(ctx.me) != reduced.tree.root or peer not in takers(ctx):
        return
    for batch in batches(reduced.pieces()):
        ctx.emit(Push(peer, "results", Pieces(core, ctx.me, batch).encode()))


def ask_missing(ctx: Context, source: PeerId | None) -> None:
    """Ask the neighbour that brought the news for result bytes that exist and are not here.

    Those of a round that a quorum has sealed; one's own, signed before a restart that lost them.
    """
    current = ctx.round
    if source is None or current.results is None or current.results.complete:
        return
    lost = current.frozen_short is not None and ctx.me in current.roots
    sealed = any(ctx.head.table.is_quorum(votes) for votes in current.votes.values())
    if (lost or sealed) and ctx.once(f"want {source}"):
        want = Want(current.results.core, tuple(sorted(current.results.missing())))
        ctx.emit(Push(source, "want", [want.encode()]))


def on_want(ctx: Context, sender: PeerId, want: Want) -> None:
    """Serve a member that asks for one's parts again, or for result bytes of this round or the one before."""
    held = [each for each in (ctx.round.results, ctx.before and ctx.before.results) if each and each.core == want.core]
    parts = ctx.round.cast is not None and want.core == ctx.round.cast.core
    if not (held or parts) or not ctx.head.table.stands(sender) or ctx.served[sender, want.core] >= SERVINGS:
        return
    ctx.served[sender, want.core] += 1  # of known cores only, so that it stays small
    if parts:
        deliver_to(ctx, sender)
    for maker in want.makers if held else ():
        for batch in batches(held[0].pieces(maker)):
            ctx.emit(Push(sender, "results", Pieces(want.core, maker, batch).encode()))
