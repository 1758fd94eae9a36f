"""Bytes for whoever missed them, and asking for one's own (protocol.md 5.5, 5.7)."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from ..payloads import MAX_PIECES, Want
from . import gossip
from .effects import Push
from .exchanging import lacks, push_parts, task_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..ids import PeerId
    from .context import Context
    from .results import Results
    from .task import Task

SERVINGS = 12
"""How often a member gets bytes of one core for the asking."""
SERVINGS_STRANGE = 6
REPLAYERS, REPLAY_S = 16, 10.0
"""So many strangers get result bytes; one that did not ask for so long leaves room for another."""
SHARE = 8
"""Bytes are asked for again after this fraction of the time for the exchange."""
AHEAD_FIRST, AHEAD_S = 1, 5.0
"""So often those who have gone ahead are asked for results of a round that is over, and they have so long."""
OWNER_FIRST = 2
"""So often results are asked of their reducer, then of neighbours as well."""


def on_want(ctx: Context, sender: PeerId, want: Want, now: float) -> None:
    """Serve a member that asks for parts that it reduces, or for result bytes of this round or one before.

    Some strangers get result bytes too, for they replay rounds on top of the state that they were given.
    """
    task, results = ctx.round.tasks.get(want.core), _results(ctx, want)
    member = sender in ctx.head.table.members or sender in ctx.round.commits
    servings = SERVINGS if member else SERVINGS_STRANGE
    if (task is None and results is None) or ctx.served[sender, want.core] >= servings:
        return
    if not member and not _admits(ctx, sender, now):
        return
    ctx.served[sender, want.core] += 1  # of known cores only, so that it stays small
    if task is not None and not task.cast.void:
        mine = task.shares.of(sender)
        push_parts(ctx, task, sender, [index for index in want.indices if index in mine])
    if results is not None:
        for frame in results.frames(want.indices):
            ctx.emit(Push(sender, "results", frame.encode(), bulk=not member))


def _admits(ctx: Context, stranger: PeerId, now: float) -> bool:
    """Whether a stranger is among those who replay."""
    for peer in [each for each, asked in ctx.giving.replayers.items() if now - asked > REPLAY_S]:
        del ctx.giving.replayers[peer]
    if stranger not in ctx.giving.replayers and len(ctx.giving.replayers) >= REPLAYERS:
        return False
    ctx.giving.replayers[stranger] = now
    return True


def _results(ctx: Context, want: Want) -> Results | None:
    task = task_of(ctx, want.core)
    if task is not None:
        return task.results
    past = (each.results for each in ctx.history)
    return next((each for each in past if each is not None and each.core == want.core), None)


def chase(ctx: Context, now: float) -> None:
    """Ask again for bytes that should be here by now."""
    if ctx.round.cast is None and not ctx.round.tasks:
        return
    ctx.set_timer("chase", now + _patience(ctx, ctx.round.task))
    came = max(ctx.round.fed.values(), default=-inf)
    if not ctx.votes_here and now - max(came, ctx.round.chased) < AHEAD_S:
        return  # more is under way, on a line that may be slow, and nobody waits for this peer
    ctx.round.chased = now
    if _loads(ctx):
        return
    for task in ctx.round.tasks.values():
        if task.applied is None:
            _chase_parts(ctx, task, now)
            _chase_results(ctx, task, now)
    ctx.round.chases += 1


def _loads(ctx: Context) -> bool:
    """Whether the line is needed for a state that makes these bytes useless; a voter's vote may still be wanted."""
    return ctx.sync is not None and ctx.sync.download is not None and not ctx.votes_here


def _patience(ctx: Context, task: Task | None) -> float:
    """How long bytes may stay away: large updates and slow lines have frames under way for longer."""
    return max(ctx.setting.timing.chase, task.span / SHARE if task else 0.0)


def _silent(ctx: Context, task: Task | None, peers: Iterable[PeerId], now: float) -> list[PeerId]:
    """Of whom no bytes came lately; of the others more is on its way."""
    since = now - _patience(ctx, task)
    return sorted(each for each in peers if each != ctx.me and ctx.round.fed.get(each, -inf) <= since)


def _chase_ahead(ctx: Context, results: Results, missing: list[int], now: float) -> None:
    """Of a round that is over any neighbour that has gone ahead holds all: each is asked for its share."""
    ahead = _silent(ctx, None, gossip.ahead(ctx), now)
    known = [index for index in missing if results.shares.holders[index] in results.roots]
    for place in range(len(ahead)):
        indices = known[place * len(known) // len(ahead) : (place + 1) * len(known) // len(ahead)]
        other = ahead[(place + ctx.round.chases) % len(ahead)]
        if indices:
            ctx.push(other, "want", Want(results.core, tuple(indices[:MAX_PIECES])).encode())


def _chase_parts(ctx: Context, task: Task, now: float) -> None:
    """A reducer asks contributors for what they owe it."""
    wanted: dict[PeerId, list[int]] = {}
    if task is ctx.round.task and not task.summed:
        wanted = ctx.round.inbox.missing(task.cast, task.cast.owned(ctx.me))
    elif task.frozen is not None:
        for share in task.shares.parts:
            if share[0] == ctx.me and share not in task.reducing:
                for peer, indices in lacks(ctx, task, share).items():
                    wanted.setdefault(peer, []).extend(indices)
    for peer in _silent(ctx, task, wanted, now):
        ctx.push(peer, "want", Want(task.cast.core, tuple(wanted[peer][:MAX_PIECES])).encode())


def _chase_results(ctx: Context, task: Task, now: float) -> None:
    """Ask a result's reducer, and after two vain tries also neighbours, one after another.

    One's own are asked of neighbours where they were signed before a restart.
    """
    results = task.results
    if results is None or results.complete or not results.roots:
        return
    missing = results.missing()
    if ctx.round.behind and ctx.round.chases < AHEAD_FIRST:
        _chase_ahead(ctx, results, sorted(index for indices in missing.values() for index in indices), now)
        return
    mine = missing.pop(ctx.me, [])
    wanted = [index for index in mine if results.shares.holders[index] in results.roots]
    for peer in _silent(ctx, task, missing, now):
        ctx.push(peer, "want", Want(results.core, tuple(missing[peer][:MAX_PIECES])).encode())
    others = sorted(ctx.neighbours)
    if ctx.round.chases >= OWNER_FIRST:
        wanted += [index for indices in missing.values() for index in indices]
    if wanted and others:
        other = others[ctx.round.chases % len(others)]
        ctx.push(other, "want", Want(results.core, tuple(sorted(wanted)[:MAX_PIECES])).encode())
