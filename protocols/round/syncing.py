"""A peer that fell behind or was cut off fetches the chain, decides, and fetches the state (protocol.md 5.12, 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from ..chain_payloads import MAX_LOCATOR, AskChain, ChainReply
from ..drift import settle
from ..errors import LocalError, RemoteError
from . import donating, filling, histories, loading, opinions, settling
from .effects import Followed, Sealed
from .exchange import is_sound
from .forks import prefer
from .links import Chain
from .loading import BEAT_S, LIED_S, Sync
from .records import synced_record
from .roster import SHRINK_AFTER
from .walking import LONGEST, LONGEST_BYTES, Branch, walk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..ids import Hash, PeerId
    from ..messages import Seal
    from ..state_payloads import StateChunk
    from .chain import Head
    from .context import Context
    from .effects import Vector
    from .trust import Opinion

STRANGE_S = 4.0
"""A neighbour that was on unknown heads for this long is asked for its chain, and followed where that only goes on
from a head that has been this peer's for as long."""
CATCHING_S = 15.0
"""The same where a round is under way here that would lead to it."""
COMING_S = 60.0
"""The same where that head is a proposal whose bytes are on their way here."""
SILENT_S = 120.0
"""Who does not answer is not asked again for this long, where there are others."""
AGAIN_S = 30.0
"""A head that lost the comparison is looked at again after this long."""
REPLY_S = 2.0
"""One peer gets a part of a chain this often in the long run."""
REPLIES = 8
"""Parts that it gets at once: a chain may take several."""


def patience(ctx: Context, head: Hash) -> float:
    """How long a neighbour may be on an unknown ``head`` before its chain is asked for, seconds.

    Nobody serves a round's bytes to a stranger, so it need not wait for them.
    """
    if ctx.diverged or ctx.me not in ctx.head.table.members:
        return STRANGE_S
    if head in ctx.round.proposals:
        return COMING_S
    return STRANGE_S if ctx.round.cast is None else CATCHING_S


def ask(ctx: Context, peer: PeerId, head: Hash, now: float) -> None:
    """Ask a neighbour on an unknown head for its chain, one at a time; a newcomer asks several."""
    lost = ctx.lost_heads.get(head)
    lied = ctx.lied.get(peer)
    if ctx.sync is not None or (lost is not None and now - lost < AGAIN_S):
        return
    if ctx.deciding:
        opinions.consider(ctx, (peer,), now)
        return
    silent = {each for each, at in ctx.trust.rested.items() if now - at < SILENT_S}
    if (lied is not None and now - lied < LIED_S) or (peer in silent and ctx.talk.strange.keys() - silent):
        return
    ctx.sync = Sync(peer, now)
    ctx.set_timer("sync", now + BEAT_S)
    ctx.push(peer, "ask-chain", AskChain(ctx.chain.locator()).encode())


def on_ask_chain(ctx: Context, sender: PeerId, asked: AskChain, now: float) -> None:
    """Show the way from what the sender knows to the head, and keep that state for a while."""
    due = max(now, ctx.talk.replied.get(sender, now))
    if due - now > (REPLIES - 1) * REPLY_S:
        return
    ctx.talk.replied[sender] = due + REPLY_S
    locator, shown = asked.locator, b""
    if asked.show:
        locator = tuple(each for each in locator if ctx.chain.shown(each))[:1]
        shown = (ctx.chain.shown(locator[0]) if locator else None) or b""
    start, links = ctx.chain.since(locator)
    if links:
        donating.offer(ctx, sender, start, next(iter(asked.locator), None), now)
    ctx.push(sender, "chain", ChainReply.fitting(start, links, shown).encode())


def awaits_chain(ctx: Context, sender: PeerId) -> bool:
    """Whether this peer has asked the sender for its chain."""
    return _comes_from(ctx, sender) or opinions.awaits(ctx, sender) or ctx.trust.filling == sender


def _comes_from(ctx: Context, sender: PeerId) -> bool:
    return ctx.sync is not None and ctx.sync.peer == sender and ctx.sync.download is None


def on_opinions(ctx: Context, now: float) -> None:
    """Time has passed for a newcomer that compares chains."""
    _take(ctx, opinions.beat(ctx, now), now)


def _take(ctx: Context, opinion: Opinion | None, now: float) -> None:
    """Load the state of the best chain that a newcomer was shown."""
    base = opinions.root(ctx)
    if opinion is None or base is None:
        return
    sync = ctx.sync = Sync(opinion.peer, now, base, opinion.branch)
    ctx.set_timer("sync", now + BEAT_S)
    if ctx.trust.anchor is None and _catches_up(ctx, sync, now):
        ctx.sync = ctx.trust.chosen = None
        ctx.trust.start_over()
    elif ctx.trust.anchor is None and (not _wins(ctx, sync) or _hasty(ctx, sync, now)):
        _pass_over(ctx, sync, now)
        ctx.trust.chosen = None
        ctx.trust.start_over()
    else:
        histories.clear(ctx)
        _load(ctx, sync, now)


def on_chain(ctx: Context, sender: PeerId, reply: ChainReply, now: float) -> None:
    """Verify a chain, compare it with one's own, and load its state if it wins."""
    sync = ctx.sync
    if opinions.awaits(ctx, sender):
        _take(ctx, opinions.on_chain(ctx, sender, reply, now), now)
        return
    if sync is None or not _comes_from(ctx, sender):
        if ctx.trust.filling == sender:
            filling.on_chain(ctx, sender, reply, now)
        return
    base = sync.branch.heads[-1] if sync.branch.heads else None
    start = base if base is not None and reply.start == base.seal else None
    if base is None and reply.start is not None:
        start = sync.start = ctx.chain.find(reply.start)
    if start is None or not reply.links:
        ctx.sync = None  # it knows no seal that is kept here: another neighbour may
        return
    ctx.sync = None  # a chain that does not hold ends the transfer
    try:
        sync.branch = sync.branch.then(walk(ctx.scope, start, reply.links, sender=sender))
        sync.size += reply.size
        if len(sync.branch.heads) > LONGEST or sync.size > LONGEST_BYTES:
            text = f"shows a chain of more than {LONGEST} seals or {LONGEST_BYTES >> 20} MiB above one that is known"
            raise RemoteError(sender, text)
    except RemoteError:
        loading.lied(ctx, sender, now)
        raise
    sync.progress, ctx.sync = now, sync
    if reply.more:
        locator = (sync.branch.heads[-1].seal, *ctx.chain.locator())[:MAX_LOCATOR]
        ctx.push(sender, "ask-chain", AskChain(locator).encode())
    elif _catches_up(ctx, sync, now):
        ctx.sync = None
    elif _wins(ctx, sync) and not _hasty(ctx, sync, now):
        _load(ctx, sync, now)
    else:
        histories.note_rival(ctx, sender, sync, now)
        _pass_over(ctx, sync, now)


def _pass_over(ctx: Context, sync: Sync, now: float) -> None:
    """Do not look at this head again for a while."""
    ctx.pass_over(sync.branch.heads[-1].seal, now)
    ctx.sync = None


def _catches_up(ctx: Context, sync: Sync, now: float) -> bool:
    """Whether the branch is this chain's own, and this peer on its way along it."""
    assert sync.start is not None
    began = ctx.round.marks[0][1]
    newest = sync.branch.heads[-1]
    if sync.start.seal != ctx.head.seal:
        return False
    return now - began < patience(ctx, newest.seal) or loading.replays(ctx, sync.branch, now)


def _wins(ctx: Context, sync: Sync) -> bool:
    """Fork choice. A branch that goes on without members is not followed on sight while one's own quorum works."""
    assert sync.start is not None
    ours = ctx.chain.branch(sync.start.seal)
    if not prefer(ours, sync.branch, sync.start):
        return False
    alone = not ours.heads and ctx.votes_here
    return not (alone and sync.branch.shrinks and ctx.round.barren < SHRINK_AFTER)


def _hasty(ctx: Context, sync: Sync, now: float) -> bool:
    """Whether a peer that does not vote is shown a chain without members while its own may still go on.

    One liar can make such a chain at any time (5.10), and who does not vote sees no views fail: it looks at the clock.
    """
    idle = now - ctx.round.marks[0][1]
    return not ctx.votes_here and sync.branch.shrinks and idle < ctx.setting.timing.idle


def _load(ctx: Context, sync: Sync, now: float) -> None:
    heads, here = [each.seal for each in sync.branch.heads], ctx.head.seal
    assert sync.start is not None
    fork = ctx.trust.anchor is None and sync.start.seal != here and here not in heads
    target = sync.target = loading.choose(ctx, sync.branch, fork=fork)
    if _state_of(target) == ctx.state_root:
        _adopt(ctx, sync, (ctx.params, ctx.momentum))
    else:
        loading.load(ctx, target, now)


def on_state(ctx: Context, sender: PeerId, chunk: StateChunk, now: float) -> None:
    """A chunk of the state; with the last one this peer moves to its head."""
    if loading.on_chunk(ctx, sender, chunk, now):
        _arrived(ctx, now)


def on_resumed(ctx: Context, chunks: Iterable[StateChunk], now: float) -> None:
    """Chunks that came before a restart; they may be all of them."""
    if loading.resumed(ctx, chunks, now):
        _arrived(ctx, now)


def _arrived(ctx: Context, now: float) -> None:
    sync = ctx.sync
    assert sync is not None and sync.download is not None
    loading.done(ctx, sync, now)
    _adopt(ctx, sync, sync.download.state())


def _state_of(head: Head) -> Hash:
    assert head.proposal is not None
    return cast("Seal", head.proposal.body).state


def _adopt(ctx: Context, sync: Sync, state: tuple[Vector, Vector]) -> None:
    """Move to the branch's last seal; what this peer trained and that chain has not taken stays drift."""
    assert sync.start is not None
    target, start = sync.target or sync.branch.heads[-1], sync.start
    if ctx.trust.anchor is not None:
        _adopt_anchored(ctx, start, sync.branch.upto(target.seal), state)
        return
    ours = ctx.chain.branch(start.seal)
    if not _wins(ctx, sync):  # this chain has gone on meanwhile
        ctx.sync = None
        return
    try:
        ctx.chain.switch(start.seal, sync.branch.upto(target.seal))
    except LocalError as error:
        ctx.trouble(sync.peer, str(error))
        ctx.sync = None
        return
    _mend_drift(ctx, target, start if ours.heads else None)
    if not ours.heads and _sealed(target, ctx.me) <= _sealed(ctx.head, ctx.me):
        void = sum(each.body is not None and each.body.void for each in sync.branch.upto(target.seal).heads)
        settling.jump(ctx, target.round - start.round - void)
    if ours.heads:
        ctx.history.clear()
    _move(ctx, target, state, final=ctx.chain.final is not None and ctx.chain.final.seal == target.seal)


def _adopt_anchored(ctx: Context, base: Head, branch: Branch, state: tuple[Vector, Vector]) -> None:
    """Move to a chain that begins with a trusted seal: what was here before is no part of it, final or not."""
    ctx.chain = Chain(base, branch.heads)
    if branch.final is not None and branch.firmly_final(branch.heads, base):
        ctx.chain.mark_final(branch.final, branch.proof)
    ctx.history.clear()
    ctx.final = None
    _move(ctx, branch.heads[-1], state, final=True)


def _move(ctx: Context, target: Head, state: tuple[Vector, Vector], *, final: bool) -> None:
    """Stand on ``target``; with ``final`` no fork leads back to before it."""
    ctx.parents.append(ctx.head.seal)
    ctx.params, ctx.momentum = state
    ctx.state_root = _state_of(target)
    ctx.move_head(target)
    if final:
        ctx.root(target.seal, final=True)
    opinions.tell_found(ctx)
    chosen = ctx.trust.anchor if ctx.trust.by_hand else None
    ctx.trust.reached()
    histories.clear(ctx)
    filling.begin(ctx, now=ctx.round.marks[-1][1])
    ctx.sync, ctx.diverged = None, False
    ctx.moved = True
    ctx.emit(Sealed(target, ctx.params, ctx.momentum, ctx.drift, ctx.ages, synced_record(ctx, target)))
    if chosen is not None:
        ctx.emit(Followed(chosen[0], b""))


def _mend_drift(ctx: Context, target: Head, fork: Head | None) -> None:
    """Drift after a jump: minus what the new chain took of it, plus what a lost branch had learned.

    A rise of one's own ``sealed`` count says that a commit was taken. Of a lost branch, lost head − fork comes back as
    drift where that base is kept and the new chain has not sealed this peer's part in it.
    """
    if _state_of(target) == ctx.state_root:
        return
    mine, theirs = (_sealed(head, ctx.me) for head in (ctx.head, target))
    if fork is None and theirs > mine:
        encoded = ctx.round.encoded
        whole = [True] * len(ctx.part_sizes)
        data = encoded.data if encoded else None
        ctx.drift = settle(ctx.drift, data, whole, ctx.setting.update_codec, ctx.setting.part)
        ctx.legs = ctx.legs[ctx.round.carried :] if encoded else []
        ctx.ages = (0,) * len(ctx.ages)
    elif fork is not None and theirs < mine and fork.seal in ctx.rooted:
        mended = ctx.drift + (ctx.params - ctx.rooted[fork.seal])
        if is_sound(mended) and np.isfinite(mended).all():
            ctx.drift, ctx.ages = mended, (0,) * len(ctx.ages)


def _sealed(head: Head, peer: PeerId) -> int:
    return head.table.members[peer].sealed if peer in head.table.members else 0
