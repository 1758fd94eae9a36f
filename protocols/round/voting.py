"""Proposal, votes, adoption (protocol.md 5.9, 5.11)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ..errors import RemoteError
from ..messages import Seal, Vote
from .chain import Head, seal_hash
from .context import Settled
from .effects import Record, Sealed, Votes
from .sealing import build_seal, differences, next_table

if TYPE_CHECKING:
    from ..ids import Hash, PeerId
    from ..statements import Statement
    from .context import Context
    from .reduction import Results


def try_propose(ctx: Context) -> None:
    """Compute the seal this peer would sign; the coordinator proposes it."""
    current = ctx.round
    assert current.cast and current.frozen and current.applied
    current.table = next_table(ctx.head, current.cast, ctx.setting.probation)
    outcome = (current.table.root, current.applied.root)
    current.seal = build_seal(ctx.head, current.cast, current.frozen, current.roots, outcome)
    if ctx.coordinates and ctx.once("seal"):
        ctx.sign(current.seal)


def on_seal(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """A proposal: vote for it if every field is what this peer computed itself."""
    body, own = cast("Seal", statement.body), ctx.round.seal
    if body.view <= ctx.head.view:
        return True
    if own is None or body.view != ctx.round.view:
        return False
    if statement.peer != ctx.coordinator:
        raise RemoteError(statement.peer, f"proposed a seal for view {body.view} out of turn")
    name = seal_hash(ctx.scope, body)
    agrees = name == seal_hash(ctx.scope, own)  # hashes, for -0.0 equals 0.0 but encodes differently
    if not ctx.first_in_slot(statement) and not agrees:
        return True
    ctx.round.proposals[name] = statement
    ctx.accept(statement, source)
    if not agrees:
        ctx.trouble(statement.peer, f"proposes a seal that differs in {', '.join(differences(body, own))}")
    elif ctx.head.table.stands(ctx.me) and ctx.once("vote"):
        ctx.sign(Vote(body.view, name))
    return True


def on_vote(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """A vote for a seal of the view in flight, or a late one for the head."""
    body = cast("Vote", statement.body)
    if body.view <= ctx.head.view:
        _late_vote(ctx, statement, body, source)
        return True
    if body.view != ctx.round.view:
        return False
    if not ctx.head.table.stands(statement.peer) or not ctx.first_in_slot(statement):
        return True
    ctx.round.votes.setdefault(body.seal, {})[statement.peer] = statement
    ctx.accept(statement, source)
    return True


def _late_vote(ctx: Context, statement: Statement, body: Vote, source: PeerId | None) -> None:
    head, table = ctx.head, ctx.head.parent_table
    known = any(each.peer == statement.peer for each in head.votes)
    if body != Vote(head.view, head.seal) or table is None or known or not table.stands(statement.peer):
        return
    votes = sorted((*head.votes, statement), key=lambda each: each.peer)
    ctx.head = replace(head, votes=tuple(votes))
    ctx.accept(statement, source)
    ctx.emit(Votes(ctx.head))


def certified(ctx: Context) -> Hash | None:
    """The proposal of the view in flight that a quorum has voted for, if any."""
    for name, votes in ctx.round.votes.items():
        if name in ctx.round.proposals and ctx.head.table.is_quorum(votes):
            return name
    return None


def try_adopt(ctx: Context, now: float) -> bool:
    """Move to a certified seal whose state this peer has computed; True if it moved."""
    name, own = certified(ctx), ctx.round.seal
    if name is None or own is None:
        return False
    if seal_hash(ctx.scope, own) != name:
        if ctx.once("diverged"):
            ctx.trouble(ctx.me, "computed another state than more than 2/3 of the weight sealed: it must resync")
        return False
    _adopt(ctx, name, now)
    return True


def _adopt(ctx: Context, name: Hash, now: float) -> None:
    current = ctx.round
    assert current.applied and current.table and current.left is not None
    votes = current.votes[name]
    record = _record(ctx, name, now)
    ctx.past.append(ctx.head.seal)
    ctx.before = Settled(tuple(current.known.values()), cast("Results", current.results))
    ctx.served.clear()
    parent_table = ctx.head.table
    proof = tuple(votes[each] for each in sorted(votes))
    ctx.head = Head(name, current.view, current.number, current.table, current.proposals[name], proof, parent_table)
    ctx.params, ctx.momentum, ctx.drift = current.applied.params, current.applied.momentum, current.left
    ctx.emit(Sealed(ctx.head, ctx.params, ctx.momentum, ctx.drift, record))


def _record(ctx: Context, name: Hash, now: float) -> Record:
    current, cast_ = ctx.round, ctx.round.cast
    assert cast_ and current.frozen and current.applied
    ends = [*(at for _, at in current.marks[1:]), now]
    seconds = {phase: end - at for (phase, at), end in zip(current.marks, ends, strict=True)}
    mine = dict(zip(cast_.rows, current.frozen.weights, strict=True))
    return Record(
        round=current.number,
        view=current.view,
        seal=name,
        coordinator=cast_.coordinator,
        contributors=cast_.rows,
        weights=mine,
        tokens={each: sum(leg.tokens for leg in cast_.commit(each).legs) for each in cast_.commits},
        owners=cast_.owners,
        state=current.applied.root,
        payload=(sum(ctx.part_sizes), ctx.setting.values) if ctx.me in cast_.commits else (0, 0),
        seconds=seconds,
        verdict=_verdict(ctx.me, mine, cast_.commits),
    )


def _verdict(me: PeerId, weights: dict[PeerId, float], commits: object) -> str:
    if weights.get(me, 0.0) > 0.0:
        return "accepted"
    return "rejected" if me in weights else "late"
