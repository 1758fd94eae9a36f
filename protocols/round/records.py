"""A sealed round as this peer saw it, for the log and the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from .effects import Record

if TYPE_CHECKING:
    from ..ids import Hash, PeerId
    from ..messages import Seal
    from .chain import Head
    from .context import Context
    from .task import Task


def record_of(ctx: Context, task: Task, body: Seal, name: Hash, now: float) -> Record:
    """The record of the seal ``name`` that ``task`` computed, before the head moves."""
    cast_ = task.cast
    weights = dict(zip(cast_.rows, task.frozen.weights, strict=True)) if task.frozen else {}
    return Record(
        round=body.round,
        view=body.view,
        seal=name,
        coordinator=ctx.turn(body.view) if not cast_.lost else cast_.coordinator,
        contributors=cast_.rows,
        weights=weights,
        tokens={each: sum(leg.tokens for leg in cast_.commit(each).legs) for each in cast_.commits},
        owners=tuple(owner for owner, _ in task.shares.holders) if not cast_.void else (),
        state=body.state,
        payload=(sum(ctx.part_sizes), ctx.setting.values) if ctx.me in cast_.commits else (0, 0),
        seconds=_seconds(ctx, now),
        verdict="void" if cast_.void else _verdict(ctx.me, weights),
        void=cast_.void,
        reason=_reason(ctx, task),
    )


def _seconds(ctx: Context, now: float) -> dict[str, float]:
    marks = ctx.round.marks
    out: dict[str, float] = {}
    for (phase, at), end in zip(marks, [*(at for _, at in marks[1:]), now], strict=True):
        out[phase] = out.get(phase, 0.0) + end - at
    return out


def _verdict(me: PeerId, weights: dict[PeerId, float]) -> str:
    if weights.get(me, 0.0) > 0.0:
        return "accepted"
    return "rejected" if me in weights else "late"


def _reason(ctx: Context, task: Task) -> str:
    cast_ = task.cast
    if cast_.lost:
        return f"going on without {len(cast_.lost)} silent members"
    if cast_.void:
        return f"{ctx.failed} views failed"
    out = (*cast_.out, *task.shares.out)
    return f"without {len(out)} reducers that did not serve" if out else ""


def synced_record(ctx: Context, head: Head) -> Record:
    """The record of a seal whose state came from a donor."""
    assert head.proposal is not None
    body = cast("Seal", head.proposal.body)
    weights = {each.peer: each.weight for each in body.contributions}
    return Record(
        round=body.round,
        view=body.view,
        seal=head.seal,
        coordinator=head.proposal.peer,
        contributors=tuple(weights),
        weights=weights,
        tokens={each.peer: each.tokens for each in body.contributions},
        owners=(),
        state=body.state,
        payload=(0, 0),
        seconds={},
        verdict="void" if body.void else _verdict(ctx.me, weights),
        void=body.void,
        reason="its state came from another peer",
        synced=True,
    )
