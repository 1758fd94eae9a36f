"""A joiner's side of a state transfer: the state of a verified head, in chunks from its neighbours (protocol.md 6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import RemoteError
from ..state_payloads import WantState
from . import donating
from .donating import AT_ONCE, BEAT_S
from .links import Branch
from .transfer import Download

if TYPE_CHECKING:
    from ..ids import PeerId
    from ..state_payloads import StateChunk
    from .chain import Head
    from .context import Context

STALLED_S = 20.0
"""A transfer without progress for this long is given up."""
LIED_S = 300.0
"""A donor whose chain or chunk was none is not asked again for this long."""
LIARS_KEPT = 64


@dataclass
class Sync:
    """A transfer in progress: first the chain from ``peer``, then the state of the branch's last seal."""

    peer: PeerId
    progress: float
    start: Head | None = None
    branch: Branch = Branch(())
    download: Download | None = None
    asked: dict[int, float] = field(default_factory=dict)


def load(ctx: Context, target: Head, now: float) -> None:
    """Begin to load the state of the verified ``target``, which the transfer in progress leads to."""
    assert ctx.sync is not None
    ctx.sync.download = Download(target, ctx.setting.values)
    _request(ctx, ctx.sync, ctx.sync.peer, now)


def on_chunk(ctx: Context, sender: PeerId, chunk: StateChunk, now: float) -> bool:
    """A chunk of the state; whether it was the last one."""
    sync = ctx.sync
    if sync is None or sync.download is None or chunk.seal != sync.download.head.seal:
        return False
    try:
        sync.download.add(sender, chunk.index, chunk.data, chunk.path)
    except RemoteError:
        lied(ctx, sender, now)
        raise
    sync.asked.pop(chunk.index, None)
    sync.progress = now
    if not sync.download.complete:
        _request(ctx, sync, sender, now)
    return sync.download.complete


def beat(ctx: Context, now: float) -> None:
    """Ask again for chunks that did not come, of the next neighbour; give up what stands still."""
    donating.let_go(ctx, now)
    if ctx.snapshots:
        ctx.set_timer("sync", now + BEAT_S)
    sync = ctx.sync
    if sync is None:
        return
    if now - sync.progress >= STALLED_S:
        ctx.sync = None
        return
    ctx.set_timer("sync", now + BEAT_S)
    if sync.download is not None:
        sync.asked = {index: at for index, at in sync.asked.items() if now - at < 2 * BEAT_S}
        donors = [sync.peer, *sorted(ctx.neighbours - {sync.peer})]
        _request(ctx, sync, donors[ctx.talk.beats % len(donors)], now)


def lied(ctx: Context, donor: PeerId, now: float) -> None:
    """Ask others for a while."""
    ctx.sync = None
    ctx.lied[donor] = now
    while len(ctx.lied) > LIARS_KEPT:
        del ctx.lied[next(iter(ctx.lied))]


def _request(ctx: Context, sync: Sync, donor: PeerId, now: float) -> None:
    assert sync.download is not None
    room = AT_ONCE - len(sync.asked)
    indices = sync.download.missing(room, sync.asked) if room > 0 else []
    if indices:
        sync.asked.update(dict.fromkeys(indices, now))
        ctx.push(donor, "want-state", WantState(sync.download.head.seal, tuple(indices)).encode())
