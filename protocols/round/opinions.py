"""A newcomer asks several neighbours for the chain, compares what they show, and takes the best (protocol.md 6, 5.12).

Each is verified from the seal that is trusted: the manifest, or the one that an invitation names. A chain is shown by
jumps, so two true ones may have no seal in common: each neighbour is also asked how its chain goes on from the seals
that the other one has shown. So a true chain that is old loses against its own continuation.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from ..chain_payloads import MAX_LOCATOR, AskChain, read_link
from ..errors import RemoteError
from ..ids import digest
from . import histories, loading
from .effects import Notice
from .forks import outranks, unranked
from .trust import Opinion
from .walking import LONGEST, LONGEST_BYTES, Branch, open_seal, walk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..chain_payloads import ChainReply
    from ..ids import Hash, PeerId
    from .chain import Head
    from .context import Context

OPINIONS = 3
"""Neighbours whose chains are compared."""
SLOW_S = 10.0
"""How long the slower ones are waited for, and anybody's answer."""
LONG_S = 60.0
"""Nobody is waited for any longer, however long its chain."""
EARLY_S = 4.0
"""With an invitation a head is chosen no sooner than this after the first question, unless three have answered."""
LONELY_S = 20.0
"""When nobody has shown the seal of an invitation for this long a person is told; newer members may not have it."""
BEAT_S = 2.0
REST_S = 30.0
"""One that had nothing to show is asked again after this long; so are all where nothing ranks what they show."""
LIED_S = loading.LIED_S


def consider(ctx: Context, first: Iterable[PeerId], now: float) -> None:
    """Ask neighbours for their chains, ``first`` before the others, until three are asked or have answered."""
    trust = ctx.trust
    ahead = {*first, *ctx.talk.strange}

    def turn(peer: PeerId) -> tuple[float, bool, bytes]:
        # Nobody again before everybody else; then who is said to be ahead; then not the smallest ids, which are cheap.
        return trust.rested.get(peer, -inf), peer not in ahead, digest(ctx.me.encode(), peer.encode())

    for peer in sorted(ahead | ctx.neighbours, key=turn):
        if len(trust.opinions) >= OPINIONS:
            break
        if peer not in trust.opinions and not _rests(ctx, peer, now):
            trust.opinions[peer] = Opinion(peer, now, now)
            trust.begun = now if trust.begun is None else trust.begun
            _ask(ctx, trust.opinions[peer])
    ctx.set_timer("opinions", now + BEAT_S, sooner=True)


def awaits(ctx: Context, peer: PeerId) -> bool:
    """Whether this neighbour was asked and has not answered."""
    opinion = ctx.trust.opinions.get(peer)
    return opinion is not None and not opinion.shown


def on_chain(ctx: Context, sender: PeerId, reply: ChainReply, now: float) -> Opinion | None:
    """A neighbour shows its chain, or a part of it; the best of all, once it is clear. Raises RemoteError for a lie."""
    trust, opinion = ctx.trust, ctx.trust.opinions[sender]
    try:
        if trust.anchor is not None and trust.base is None and reply.anchor:
            shown = read_link(reply.anchor, ctx.scope, sender=sender)
            trust.base = open_seal(ctx.scope, trust.anchor[0], shown, sender=sender)
            tell_found(ctx)
        known = _shared(ctx, opinion, reply.start)
        if known is not None:
            start = known.heads[-1] if known.heads else root(ctx)
            assert start is not None
            opinion.branch = known.then(walk(ctx.scope, start, reply.links, sender=sender))
            opinion.size += reply.size
            _bounded(opinion)
    except RemoteError:
        trust.give_up(sender, now)
        loading.lied(ctx, sender, now)
        raise
    if known is None or not opinion.branch.heads:
        trust.give_up(sender, now)  # it knows no more than this peer does, or not the seal that is trusted here
    elif reply.more:
        opinion.asked = now
        ctx.push(sender, "ask-chain", AskChain((opinion.head.seal,)).encode())
    else:
        opinion.shown, opinion.about = True, None
    return decide(ctx, now)


def beat(ctx: Context, now: float) -> Opinion | None:
    """Go on: what was chosen may not have been served, who was asked may be silent, and others may have come."""
    trust = ctx.trust
    if not ctx.deciding:
        return None
    ctx.set_timer("opinions", now + BEAT_S)
    if ctx.sync is not None:
        return None
    if trust.chosen is not None:
        trust.unservable(trust.chosen, now)
        trust.chosen = None
    if trust.halted and now >= trust.again:
        trust.again = now + REST_S
        trust.start_over()
    for peer in [each for each in (*trust.opinions, *trust.rested) if each not in ctx.neighbours]:
        trust.opinions.pop(peer, None)
        trust.rested.pop(peer, None)
    if trust.anchor is not None or trust.halted or trust.opinions:
        consider(ctx, (), now)
    _tell_lonely(ctx, now)
    return decide(ctx, now)


def root(ctx: Context) -> Head | None:
    """The seal from which chains are verified; None while nobody has shown the one that is trusted."""
    return ctx.trust.base if ctx.trust.anchor is not None else ctx.chain.anchor


def decide(ctx: Context, now: float) -> Opinion | None:
    """The best chain of those shown; None while an answer is waited for, or where nothing ranks them."""
    trust = ctx.trust
    for peer in [each for each in trust.opinions if _late(ctx, trust.opinions[each], now)]:
        trust.give_up(peer, now)
    shown = [each for each in trust.opinions.values() if each.shown]
    if not shown or len(shown) < len(trust.opinions) or ctx.sync is not None:
        return None
    early = trust.begun is not None and now < trust.begun + EARLY_S
    if trust.anchor is not None and early and len(shown) < OPINIONS:
        return None
    question = _open_question(ctx, shown)
    if question is not None:
        _compare(ctx, *question, now)
        return None
    base = root(ctx)
    assert base is not None
    left = _best(_newest(shown), base)
    if len(left) > 1:
        if not trust.halted:
            trust.again = now + REST_S
        trust.halted = ctx.head.proposal is None
        histories.show_opinions(ctx, left, base)
        return None
    trust.chosen = left[0].head.seal
    return left[0]


def _ask(ctx: Context, opinion: Opinion) -> None:
    trust, base = ctx.trust, root(ctx)
    if base is not None:
        asked = AskChain((base.seal,))
    else:
        assert trust.anchor is not None
        asked = AskChain((trust.anchor[0],), show=True)
    ctx.push(opinion.peer, "ask-chain", asked.encode())


def _compare(ctx: Context, asked: Opinion, other: Opinion, now: float) -> None:
    """Ask one neighbour how its chain goes on from what another one has shown."""
    ctx.trust.compared.add((asked.peer, other.peer))
    asked.shown, asked.about, asked.begun, asked.asked = False, other.peer, now, now
    base = root(ctx)
    assert base is not None
    newest = [each.seal for each in reversed(other.branch.heads)][: MAX_LOCATOR - 1]
    ctx.push(asked.peer, "ask-chain", AskChain((*newest, base.seal)).encode())


def _shared(ctx: Context, opinion: Opinion, start: Hash | None) -> Branch | None:
    """What is verified up to ``start``, of this neighbour's chain or of the one it is compared with."""
    base = root(ctx)
    if base is None or start is None:
        return None
    if start == base.seal:
        return Branch(())
    other = ctx.trust.opinions.get(opinion.about) if opinion.about is not None else None
    for branch in (opinion.branch, other.branch if other is not None else Branch(())):
        if branch.shows(start):
            return branch.upto(start)
    return None


def _bounded(opinion: Opinion) -> None:
    if len(opinion.branch.heads) > LONGEST or opinion.size > LONGEST_BYTES:
        text = f"shows a chain of more than {LONGEST} seals or {LONGEST_BYTES >> 20} MiB above one that is known"
        raise RemoteError(opinion.peer, text)


def _rests(ctx: Context, peer: PeerId, now: float) -> bool:
    vain, lie = ctx.trust.rested.get(peer), ctx.lied.get(peer)
    return (vain is not None and now - vain < REST_S) or (lie is not None and now - lie < LIED_S)


def _late(ctx: Context, opinion: Opinion, now: float) -> bool:
    """Whether it is waited for no longer: in all where another one has answered, else for its next part."""
    others = any(each.shown for each in ctx.trust.opinions.values())
    slow = now - (opinion.begun if others else opinion.asked) >= SLOW_S
    return not opinion.shown and (slow or now - opinion.begun >= LONG_S)


def _open_question(ctx: Context, shown: list[Opinion]) -> tuple[Opinion, Opinion] | None:
    """Two whose shown seals do not tell how they belong together, and who is to be asked about the other."""
    ordered = sorted(shown, key=lambda each: (each.head.round, each.head.view), reverse=True)
    for place, high in enumerate(ordered):
        for low in ordered[place + 1 :]:
            if high.branch.shows(low.head.seal) or low.branch.shows(high.head.seal):
                continue
            for one, other in ((high, low), (low, high)):
                if (one.peer, other.peer) not in ctx.trust.compared:
                    return one, other
    return None


def _newest(shown: list[Opinion]) -> list[Opinion]:
    """Without those that another one's chain goes on from; of equal ones the first."""
    out: list[Opinion] = []
    for each in sorted(shown, key=lambda opinion: opinion.head.round, reverse=True):
        if not any(other.branch.shows(each.head.seal) for other in out):
            out.append(each)
    return out


def _best(branches: list[Opinion], base: Head) -> list[Opinion]:
    """The one that wins against every other one; more than one where no rule ranks them."""
    left = [
        one
        for one in branches
        if not any(
            unranked(one.branch, other.branch, base) is None and outranks(other.branch, one.branch, base)
            for other in branches
            if other is not one
        )
    ]
    return left or branches


def tell_found(ctx: Context) -> None:
    """Somebody shows the seal that is trusted, or goes on from it: what was told before is over."""
    if ctx.trust.lonely:
        ctx.trust.lonely = False
        ctx.emit(Notice("anchor", "", ""))


def _tell_lonely(ctx: Context, now: float) -> None:
    """Say, once, that nobody can show the seal that is trusted, or goes on from it."""
    trust = ctx.trust
    if trust.anchor is None or trust.lonely or trust.opinions or not trust.rested:
        return
    if trust.begun is None or now - trust.begun < LONELY_S:
        return
    if trust.base is not None and not trust.by_hand:
        return  # it is found: what is missing is a state, which the transfer tells
    seal, number = trust.anchor
    trust.lonely = True
    if trust.base is not None:
        text = f"nobody here goes on from seal {seal.hex()[:12]} of round {number}, which you chose to follow"
        ctx.emit(Notice("anchor", text, "it is tried on; or join a peer that is on that history"))
        return
    text = f"nobody here can show seal {seal.hex()[:12]} of round {number}, which is trusted: nothing else is believed"
    remedy = "ask for a newer invitation, or join by address, which trusts the manifest's founders; others are asked"
    ctx.emit(Notice("anchor", text, remedy))
