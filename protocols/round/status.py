"""What a machine tells about itself: for whom it waits, and how much it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..ids import PeerId
    from .context import Context


def waits_for(ctx: Context) -> list[PeerId]:
    """The peers whose next message the round needs, in order of ids."""
    current, voters = ctx.round, ctx.head.table.voters
    if current.cast is None:
        late = [each for each in voters if each not in current.commits]
        unready = [each for each in voters if each not in ctx.readys.in_view(ctx.view)]
        return (late if current.ready < ctx.view else unready) or [ctx.coordinator]
    task = current.task
    if task is None or task.applied is not None:
        votes = ctx.votes.in_view(current.cast.view)
        return [each for each in voters if each not in votes] if current.proposals else [current.cast.coordinator]
    if task.results is None:
        return [each for each in task.cast.working if each not in task.grams] or [current.cast.coordinator]
    return sorted(task.results.missing())


def sizes(ctx: Context) -> dict[str, int]:
    """Counts of everything that grows with what others send."""
    current = ctx.round
    results = [each.results for each in ctx.history if each.results]
    return {
        "known": len(ctx.known),
        "readys": len(ctx.readys),
        "votes": len(ctx.votes),
        "commits": len(current.commits) + len(current.second),
        "slots": len(current.slots),
        "asked": len(current.asked),
        "tasks": len(current.tasks),
        "parts": len(current.inbox),
        "proposals": len(current.proposals),
        "history": len(ctx.history),
        "history_bytes": sum(each.nbytes for each in results),
        "peers": len(ctx.talk.told) + len(ctx.talk.strange) + len(ctx.gone) + len(ctx.heard),
        "served": len(ctx.served),
        "snapshots": len(ctx.giving.snapshots),
        "guests": len(ctx.giving.desk),
        "replayers": len(ctx.giving.replayers),
        "donors": len(ctx.sync.donors) if ctx.sync else 0,
        "twice": ctx.joining.twice,
        "chain": ctx.chain.sizes()["links"],
    }
