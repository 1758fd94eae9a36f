"""A donor's side of a state transfer: frozen states, served in chunks while this peer trains on (protocol.md 6).

Every peer keeps the states of the same seals, those whose round is a multiple of ``COMMON``: so a joiner finds many
donors of one state, and replays the seals after it. They are kept by reference: nobody changes vectors in place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..ids import Hash
from ..state_payloads import StateQueue
from .effects import Push
from .slots import SLOTS, Desk
from .transfer import COMMON, COMMON_KEPT, Snapshot, is_common

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..ids import PeerId
    from ..state_payloads import LeaveState, WantState
    from .context import Context

COMMON_BYTES = 512 << 20
"""Common states above this: only the newest is kept."""
SNAPSHOTS = 2
"""States of other seals that are kept for those who load them: forks, young runs, swarms that were restarted."""
AT_ONCE = 8
"""Chunks of one request."""
BEAT_S = 2.0
"""Between two looks at those who are served."""


@dataclass(frozen=True, slots=True)
class Donating:
    """What a donor tells about itself: joiners served at a time, now, waiting, and turned away since the start."""

    slots: int
    served: int
    waiting: int
    refused: int
    snapshots: int


@dataclass
class Donation:
    """A state that is kept. ``waiting``: chunks that were asked for before its tree was hashed, by whom."""

    snapshot: Snapshot
    used: float
    common: bool
    member: bool = False
    hashed: bool = False
    hashing: bool = False
    waiting: dict[PeerId, list[int]] = field(default_factory=dict)


@dataclass
class Giving:
    """All of a donor: the states it keeps, who is served, and which strangers get the bytes of rounds."""

    snapshots: dict[Hash, Donation] = field(default_factory=dict)
    desk: Desk = field(default_factory=Desk)
    replayers: dict[PeerId, float] = field(default_factory=dict)
    """When each last asked."""


def figures(ctx: Context) -> Donating:
    """For the status."""
    desk = ctx.giving.desk
    return Donating(SLOTS, len(desk.served), len(desk.waiting), desk.refused, len(ctx.giving.snapshots))


def keep_common(ctx: Context, now: float) -> None:
    """A seal was adopted: keep its state if everybody does, and let go of those that are too old."""
    head = ctx.head
    if is_common(head) and head.seal not in ctx.giving.snapshots:
        ctx.giving.snapshots[head.seal] = Donation(Snapshot(head, ctx.params, ctx.momentum), now, common=True)
    let_go(ctx, now)


def offer(ctx: Context, sender: PeerId, start: Hash | None, newest: Hash | None, now: float) -> None:
    """Somebody was shown the chain from ``start`` on: it loads a common state above that, else the head's.

    ``newest``: its own head. If that is not on this chain it loads the head's in any case.
    """
    above = ctx.chain.position(start) if start is not None else None
    common = [each.snapshot.head.round for each in ctx.giving.snapshots.values() if each.common]
    if above is not None and start == newest and any(number > above for number in common):
        return
    if ctx.head.seal not in ctx.giving.snapshots:
        let_go(ctx, now)
        _donate(ctx, sender, now)


def _donate(ctx: Context, sender: PeerId, now: float) -> Donation | None:
    """Keep the head's state for somebody, where there is room; members come before strangers, whose keys are free."""
    member = sender in ctx.head.table.members
    others = {seal: each for seal, each in ctx.giving.snapshots.items() if not each.common}
    if len(others) >= SNAPSHOTS:
        of_strangers = [seal for seal, each in others.items() if not each.member]
        if not member or not of_strangers:
            return None
        del ctx.giving.snapshots[of_strangers[0]]
    ctx.set_timer("donate", now + BEAT_S, sooner=True)
    donation = Donation(Snapshot(ctx.head, ctx.params, ctx.momentum), now, common=False, member=member)
    ctx.giving.snapshots[ctx.head.seal] = donation
    return donation


def on_want_state(ctx: Context, sender: PeerId, want: WantState, now: float) -> None:
    """A joiner asks for chunks, or again for its place: whoever has a slot is served, the others are told theirs."""
    member = sender in ctx.head.table.members
    donation = ctx.giving.snapshots.get(want.seal)
    if donation is None and want.seal == ctx.head.seal:
        donation = _donate(ctx, sender, now)
    if donation is None or not ctx.giving.desk.ask(sender, want.seal, now, member=member):
        ctx.push(sender, "state-queue", StateQueue(want.seal, None).encode())
        _tell(ctx)
        return
    ctx.set_timer("donate", now + BEAT_S, sooner=True)
    donation.used = now
    donation.member |= member
    guest = ctx.giving.desk.served.get(sender) or ctx.giving.desk.waiting[sender]
    if not want.indices or sender in ctx.giving.desk.waiting:
        guest.told = None  # it asks, so it is told
    _tell(ctx)
    if sender in ctx.giving.desk.served:
        _serve(ctx, donation, sender, want.indices[:AT_ONCE])


def on_leave_state(ctx: Context, sender: PeerId, left: LeaveState, now: float) -> None:
    """A joiner is done."""
    donation = ctx.giving.snapshots.get(left.seal)
    if donation is not None:
        donation.waiting.pop(sender, None)
    leave(ctx, sender, now)


def leave(ctx: Context, peer: PeerId, now: float) -> None:
    """A joiner is done, or its stream closed: the next one's turn."""
    ctx.giving.desk.leave(peer, now)
    _tell(ctx)


def beat(ctx: Context, now: float) -> None:
    """Time has passed: the silent lose their places, states that nobody loads are let go."""
    ctx.giving.desk.expire(now)
    _tell(ctx)
    let_go(ctx, now)
    if len(ctx.giving.desk) or any(not each.common for each in ctx.giving.snapshots.values()):
        ctx.set_timer("donate", now + BEAT_S)


def _tell(ctx: Context) -> None:
    for peer, seal, place in ctx.giving.desk.news():
        ctx.push(peer, "state-queue", StateQueue(seal, place).encode())


def on_hashed(ctx: Context, seal: bytes) -> None:
    """A snapshot's tree is there: whoever has asked for chunks gets them."""
    donation = ctx.giving.snapshots.get(Hash(seal))
    if donation is not None:
        donation.hashed = True
        for sender in sorted(donation.waiting):
            _serve(ctx, donation, sender, donation.waiting[sender])
        donation.waiting.clear()


def _serve(ctx: Context, donation: Donation, sender: PeerId, indices: Iterable[int]) -> None:
    snapshot = donation.snapshot
    wanted = [index for index in indices if index < snapshot.chunks]
    if donation.hashed:
        for index in wanted:
            ctx.emit(Push(sender, "state", snapshot.chunk(index).encode(), bulk=True))
    elif wanted:
        before = donation.waiting.get(sender, [])
        donation.waiting[sender] = [*before, *wanted][:AT_ONCE]
        if not donation.hashing:
            donation.hashing = True
            ctx.work("snapshot", snapshot.head.seal, lambda: snapshot.tree)


def let_go(ctx: Context, now: float) -> None:
    """Common states go after some rounds, others when nobody has asked lately; what is being loaded stays for longer.

    However many are waited for, they are no more than fit into the rounds for which they are kept, and one; of small
    states also those that somebody is loading just now.
    """
    kept = ctx.setting.timing.snapshot
    common = {seal: each.snapshot.head.round for seal, each in ctx.giving.snapshots.items() if each.common}
    large = (COMMON_KEPT // COMMON + 1) * 8 * ctx.setting.values > COMMON_BYTES
    most = 2 if large else COMMON_KEPT // COMMON + 2
    oldest = max(common.values(), default=0) if large else ctx.head.round - COMMON_KEPT
    gone = [seal for seal, number in common.items() if number < oldest and not ctx.giving.desk.uses(seal)]
    busy = set() if large else {each.seal for each in ctx.giving.desk.served.values()}
    gone += [seal for seal in [seal for seal in common if seal not in gone][:-most] if seal not in busy]
    gone += [seal for seal, each in ctx.giving.snapshots.items() if not each.common and now - each.used > kept]
    left = [seal for seal in ctx.giving.snapshots if ctx.chain.position(seal) is None]
    for seal in {*gone, *left}:
        del ctx.giving.snapshots[seal]
