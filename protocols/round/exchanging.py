"""Parts arrive at their reducers, Grams at everybody, the coordinator freezes them (protocol.md 5.5, 5.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ..errors import RemoteError
from ..messages import FACES, MAX_REVISIONS, Freeze, Gram
from ..payloads import Pieces, Want
from .effects import Push
from .exchange import make_gram, pushes
from .reduction import check_gram, counted, denies, freeze_core, presence, read_freeze
from .results import Results
from .rostering import gram_due, revise
from .shares import Shares
from .timing import reduce_time
from .views import allow, is_gone

if TYPE_CHECKING:
    from ..ids import PeerId
    from ..statements import Statement
    from .context import Context
    from .reduction import Frozen
    from .task import Task


def step(ctx: Context, task: Task, now: float) -> None:
    """Go on with the exchange of the cast in force as far as what is here allows."""
    _deliver(ctx, task)
    _try_gram(ctx, task, now)
    if ctx.round.cast and ctx.round.cast.coordinator == ctx.me and ctx.round.cast.view == ctx.view:
        _try_freeze(ctx, task, now)


def _deliver(ctx: Context, task: Task) -> None:
    """Push every part to its owner, one's own into one's own inbox; again only those whose owner changed.

    Starts behind one's own place among the owners, so that not everybody pushes to the same one first.
    """
    shares = task.shares
    if task.delivered is shares or task.applied:
        return
    sent = ctx.sent_in(task.cast)
    if sent is None or ctx.me not in task.cast.rows:
        return
    task.delivered = shares
    by: dict[PeerId, list[int]] = {}
    for index, (owner, _) in enumerate(shares.holders):
        if (owner, index) not in ctx.round.pushed:
            by.setdefault(owner, []).append(index)
            ctx.round.pushed.add((owner, index))
    order = sorted(by)
    start = sum(ctx.me > each for each in order)
    for owner in (*order[start:], *order[:start]):
        if owner != ctx.me:
            push_parts(ctx, task, owner, by[owner])
    own = tuple(sent.piece(index) for index in by.get(ctx.me, ()))
    if own:
        ctx.round.inbox.add(ctx.me, Pieces(task.cast.core, ctx.me, own), task.cast, by[ctx.me])


def push_parts(ctx: Context, task: Task, owner: PeerId, indices: list[int]) -> None:
    """Send these parts of one's update to a reducer."""
    sent = ctx.sent_in(task.cast)
    if sent is not None and ctx.me in task.cast.rows:
        for frame in pushes(sent, task.cast.core, ctx.me, indices):
            ctx.emit(Push(owner, "parts", frame.encode()))


def on_parts(ctx: Context, sender: PeerId, frame: Pieces, now: float) -> None:
    """Parts for this reducer.

    The roster travels before them on every stream. So frames for an unknown one are late, or this peer is behind and
    could not read the roster yet: then it asks again when it has.
    """
    task = ctx.round.tasks.get(frame.core)
    if task is None:
        ctx.miss(frame.core, sender)
    elif not task.cast.void:
        ctx.round.fed[sender] = now
        ctx.round.inbox.add(sender, frame, task.cast, task.shares.of(ctx.me))


def _try_gram(ctx: Context, task: Task, now: float) -> None:
    """With every part in, at the deadline, or when whoever owes parts is gone: sum up what is here."""
    cast_ = task.cast
    mine = cast_.owned(ctx.me)
    if not mine or task.summed:
        return
    if now < task.due and not ctx.gone and not ctx.round.inbox.holds(cast_, len(mine)):
        return
    if task.owing is None or task.owing[0] != len(ctx.round.inbox):
        task.owing = len(ctx.round.inbox), [*ctx.round.inbox.missing(cast_, mine)]
    missing = task.owing[1]
    if ctx.me in missing and now < task.due and ctx.round.promised is not None:
        return  # one's own update is being encoded again after a restart
    if missing and now < task.due and not all(is_gone(ctx, each, now) for each in missing):
        return
    task.summed = True
    rows, setting = ctx.round.inbox.rows(cast_, mine), ctx.setting
    ctx.work("gram", cast_.core, lambda: make_gram(cast_.core, rows, len(cast_.rows), setting))


def on_gram(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """A reducer's Gram."""
    task = ctx.round.tasks.get(cast("Gram", statement.body).roster)
    if task is None:
        return False
    ctx.scope.shared(("gram", statement.hash), lambda: check_gram(statement, task.cast))
    faces = task.grams.setdefault(statement.peer, [])
    if faces:
        ctx.shame(statement)
    if len(faces) < FACES:
        faces.append(statement)
        task.arrived.setdefault(statement.peer, now)
        ctx.accept(statement, source)
        ctx.stirred = True
    return True


def _try_freeze(ctx: Context, task: Task, now: float) -> None:
    """The coordinator: freeze when every reducer has spoken, put out those that do not, or leave out too much."""
    cast_, current = task.cast, ctx.round.cast
    assert current is not None
    if task.applied or f"freeze {current.view}" in ctx.round.asked:
        return
    if task.results is not None:  # frozen in an earlier view: the work stays good
        if task.frozen is not None:
            ctx.round.asked.add(f"freeze {current.view}")
            ctx.sign(Freeze(current.view, 0, cast_.core, task.frozen.grams, task.results.shares.out))
        return
    late = {each for each in cast_.working if each not in task.grams}
    deniers = {each for each in cast_.working if each in task.grams and _denies(ctx, task, each)}
    if deniers and len(deniers) < len(cast_.working) - len(late):
        late |= deniers
    if late and current.rev < MAX_REVISIONS:
        patient = now < gram_due(ctx, task)
        if not patient or all(each in deniers or is_gone(ctx, each, now) for each in late):
            revise(ctx, late)
        return
    if any(each not in task.grams for each in cast_.working):
        return
    first = {each: task.grams[each][0] for each in cast_.working}
    if any(counted(presence(cast_, first))):
        ctx.round.asked.add(f"freeze {current.view}")
        ctx.sign(Freeze(current.view, 0, cast_.core, tuple(first[each].hash for each in cast_.working), ()))


def _denies(ctx: Context, task: Task, reducer: PeerId) -> bool:
    return denies(task.cast, task.grams[reducer][0], ctx.head.table)


def on_freeze(ctx: Context, statement: Statement, source: PeerId | None, now: float) -> bool:
    """The Grams are fixed: from here the weights are a pure function, and results can be told apart."""
    body = cast("Freeze", statement.body)
    if body.view <= ctx.head.view:
        return True
    task = ctx.round.tasks.get(body.roster)
    if task is None or task.cast.void:
        return False
    if body.view > ctx.view:  # of a turn to come: it must not outrank the freezes before it
        return False
    if statement.peer != ctx.turn(body.view):
        raise RemoteError(statement.peer, f"froze view {body.view} out of turn")
    by_hash = {each.hash: peer for peer, faces in task.grams.items() for each in faces}
    if any(each not in by_hash for each in body.grams):
        return False
    picked = {by_hash[each]: each for each in body.grams}
    working = task.cast.working
    if tuple(by_hash[each] for each in body.grams) != working or len(picked) != len(working):
        raise RemoteError(statement.peer, "froze other than one gram of every reducer")
    shares = Shares(task.cast, body.out)
    if len(set(body.out)) != len(body.out) or not set(body.out) <= set(task.cast.reducers) or not shares.possible:
        raise RemoteError(statement.peer, "froze without reducers, or put one out that there is not")
    grams = {peer: next(each for each in task.grams[peer] if each.hash == picked[peer]) for peer in working}
    if not any(counted(presence(task.cast, grams))):
        raise RemoteError(statement.peer, "froze grams that hold no update")
    if ctx.first_in_slot(statement):
        ctx.accept(statement, source)
        ctx.stirred = True
        if (body.view, body.rev) > task.froze:
            task.froze = (body.view, body.rev)
            _freeze(ctx, task, grams, shares, now)
    return True


def _freeze(ctx: Context, task: Task, grams: dict[PeerId, Statement], shares: Shares, now: float) -> None:
    cast_ = task.cast
    core = freeze_core(cast_.core, [grams[each].hash for each in cast_.working])
    if task.results is not None and task.results.core == core:
        if task.applied is None and task.results.shares.out != shares.out:
            _note_unfair(ctx, task, shares, now)
            task.results.reshare(shares)
            task.applying = False
        return
    if task.applied is not None:
        return  # other faces of a liar's Gram: what was computed stands until a certificate says otherwise
    task.results, task.frozen, task.reduced = Results(core, shares, ctx.setting), None, {}
    task.reducing.clear()
    task.served.clear()
    ups = [cast_.commit(each).up for each in cast_.reducers if each in cast_.commits]
    seconds = reduce_time(ctx.setting.timing, sum(ctx.result_sizes), len(cast_.rows), ups, ctx.setting.deadline)
    task.reduce_due = now + seconds
    table, setting = ctx.head.table, ctx.setting
    scope = ctx.scope
    ctx.work("freeze", core, lambda: scope.shared(("freeze", core), lambda: read_freeze(cast_, grams, table, setting)))
    if task is ctx.round.task:
        ctx.enter("reduce", now)
        allow(ctx, "reduce", now)
        ctx.set_timer("chase", now + ctx.setting.timing.chase)
        ctx.set_timer("results", task.reduce_due + ctx.setting.timing.exchange)
    ctx.ask_again(Want(core, tuple(range(len(cast_.owners)))))


def _note_unfair(ctx: Context, task: Task, shares: Shares, now: float) -> None:
    """A reducer whose result root was here in good time, with its bytes, must not be put out for silence."""
    assert task.results is not None
    owing, early = task.results.missing(), now - ctx.setting.timing.fair
    new = [each for each in shares.out if each not in task.results.shares.out]
    if any(task.served.get(each, now) < early and each not in owing for each in new):
        ctx.round.unfair.add(task.froze[0])


def on_frozen(ctx: Context, about: bytes, frozen: Frozen) -> None:
    """The weights are known."""
    task = task_of(ctx, about)
    if task is not None:
        task.frozen = frozen


def task_of(ctx: Context, core: bytes) -> Task | None:
    """The work whose freeze has this core."""
    return next((task for task in ctx.round.tasks.values() if task.results and task.results.core == core), None)


def lacks(ctx: Context, task: Task, share: tuple[PeerId, int]) -> dict[PeerId, list[int]]:
    """By contributor, the parts that this reducer needs for one of its shares and does not hold."""
    assert task.frozen is not None
    return ctx.round.inbox.missing(task.cast, task.shares.parts[share], task.have)
