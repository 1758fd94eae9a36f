"""Histories of the run that no rule ranks: noticed, shown to a person, and left or followed on their word (5.12)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..chain_payloads import Link
from ..errors import LocalError
from .effects import Followed, Histories, History
from .forks import part, unranked
from .trust import Rival

if TYPE_CHECKING:
    from ..ids import Hash, PeerId
    from .chain import Head
    from .context import Context
    from .loading import Sync
    from .trust import Opinion

RIVALS = 2
"""Branches that are held beside one's own chain."""
RIVAL_S = 1800.0
"""A rival that nobody has shown for this long is shown no more."""
REFUSED = 64


def show_opinions(ctx: Context, several: list[Opinion], base: Head) -> None:
    """A newcomer's: what each neighbour shows."""
    found = []
    for each in several:
        ctx.trust.show(each.peer, each.head)
        others = [part(each.branch.heads, other.branch.heads, base)[0] for other in several if other is not each]
        found.append(_history(each.head, max(others, key=lambda fork: fork.round), own=False))
    _show(ctx, tuple(found))


def note_rival(ctx: Context, peer: PeerId, sync: Sync, now: float) -> None:
    """A member's: the branch of ``sync``, which it does not follow. Shown where its own chain has no better claim.

    Two chains that are shown by jumps may be one; they are two where one round has different seals.
    """
    start, branch = sync.start, sync.branch
    assert start is not None
    ours = ctx.chain.branch(start.seal)
    fork = unranked(ours, branch, start)
    if fork is None:
        return
    theirs = part(ours.heads, branch.heads, start)[2]
    differ = any((known := ctx.chain.at(each.round)) is not None and known != each.seal for each in theirs)
    rivals, first = ctx.trust.rivals, theirs[0].seal
    if not differ or first in ctx.trust.refused or (first not in rivals and len(rivals) >= RIVALS):
        return
    rivals[first] = Rival(peer, fork, branch, now)
    ctx.trust.show(peer, branch.heads[-1])
    ctx.set_timer("rivals", now + RIVAL_S)
    show_rivals(ctx, now)


def show_rivals(ctx: Context, now: float) -> None:
    """Show one's own chain beside the branches that have as good a claim; none: that is over."""
    rivals = ctx.trust.rivals
    for first in [first for first, each in rivals.items() if now - each.shown > RIVAL_S]:
        del rivals[first]
    others = [_history(each.branch.heads[-1], each.fork, own=False) for each in rivals.values()]
    forks = [each.fork for each in rivals.values()]
    own = [_history(ctx.head, min(forks, key=lambda fork: fork.round), own=True)] if forks else []
    _show(ctx, (*own, *others))


def clear(ctx: Context) -> None:
    """There is one history again."""
    ctx.trust.shown.clear()
    _show(ctx, ())


def follow(ctx: Context, seal: Hash) -> PeerId | None:
    """Take the history that has this seal, whatever is final here; returns who showed it, None: it is one's own.

    Until it is reached a person may choose again.
    Raises LocalError where it is none of the newest seals of histories that were shown.
    """
    trust = ctx.trust
    if any(each.own for each in trust.histories) and ctx.chain.position(seal) is not None:
        trust.refused.update(list(trust.rivals)[: REFUSED - len(trust.refused)])
        trust.reached()
        clear(ctx)
        ctx.emit(Followed(seal, b""))
        return None
    peer, head = trust.shown.get(seal, (None, None))
    if head is None:
        raise LocalError(f"seal {seal.hex()} is none of the histories shown", remedy="`murmur status` shows them")
    trust.follow(replace(head, votes=(), parent_table=None))  # it is trusted as such, not for its votes
    assert head.proposal is not None
    ctx.emit(Followed(head.seal, Link(head.proposal, (), head.table).encode()))
    return peer


def _show(ctx: Context, found: tuple[History, ...]) -> None:
    if found != ctx.trust.histories:
        ctx.trust.histories = found
        ctx.emit(Histories(found))


def _history(head: Head, fork: Head, *, own: bool) -> History:
    whole = fork.table.lasting(fork.table.members, fork.round)
    weight = fork.table.lasting(head.signers, fork.round) / whole if whole else 0.0
    return History(head.seal, head.round, head.view, weight, fork.seal, fork.round, own)
