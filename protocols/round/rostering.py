"""The coordinator says who takes part; everybody checks it and begins (protocol.md 5.4, 5.5, 5.10)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ..errors import RemoteError
from ..messages import MAX_CONTRIBUTORS, MAX_REDUCERS, MAX_REVISIONS, Roster
from ..payloads import Want
from ..statements import Statement
from ..turns import first_turn
from . import loading, syncing
from .reduction import Applied
from .roster import (
    SHRINK_AFTER,
    SHRINK_ANY_AFTER,
    VOID_FROM,
    Cast,
    kept,
    newcomers_room,
    read_roster,
    required,
    shrink_due,
    unserved,
)
from .task import TASKS_KEPT, Task
from .timing import exchange_time
from .views import allow, fitting, is_gone, say_ready

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..ids import Hash, PeerId
    from .context import Context


ROSTER_BYTES = 384 * 1024
"""Of a roster's readys; the rest of a statement's limit is for the commits."""
SIGNED_BYTES = 192
"""What signer and signature add to a statement."""


def try_roster(ctx: Context, now: float, *, settled: bool = False) -> None:
    """The coordinator, with a quorum of readys, proposes; ``settled``: without waiting for more of them."""
    view = ctx.view
    if ctx.coordinator != ctx.me or ctx.round.ready != view or f"roster {view}" in ctx.round.asked:
        return
    readys = fitting(ctx)
    if not ctx.head.table.is_quorum(readys):
        return
    settled = settled or f"settled {view}" in ctx.round.asked
    late = [each for each in ctx.head.table.voters if each not in readys and not is_gone(ctx, each, now)]
    if late and not settled:
        ctx.set_timer("propose", now + ctx.setting.timing.settle, sooner=True)
    else:
        ctx.round.asked.add(f"settled {view}")
        body = _propose(ctx, _attachable(ctx, readys), now)
        if body is not None and ctx.once(f"roster {view}"):
            ctx.sign(body)


def _attachable(ctx: Context, readys: dict[PeerId, Statement]) -> dict[PeerId, Statement]:
    """As many readys as a frame has room for beside the commits, a quorum in any case."""
    room = ROSTER_BYTES - sum(len(each.raw) + SIGNED_BYTES for each in readys.values())
    out = dict(readys)
    for each in reversed(readys):
        if room >= 0 or not ctx.head.table.is_quorum(out.keys() - {each}):
            break
        room += len(out.pop(each).raw) + SIGNED_BYTES
    return out


def _propose(ctx: Context, readys: Mapping[PeerId, Statement], now: float) -> Roster | None:
    """The roster that these readys call for; None while something that it must hold is not here."""
    table, current = ctx.head.table, ctx.round
    attached = list(readys.values())
    keep = kept(ctx.head, attached)
    late = ctx.view - ctx.head.view
    if (ctx.finishing or ctx.paused) and not current.commits:
        return None  # nobody trains just now: a void seal would serve nobody
    if late >= VOID_FROM and not (current.task and current.task.frozen and late < 2 * VOID_FROM):
        return _roster(ctx, (), readys, ())
    proof: list[Statement] = []
    if keep is not None:
        commits = current.commits_of(keep)
    else:
        commits = {each: current.commits[each] for each in current.commits if each not in current.second}
        needed = required(ctx.head, attached)
        proof = _both_faces(ctx, needed)
        commits = _with_room(ctx, commits, needed, 2 * MAX_CONTRIBUTORS - len(proof))
        if not needed <= {each.hash for each in (*commits.values(), *proof)}:
            commits = None
    if commits is None:
        if ctx.once("no roster"):
            ctx.trouble(ctx.me, "cannot make a roster yet: a third of the members saw a commit that is not here")
        return None
    if not any(table.weighs(each) for each in commits):
        return None
    named = unserved(ctx.head, attached)
    absent = [each for each in commits if is_gone(ctx, each, now)]
    for out in ({*named, *absent}, set(named)):
        body = _roster(ctx, (*commits.values(), *proof), readys, tuple(sorted(out)[:MAX_REDUCERS]))
        if _leaves_reducers(ctx, body):
            return body
    return None


def _both_faces(ctx: Context, needed: set[Hash]) -> list[Statement]:
    """The commits of those who signed two, where a third has seen either: no roster can have both as rows."""
    pairs = [(ctx.round.commits[each], other) for each, other in ctx.round.second.items()]
    return [each for pair in pairs if any(face.hash in needed for face in pair) for each in pair]


def _with_room(ctx: Context, commits: dict[PeerId, Statement], needed: set[Hash], room: int) -> dict[PeerId, Statement]:
    """As many as a roster has room for: what a third has seen, then voters'; earlier rosters may have brought more."""
    table = ctx.head.table
    order = sorted(commits, key=lambda peer: (commits[peer].hash not in needed, not table.stands(peer)))
    weighty = [peer for peer in order if table.weighs(peer)][:room]
    new = [peer for peer in order if not table.weighs(peer)]
    return {peer: commits[peer] for peer in (*weighty, *new[: min(newcomers_room(table), room - len(weighty))])}


def _leaves_reducers(ctx: Context, body: Roster) -> bool:
    try:
        _read(ctx, Statement(ctx.me, body, b"", b""))
    except RemoteError:
        return False
    return True


def _read(ctx: Context, statement: Statement) -> Cast:
    parts, setting = len(ctx.part_sizes), ctx.setting
    return read_roster(statement, ctx.scope, ctx.head, parts=parts, open_=setting.open, allowed=setting.allowed)


def _roster(
    ctx: Context, commits: Iterable[Statement], readys: Mapping[PeerId, Statement], out: tuple[PeerId, ...]
) -> Roster:
    return Roster(
        view=ctx.view,
        rev=0,
        parent=ctx.head.seal,
        commits=tuple(each.encode() for each in sorted(commits, key=lambda each: (each.peer, each.hash))),
        readys=tuple(each.encode() for each in readys.values()),
        out=out,
        shrink=False,
    )


def try_shrink(ctx: Context, now: float) -> None:
    """Those who are left, after views without a quorum, go on without the rest; the first of them says so."""
    if ctx.round.barren < SHRINK_AFTER or ctx.round.ready != ctx.view or not ctx.votes_here:
        return
    readys, table = fitting(ctx), ctx.head.table
    if not shrink_due(ctx.head, ctx.view, readys) or table.is_quorum(readys):
        return
    if ctx.me not in readys:  # one's own may name a head that was left since
        return
    if first_turn(table, ctx.scope, ctx.view, readys) != ctx.me:
        return
    if not _others_went_on(ctx, now) and ctx.once(f"roster {ctx.view}"):
        ctx.sign(replace(_roster(ctx, (), readys, ()), shrink=True))


def _others_went_on(ctx: Context, now: float) -> bool:
    """Whether a voter is here on an unknown head. Once a view its chain is asked for: it may have gone on before."""
    here = sorted(each for each in ctx.talk.strange if each in ctx.neighbours and ctx.head.table.stands(each))
    if not here or not ctx.once(f"look {ctx.view}"):
        return False
    head = ctx.talk.strange[here[0]][0]
    ctx.lost_heads.pop(head, None)
    syncing.ask(ctx, here[0], head, now)
    ctx.set_timer("shrink", now + loading.STALLED_S)
    return True


def revise(ctx: Context, late: set[PeerId]) -> None:
    """The coordinator puts out reducers that gave no Gram; their parts go to the next in their own order."""
    cast_, roster = ctx.round.cast, ctx.round.roster
    if cast_ is None or roster is None or cast_.rev >= MAX_REVISIONS:
        return
    out = tuple(sorted({*cast_.out, *late}))[:MAX_REDUCERS]
    body = replace(cast("Roster", roster.body), rev=cast_.rev + 1, out=out)
    if out != cast_.out and _leaves_reducers(ctx, body) and ctx.once(f"roster {cast_.view} {body.rev}"):
        ctx.sign(body)


def on_roster(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """The cast is fixed: reducers open their inboxes, contributors push."""
    body = cast("Roster", statement.body)
    if body.view <= ctx.head.view:
        return True
    if body.parent != ctx.head.seal:
        return body.parent in ctx.parents
    cast_ = ctx.scope.shared(("roster", statement.hash, ctx.setting.open), lambda: _read(ctx, statement))
    if body.shrink and not _agrees_to_shrink(ctx, cast_):
        return False
    current = ctx.round
    others = (task.cast for task in current.tasks.values() if task.cast.view == cast_.view)
    if cast_.rev and any(each.base != cast_.base for each in others):
        raise RemoteError(statement.peer, "changed the commits in a revision")
    if not ctx.first_in_slot(statement):
        return True
    ctx.accept(statement, source)
    ctx.stirred = True
    if cast_.core not in current.tasks:
        current.tasks[cast_.core] = _task(ctx, cast_, now)
        while len(current.tasks) > TASKS_KEPT:
            old = next(core for core in current.tasks if current.cast is None or core != current.cast.core)
            del current.tasks[old]
    current.tasks[cast_.core].call(cast_)
    if current.cast is None or (cast_.view, cast_.rev) > (current.cast.view, current.cast.rev):
        _take(ctx, cast_, statement, now)
    return True


def _agrees_to_shrink(ctx: Context, cast_: Cast) -> bool:
    """Whether this peer saw for itself that the others are silent, and is none of those left behind."""
    table = ctx.head.table
    left = [each for each in table.voters if each not in cast_.lost]
    needed = SHRINK_AFTER if table.is_half(left) else SHRINK_ANY_AFTER
    return ctx.me not in cast_.lost and ctx.round.barren >= needed


def _task(ctx: Context, cast_: Cast, now: float) -> Task:
    if cast_.void:
        return Task(cast_, now, applied=Applied(ctx.params, ctx.momentum, ctx.state_root))
    weights = [(cast_.commit(each).up, ctx.head.table.members[each].weight) for each in cast_.rows]
    seconds = exchange_time(ctx.setting.timing, sum(ctx.part_sizes), weights, ctx.setting.deadline)
    return Task(cast_, now + (seconds / 2 if cast_.rev else seconds), span=seconds)


def _take(ctx: Context, cast_: Cast, statement: Statement, now: float) -> None:
    """Work for this cast from now on."""
    current = ctx.round
    say_ready(ctx, cast_.view, now)  # so that this peer is never ready for less than what it votes for
    if not _fair(ctx, cast_, statement, now):
        current.unfair.add(cast_.view)
        ctx.trouble(cast_.coordinator, "put out a reducer that had served in time")
    current.cast, current.roster, current.taken, current.tally = cast_, statement, now, True
    ctx.timers.pop("grace", None)
    ctx.set_timer("chase", now + ctx.setting.timing.chase)
    task = current.tasks[cast_.core]
    if cast_.void:
        ctx.enter("seal", now)
        allow(ctx, "seal", now)
        return
    for each, commit in cast_.commits.items():
        if current.commits.setdefault(each, commit).hash != commit.hash:
            current.second.setdefault(each, commit)
    if task.frozen is None:
        ctx.enter("exchange", now)
    allow(ctx, "reduce" if task.frozen else "exchange", now)
    mine = cast_.owned(ctx.me)
    if mine:
        ctx.set_timer("gram", task.due)
        ctx.ask_again(Want(cast_.core, tuple(mine)))
    if cast_.coordinator == ctx.me:
        ctx.set_timer("grams", gram_due(ctx, task))


def gram_due(ctx: Context, task: Task) -> float:
    """When the coordinator waits no longer for a Gram; work that a later view takes up again gets a little time."""
    return max(task.due + ctx.setting.timing.exchange, ctx.round.taken + ctx.setting.timing.fair)


def _fair(ctx: Context, cast_: Cast, statement: Statement, now: float) -> bool:
    """Whether nobody was put out whose Gram was here in good time, unless a third says otherwise (5.5)."""
    before = ctx.round.task
    if before is None or before.cast.base != cast_.base or cast_.void:
        return True
    early = now - ctx.setting.timing.fair
    served = {each for each in cast_.out if before.arrived.get(each, now) < early} - ctx.round.faced
    if not served:
        return True
    readys = [ctx.scope.decode(raw, sender=statement.peer) for raw in cast("Roster", statement.body).readys]
    return served <= set(unserved(ctx.head, readys))
