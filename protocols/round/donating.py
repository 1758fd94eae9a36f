"""A donor's side of a state transfer: frozen states, served in chunks while this peer trains on (protocol.md 6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..ids import Hash
from .effects import Push
from .transfer import Snapshot

if TYPE_CHECKING:
    from ..ids import PeerId
    from ..state_payloads import WantState
    from .context import Context

SNAPSHOTS = 2
"""States a donor keeps for those who are loading them."""
AT_ONCE = 8
"""Chunks of one request."""
BEAT_S = 2.0
"""Between two looks at a transfer, on either side."""


@dataclass
class Donation:
    """A state that is kept for those who are loading it; ``waiting`` for its tree, one request for each peer."""

    snapshot: Snapshot
    used: float
    member: bool
    hashed: bool = False
    waiting: dict[PeerId, WantState] = field(default_factory=dict)


def offer(ctx: Context, sender: PeerId, now: float) -> None:
    """Somebody was shown the head: keep its state for a while."""
    if ctx.head.seal not in ctx.snapshots:
        let_go(ctx, now)
        _donate(ctx, sender, now)


def _donate(ctx: Context, sender: PeerId, now: float) -> Donation | None:
    """Keep the head's state for somebody, where there is room; members come before strangers, whose keys are free."""
    member = sender in ctx.head.table.members
    if len(ctx.snapshots) >= SNAPSHOTS:
        of_strangers = [seal for seal, each in ctx.snapshots.items() if not each.member]
        if not member or not of_strangers:
            return None
        del ctx.snapshots[of_strangers[0]]
    ctx.set_timer("sync", now + BEAT_S, sooner=True)
    donation = Donation(Snapshot(ctx.head, ctx.params, ctx.momentum), now, member)
    ctx.snapshots[ctx.head.seal] = donation
    return donation


def on_want_state(ctx: Context, sender: PeerId, want: WantState, now: float) -> None:
    """Serve chunks of the head's state, or of one that somebody is loading, once its tree is hashed."""
    let_go(ctx, now)
    donation = ctx.snapshots.get(want.seal)
    if donation is None and want.seal == ctx.head.seal:
        donation = _donate(ctx, sender, now)
    if donation is None:
        return
    donation.used = now
    donation.member |= sender in ctx.head.table.members
    if donation.hashed:
        _serve(ctx, donation, sender, want)
        return
    if not donation.waiting:
        snapshot = donation.snapshot
        ctx.work("snapshot", want.seal, lambda: snapshot.tree)
    donation.waiting[sender] = want


def on_hashed(ctx: Context, seal: bytes) -> None:
    """A snapshot's tree is there: whoever has asked for chunks gets them."""
    donation = ctx.snapshots.get(Hash(seal))
    if donation is not None:
        donation.hashed = True
        for sender in sorted(donation.waiting):
            _serve(ctx, donation, sender, donation.waiting[sender])
        donation.waiting.clear()


def _serve(ctx: Context, donation: Donation, sender: PeerId, want: WantState) -> None:
    for index in want.indices[:AT_ONCE]:
        if index < donation.snapshot.chunks:
            ctx.emit(Push(sender, "state", donation.snapshot.chunk(index).encode()))


def let_go(ctx: Context, now: float) -> None:
    """States that nobody has asked for lately are not kept for longer."""
    kept = ctx.setting.timing.snapshot
    for seal in [seal for seal, each in ctx.snapshots.items() if now - each.used > kept]:
        del ctx.snapshots[seal]
