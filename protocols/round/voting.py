"""Proposal, votes, adoption (protocol.md 5.9, 5.11)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ..errors import RemoteError
from ..messages import Seal, Vote
from .chain import Head, certifies, seal_hash
from .effects import Sealed, Votes
from .records import record_of
from .sealing import differences, outcome
from .settling import settle_round
from .views import allow

if TYPE_CHECKING:
    from ..ids import Hash, PeerId
    from ..statements import Statement
    from ..table import Table
    from .context import Context
    from .task import Task

PROPOSALS_KEPT = 8
"""Of one peer's proposals on top of one parent those of the highest views are kept."""
OUTCOMES_KEPT = 16
"""Views for which the outcome of one task is kept."""


def sealed_by(ctx: Context, task: Task, view: int) -> tuple[Seal, Table] | None:
    """What this peer computes for a proposal of ``view``; None while the outcome is not known."""
    if task.applied is None:
        return None
    if view not in task.seals:
        if len(task.seals) >= OUTCOMES_KEPT:
            task.seals.clear()
        probation = ctx.setting.probation
        key = ("outcome", ctx.head.seal, task.cast.core, task.told, view)
        task.seals[view] = ctx.scope.shared(key, lambda: outcome(ctx.head, task, view, ctx.scope, probation))
    return task.seals[view]


def step(ctx: Context, now: float) -> None:
    """Propose, and vote for the proposal of the view in flight if every field is what this peer computed."""
    cast_, task = ctx.round.cast, ctx.round.task
    if cast_ is None or task is None or task.applied is None or cast_.view != ctx.view or not ctx.votes_here:
        return
    if cast_.coordinator == ctx.me and ctx.once(f"seal {ctx.view}"):
        own = sealed_by(ctx, task, ctx.view)
        assert own is not None
        ctx.sign(own[0])
    voted = ctx.me in ctx.votes.in_view(ctx.view)
    if voted or ctx.round.ready != ctx.view or ctx.signed_view > ctx.view or ctx.view in ctx.round.unfair:
        return
    for name, proposal in ctx.round.proposals.items():
        body = cast("Seal", proposal.body)
        if body.view != ctx.view or proposal.peer != cast_.coordinator:
            continue
        if ctx.once(f"proposed {ctx.view}"):
            allow(ctx, "seal", now)
        if _agrees(ctx, task, name, body):
            if ctx.once(f"vote {ctx.view}"):
                ctx.sign(Vote(body.view, name))
            return


def _agrees(ctx: Context, task: Task, name: Hash, body: Seal) -> bool:
    own = sealed_by(ctx, task, body.view)
    if own is None:
        return False
    if seal_hash(ctx.scope, own[0]) == name:  # hashes, for -0.0 equals 0.0 but encodes differently
        return True
    if ctx.once(f"differs {name.hex()}"):
        text = f"proposes a seal that differs in {', '.join(differences(body, own[0]))}"
        ctx.trouble(ctx.turn(body.view), text)
    return False


def on_seal(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """A proposal on top of the head."""
    body = cast("Seal", statement.body)
    if body.view <= ctx.head.view:
        return True
    if body.parent != ctx.head.seal:
        return body.parent in ctx.parents
    if body.lost:  # whose turn that is depends on who was left: the roster says
        task = ctx.round.tasks.get(body.roster)
        caller = task.called.get(body.view) if task else None
        if caller is None:
            return False
        if statement.peer != caller:
            raise RemoteError(statement.peer, f"proposed to go on without members in view {body.view} out of turn")
    elif statement.peer != ctx.turn(body.view):
        raise RemoteError(statement.peer, f"proposed a seal for view {body.view} out of turn")
    if not _has_room(ctx, statement.peer, body.view) or not ctx.first_in_slot(statement):
        return True
    ctx.round.proposals[seal_hash(ctx.scope, body)] = statement
    ctx.round.tally = True
    ctx.accept(statement, source)
    return True


def _has_room(ctx: Context, peer: PeerId, view: int) -> bool:
    """Make room for one more proposal of this peer. Its turns far ahead must not push out what others propose."""
    proposals = ctx.round.proposals
    own = [name for name, each in proposals.items() if each.peer == peer]
    if len(own) < PROPOSALS_KEPT:
        return True
    lowest = min(own, key=lambda name: cast("Seal", proposals[name].body).view)
    old = proposals[lowest]
    if cast("Seal", old.body).view >= view:
        return False
    del proposals[lowest], ctx.round.slots[peer, old.body.kind, old.body.slot()]
    ctx.known.drop(old.hash)
    return True


def on_vote(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """A vote for a seal that may come, or a late one for the head."""
    body = cast("Vote", statement.body)
    if body.view <= ctx.head.view:
        _late_vote(ctx, statement, body, source)
        return True
    if not ctx.head.table.stands(statement.peer):
        return False
    if ctx.keep(ctx.votes, body.view, statement, needed=body.seal in ctx.round.proposals):
        ctx.round.tally = True
        ctx.accept(statement, source)
    return True


def _late_vote(ctx: Context, statement: Statement, body: Vote, source: PeerId | None) -> None:
    head, table = ctx.head, ctx.head.parent_table
    known = any(each.peer == statement.peer for each in head.votes)
    if body != Vote(head.view, head.seal) or table is None or known or not table.stands(statement.peer):
        return
    votes = sorted((*head.votes, statement), key=lambda each: each.peer)
    ctx.head = replace(head, votes=tuple(votes))
    ctx.chain.grow(ctx.head)
    ctx.accept(statement, source)
    ctx.emit(Votes(ctx.head))


def votes_for(ctx: Context, name: Hash, view: int) -> list[Statement]:
    """The votes for a proposal, in order of signers."""
    votes = ctx.votes.in_view(view)
    return [votes[each] for each in sorted(votes) if _names(votes[each], name)]


def _names(vote: Statement, seal: Hash) -> bool:
    return cast("Vote", vote.body).seal == seal


def _newest_certified(ctx: Context) -> tuple[Hash, Statement] | None:
    """The proposal of highest view that a quorum has voted for, if any.

    Without whom a seal may go on, the roster says; else one key could say it for a view far ahead.
    """
    found = None
    for name, proposal in ctx.round.proposals.items():
        body = cast("Seal", proposal.body)
        task = ctx.round.tasks.get(body.roster) if body.lost else None
        if body.lost and (task is None or task.cast.lost != body.lost):
            continue
        votes = ctx.votes.in_view(body.view)
        better = found is None or body.view > cast("Seal", found[1].body).view
        if not better or not certifies(ctx.head.table, body.lost, votes):
            continue  # too few, whatever they are for
        if certifies(ctx.head.table, body.lost, [peer for peer, each in votes.items() if _names(each, name)]):
            found = (name, proposal)
    return found


def try_adopt(ctx: Context, now: float) -> bool:
    """Move to a certified seal whose state this peer has computed; True if it moved."""
    if not ctx.round.tally:
        return False
    ctx.round.tally = False
    found = _newest_certified(ctx)
    if found is None:
        return False
    name, proposal = found
    body = cast("Seal", proposal.body)
    task = ctx.round.tasks.get(body.roster)
    own = sealed_by(ctx, task, body.view) if task else None
    if task is None or own is None:
        timing = ctx.setting.timing
        wait = timing.chase
        if ctx.talk.strange and ctx.once("hurry"):
            wait = 0.0 if ctx.round.behind else timing.hurry  # of a round long over nothing is on its way
        ctx.set_timer("chase", now + wait, sooner=True)
        return False
    if seal_hash(ctx.scope, own[0]) != name:
        if ctx.once("diverged"):
            ctx.trouble(ctx.me, "computed another state than more than 2/3 of the weight sealed: its state is fetched")
            ctx.diverged = True
        return False
    _adopt(ctx, name, proposal, task, now)
    return True


def _adopt(ctx: Context, name: Hash, proposal: Statement, task: Task, now: float) -> None:
    body = cast("Seal", proposal.body)
    own = sealed_by(ctx, task, body.view)
    assert own is not None and task.applied is not None
    votes = tuple(votes_for(ctx, name, body.view))
    record = record_of(ctx, task, body, name, now)
    head = Head(name, body.view, body.round, own[1], proposal, votes, ctx.head.table)
    settle_round(ctx, task, head)
    ctx.emit(Sealed(ctx.head, ctx.params, ctx.momentum, ctx.drift, ctx.ages, record))
