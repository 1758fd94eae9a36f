"""A joiner's side of a state transfer: the state of a verified head, in chunks from its neighbours (protocol.md 6).

Every neighbour is asked; each has a few chunks under way, as many as it delivers in about a second, and no chunk is
under way from two. A donor that stalls, lies or goes costs its own chunks in flight, which others are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from ..errors import RemoteError
from ..state_payloads import LeaveState, WantState
from .donating import AT_ONCE
from .effects import DropPart, KeepChunk, LoadPart, Syncing
from .transfer import COMMON_KEPT, Download, is_common
from .walking import Branch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..ids import Hash, PeerId
    from ..state_payloads import StateChunk, StateQueue
    from .chain import Head
    from .context import Context

STALLED_S = 20.0
"""A transfer without a chunk for this long, and without a place in any queue, is given up."""
QUEUED_S = 600.0
"""The same with a place in a queue that does not get better."""
LIED_S = 300.0
"""A donor whose chain or chunk was none is not asked again for this long."""
LIARS_KEPT = 64
BEAT_S = 1.0
"""Between two looks at a transfer."""
PING_S = 3.0
"""A donor is told this often that its joiner is still there."""
SILENT_S = 10.0
"""A donor that delivers nothing for this long, or for four times the time of its chunks, has stalled."""
REST_S = (4.0, 60.0)
"""First and longest rest of a donor that stalled, or has no room or no such state; doubles in between."""
QUICK_S, SLOW_S = 0.5, 1.0
"""A chunk that takes less lets its donor have twice as many under way, one that takes more has one less: what is under
way waits in buffers, and a round's bytes wait behind it."""
FIRST_WINDOW = 1
REPLAY_STATES = 2
"""Rounds whose results are as large as so many states are replayed rather than jumped over …"""
REPLAY_S, REPLAY_ASKS = 10.0, 3
"""… while some of their bytes have come, or were asked for for one of the first times, within so long."""
SHOW_S = 0.5
"""Progress is shown this often."""
RESUME_S = 10.0
"""The disk has so long to bring what came before a restart; then it is asked for anew."""


@dataclass
class Donor:
    """What a joiner knows of one donor. ``asked``: chunks under way from it, in order, and since when."""

    heard: float
    pinged: float
    window: int = FIRST_WINDOW
    asked: dict[int, float] = field(default_factory=dict)
    position: int | None = None
    """0: it serves; n: the place in its queue; None: it has not said yet."""
    pace: float = 0.0
    """Seconds between two of its chunks, lately."""
    rests: float = -inf
    """It is not asked before."""
    pause: float = REST_S[0]

    def rest(self, now: float) -> None:
        """Ask others for a while."""
        self.asked.clear()
        self.position, self.window = None, 1
        self.rests, self.pause = now + self.pause, min(2 * self.pause, REST_S[1])


@dataclass
class Sync:
    """A transfer in progress: first the chain from ``peer``, then the state of ``target``, a seal of that branch."""

    peer: PeerId
    progress: float
    start: Head | None = None
    branch: Branch = Branch(())
    target: Head | None = None
    download: Download | None = None
    size: int = 0
    """Bytes of the chain that came in."""
    donors: dict[PeerId, Donor] = field(default_factory=dict)
    resumes: float = -inf
    """The disk has until then to bring chunks that came before a restart."""
    shown: float = -inf

    def free(self, limit: int) -> list[int]:
        """The first chunks that are neither here nor under way."""
        assert self.download is not None
        under_way = {index for donor in self.donors.values() for index in donor.asked}
        return self.download.missing(limit, under_way)


@dataclass
class Joining:
    """What a joiner remembers beside the transfer in progress.

    ``newcomer``: it has nothing of the run yet, so there is nothing that it could train on. ``part``: the seal of whose
    state the disk holds chunks that came before a restart. ``kept``: what came of a state whose transfer was given up.
    ``twice``: chunks that came although they were here.
    """

    newcomer: bool
    part: Hash | None = None
    kept: Download | None = None
    twice: int = 0


def choose(ctx: Context, branch: Branch, *, fork: bool) -> Head:
    """The seal whose state is loaded: one that many keep, from which this peer replays, else the newest.

    On another chain it is the newest: part of a branch may lose where the whole of it wins.
    """
    newest = branch.heads[-1]
    common = _common(ctx, branch)
    if fork or not common:
        return newest
    kept = ctx.joining.kept.head.seal if ctx.joining.kept else None
    begun = [each for each in common if each.seal in (ctx.joining.part, kept)]
    return (begun or common)[-1]


def _common(ctx: Context, branch: Branch) -> list[Head]:
    """Those seals of a branch above this peer's head whose states many keep."""
    oldest = branch.heads[-1].round - COMMON_KEPT
    return [each for each in branch.heads if is_common(each) and each.round >= oldest and each.round > ctx.head.round]


def replays(ctx: Context, branch: Branch, now: float) -> bool:
    """Whether a peer that is behind on this very chain gets its rounds one after another, and need load no state.

    It is near, or there is no state that many keep; and something came lately.
    """
    distance = branch.heads[-1].round - ctx.head.round
    near = distance * sum(ctx.result_sizes) <= REPLAY_STATES * 8 * ctx.setting.values
    asked = ctx.round.chased if ctx.round.chases <= REPLAY_ASKS else -inf
    lately = max(ctx.round.marks[0][1], *ctx.round.fed.values(), asked)
    return not ctx.diverged and (near or not _common(ctx, branch)) and now - lately < REPLAY_S


def load(ctx: Context, target: Head, now: float) -> None:
    """Begin to load the state of the verified ``target``, or go on with what of it is here or on the disk."""
    sync, kept = ctx.sync, ctx.joining.kept
    assert sync is not None
    ctx.joining.kept = None
    sync.progress = now
    if kept is not None and kept.head.seal == target.seal:
        sync.download = kept
    else:
        sync.download = Download(target, ctx.setting.values)
        if ctx.joining.part == target.seal:
            sync.resumes = now + RESUME_S
            ctx.emit(LoadPart(target.seal))
        elif ctx.joining.part is not None:
            ctx.emit(DropPart())
    ctx.joining.part = None
    ctx.set_timer("sync", now + BEAT_S)
    _go_on(ctx, now)


def resumed(ctx: Context, chunks: Iterable[StateChunk], now: float) -> bool:
    """Chunks that came before a restart, from the disk; whether they were all of them. A damaged one is left out."""
    sync = ctx.sync
    if sync is None or sync.download is None:
        return False
    for chunk in chunks:
        if chunk.seal == sync.download.head.seal:
            try:
                sync.download.add(ctx.me, chunk.index, chunk.data, chunk.path)
            except RemoteError as error:
                ctx.trouble(ctx.me, f"a chunk on this disk is damaged and is asked for again ({error.text})")
    sync.resumes, sync.progress = -inf, now
    _go_on(ctx, now)
    return sync.download.complete


def on_chunk(ctx: Context, sender: PeerId, chunk: StateChunk, now: float) -> bool:
    """A chunk of the state; whether it was the last one. Raises RemoteError for one that is not of this state."""
    sync = ctx.sync
    if sync is None or sync.download is None or chunk.seal != sync.download.head.seal:
        return False
    try:
        new = sync.download.add(sender, chunk.index, chunk.data, chunk.path)
    except RemoteError:
        lied(ctx, sender, now)
        raise
    donor = sync.donors.get(sender)
    if donor is not None:
        _delivered(donor, chunk.index, now)
    if new:
        sync.progress = now
        ctx.emit(KeepChunk(chunk))
    else:
        ctx.joining.twice += 1
    _go_on(ctx, now)
    return sync.download.complete


def _delivered(donor: Donor, index: int, now: float) -> None:
    """Streams keep their order: what was asked for before this chunk and has not come is lost. Adapt the window."""
    since = donor.asked.get(index)
    if since is None:
        donor.heard = now
        return
    while next(iter(donor.asked)) != index:
        del donor.asked[next(iter(donor.asked))]
    full = len(donor.asked) + 1 >= donor.window
    took, gap = now - since, now - max(since, donor.heard)
    del donor.asked[index]
    donor.pace = gap if not donor.pace else (3 * donor.pace + gap) / 4
    donor.heard, donor.position, donor.pause = now, 0, REST_S[0]
    if took > SLOW_S:
        donor.window = max(1, donor.window - 1)
    elif took < QUICK_S and full:
        donor.window = min(AT_ONCE, 2 * donor.window)


def on_queue(ctx: Context, sender: PeerId, place: StateQueue, now: float) -> None:
    """A donor says where its joiner stands; chunks that it was asked for too soon may come from others."""
    sync = ctx.sync
    if sync is None or sync.download is None or place.seal != sync.download.head.seal:
        return
    donor = sync.donors.get(sender)
    if donor is None:
        return
    if place.position is None:
        donor.rest(now)
    else:
        if place.position and donor.position != 0:
            donor.asked.clear()  # else they are under way
        if donor.position is None or place.position < donor.position:
            sync.progress = now
        donor.position = place.position
    _go_on(ctx, now)


def lost(ctx: Context, peer: PeerId) -> None:
    """The stream to a donor closed: what was under way from it is not coming."""
    if ctx.sync is not None:
        ctx.sync.donors.pop(peer, None)


def go_on(ctx: Context, now: float) -> None:
    """A stream opened: there may be one donor more."""
    if ctx.sync is not None and ctx.sync.download is not None:
        _go_on(ctx, now)


def beat(ctx: Context, now: float) -> None:
    """Ask others for chunks that did not come; give up what stands still."""
    sync = ctx.sync
    if sync is None:
        return
    if sync.download is None:
        if now - sync.progress >= STALLED_S:
            ctx.sync = None
            ctx.trust.rest(sync.peer, ctx.neighbours, now)
        else:
            ctx.set_timer("sync", now + BEAT_S)
        return
    if ctx.chain.position(sync.download.head.seal) is not None:  # this peer came there by itself
        give_up(ctx)
        return
    for peer, donor in sync.donors.items():
        if donor.asked and now - max(donor.heard, *donor.asked.values()) > max(SILENT_S, 4 * donor.pace):
            donor.rest(now)
            ctx.push(peer, "leave-state", LeaveState(sync.download.head.seal).encode())
    queued = any(donor.position for donor in sync.donors.values())
    if now - sync.progress >= (QUEUED_S if queued else STALLED_S):
        if not sync.download.done and sync.branch.heads:
            ctx.pass_over(sync.branch.heads[-1].seal, now)  # nobody has it: others may lead elsewhere
        give_up(ctx)
        return
    ctx.set_timer("sync", now + BEAT_S)
    _go_on(ctx, now)


def give_up(ctx: Context) -> None:
    """End a transfer, but keep what of the state is here, in case the same is chosen again."""
    sync, ctx.sync = ctx.sync, None
    if sync is not None and sync.download is not None:
        _leave(ctx, sync)
        ctx.joining.kept = sync.download


def forget_old(ctx: Context) -> None:
    """A seal was adopted: what came of the state of an older one is of no use any more."""
    kept = ctx.joining.kept
    if kept is not None and kept.head.round <= ctx.head.round:
        ctx.joining.kept = None
        ctx.emit(DropPart())


def done(ctx: Context, sync: Sync, now: float) -> None:
    """The state is whole: donors need not keep a place, nor the disk the chunks."""
    _leave(ctx, sync)
    _show(ctx, sync, now, at_once=True)
    ctx.joining.kept = None
    ctx.emit(DropPart())


def _leave(ctx: Context, sync: Sync) -> None:
    assert sync.download is not None
    for peer in sorted(sync.donors):
        ctx.push(peer, "leave-state", LeaveState(sync.download.head.seal).encode())


def lied(ctx: Context, peer: PeerId, now: float) -> None:
    """Ask others for a while. What came from others stays; a chain from this one is not gone on with."""
    sync = ctx.sync
    if sync is not None:
        sync.donors.pop(peer, None)
        if sync.download is None and sync.peer == peer:
            ctx.sync = None
    ctx.lied[peer] = now
    while len(ctx.lied) > LIARS_KEPT:
        del ctx.lied[next(iter(ctx.lied))]


def _go_on(ctx: Context, now: float) -> None:
    """Ask every donor for as much as its window has room for, and hold the places in queues."""
    sync = ctx.sync
    assert sync is not None and sync.download is not None
    if sync.download.complete or now < sync.resumes:
        return
    for peer in sorted(ctx.neighbours, key=lambda each: (each not in sync.donors, each)):
        if now - ctx.lied.get(peer, -inf) >= LIED_S:
            _ask(ctx, sync, peer, now)
    _show(ctx, sync, now)


def _ask(ctx: Context, sync: Sync, peer: PeerId, now: float) -> None:
    assert sync.download is not None
    donor = sync.donors.get(peer)
    if donor is not None and now < donor.rests:
        return
    room = FIRST_WINDOW if donor is None else donor.window - len(donor.asked)
    free = sync.free(room) if room > 0 and (donor is None or not donor.position) else []
    waits = donor is not None and (donor.position or donor.asked) and now - donor.pinged >= PING_S
    if not free and not waits:
        return
    if donor is None:
        donor = sync.donors[peer] = Donor(now, now)
    donor.pinged = now
    donor.asked |= dict.fromkeys(free, now)
    ctx.push(peer, "want-state", WantState(sync.download.head.seal, tuple(free)).encode())


def _show(ctx: Context, sync: Sync, now: float, *, at_once: bool = False) -> None:
    assert sync.download is not None
    if not at_once and now - sync.shown < SHOW_S:
        return
    sync.shown = now
    serving = sum(bool(donor.asked) for donor in sync.donors.values())
    places = [donor.position for donor in sync.donors.values() if donor.position]
    place = min(places) if places and not serving else None
    ctx.emit(Syncing(sync.download.done, sync.download.count, serving, place))
