"""What is to be sent to each neighbour, by one task each: in order, and bulk only while it holds up no round."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from protocols.errors import TransportError
from protocols.ids import PeerId, short
from protocols.ports import Buffer, Transport

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

log = logging.getLogger(__name__)

QUEUE_FRAMES = 4096
"""Frames waiting for one neighbour; one that reads slower than this is let go of until it reconnects."""
QUEUE_BYTES = 64 << 20
"""Bytes waiting for one neighbour; never less than this, see ``Limits.of``."""
QUEUE_UPDATES = 3
"""The same in encoded updates: an honest peer's own one, results, and a state on the way to a newcomer."""
BULK_FRAMES = 16
"""Bulk frames waiting for one neighbour: it asks for no more than half of it, what is beyond these is dropped."""
HOLD_S = 1.0
"""While a round is held up by nothing but bulk, one bulk frame goes out in this time, so that none waits for ever."""
QUIET_S = 0.25
"""For so long after a flooded statement a round is being made, and its next bytes may come at once."""
ROUND_KINDS = frozenset({"parts", "results"})
ALL_QUEUES = 4
"""Bytes waiting for all neighbours together, in full queues: most of what waits is shared between them."""

_Key: TypeAlias = tuple[int, int]
"""Identity and size of a buffer: unique while somebody holds it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes that may wait for one neighbour, and for all together."""

    each: int = QUEUE_BYTES
    all: int = ALL_QUEUES * QUEUE_BYTES

    @classmethod
    def of(cls, update: int) -> Limits:
        """For a run whose encoded update has so many bytes."""
        each = max(QUEUE_BYTES, QUEUE_UPDATES * update)
        return cls(each, ALL_QUEUES * each)


class Streams(Transport, Protocol):
    """What an outbox needs of a transport."""

    def reopen(self, peer: PeerId, reason: str) -> None:
        """Drop the stream to ``peer`` with all that waits in it and open a new one: ``peer`` goes and comes again."""


class _Held:
    """Bytes that frames keep in memory: a buffer that several of them refer to counts once."""

    def __init__(self, total: _Held | None = None) -> None:
        """Whatever is held here is held in ``total`` too."""
        self.bytes = 0
        self._uses: dict[_Key, int] = {}
        self._total = total

    def take(self, keys: Iterable[_Key]) -> None:
        """A frame of these buffers waits."""
        for key in keys:
            uses = self._uses[key] = self._uses.get(key, 0) + 1
            if uses == 1:
                self.bytes += key[1]
                if self._total is not None:
                    self._total.take((key,))

    def give(self, keys: Iterable[_Key]) -> None:
        """It waits no more."""
        for key in keys:
            self._uses[key] -= 1
            if not self._uses[key]:
                del self._uses[key]
                self.bytes -= key[1]
                if self._total is not None:
                    self._total.give((key,))


@dataclass(frozen=True, slots=True)
class _Frame:
    kind: str
    payload: Sequence[Buffer]
    keys: tuple[_Key, ...]
    bulk: bool

    @property
    def urgent(self) -> bool:
        """Whether it carries bytes of a round."""
        return self.kind in ROUND_KINDS and not self.bulk


@dataclass(slots=True)
class _Line:
    """One neighbour's queue, and what it keeps in memory: the frame being sent included."""

    held: _Held
    first: deque[_Frame] = field(default_factory=deque)
    bulk: deque[_Frame] = field(default_factory=deque)
    held_back: float | None = None
    """Since when its bulk waits for rounds; what else is sent to it meanwhile does not matter."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    """Something came, or nothing holds bulk back any more."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing waits, and nothing is being sent."""
    task: asyncio.Task[None] | None = None

    def put(self, frame: _Frame) -> None:
        """A frame waits."""
        self.held.take(frame.keys)
        (self.bulk if frame.bulk else self.first).append(frame)
        self.idle.clear()
        self.wake.set()


class Outbox:
    """Two queues and a sender task per neighbour. Buffers are referenced, not copied: they must not change.

    Bulk goes to a neighbour when nothing else waits for it, and when no round is being made: while bytes of one wait
    for any neighbour, or statements are flooded, one bulk frame a second goes out at most. They all share one line.

    A neighbour that reads too slowly loses what waits for it and gets a new stream, upon which it knows nothing.
    """

    def __init__(self, transport: Streams, limits: Limits | None = None) -> None:
        self._transport = transport
        self._limits = limits or Limits()
        self._held = _Held()
        self._lines: dict[PeerId, _Line] = {}
        self._leaving: frozenset[PeerId] = frozenset()  # let go of, and still on their old stream
        self._ending: set[asyncio.Task[None]] = set()
        self._urgent = 0  # frames with bytes of a round that wait or are being sent
        self._flooded = self._forced = -math.inf  # when a statement was, and a bulk frame in spite of a round
        self._calm = asyncio.Event()  # there are none
        self._calm.set()

    @property
    def waiting(self) -> int:
        """Bytes that wait for all neighbours, a buffer that waits for several counted once."""
        return self._held.bytes

    def connect(self, neighbours: frozenset[PeerId]) -> tuple[list[PeerId], list[PeerId]]:
        """Serve exactly these neighbours from now on: (those on a new stream, who know nothing yet; those who left)."""
        gone = sorted((self._lines.keys() | self._leaving) - neighbours)
        for peer in gone:
            self._drop(peer)
        self._leaving &= neighbours
        arrived = sorted(neighbours - self._lines.keys() - self._leaving)
        for peer in arrived:
            line = self._lines[peer] = _Line(_Held(self._held))
            line.idle.set()
            line.task = asyncio.create_task(self._serve(peer, line), name=f"outbox {short(peer)}")
        return arrived, gone

    def post(self, to: PeerId, kind: str, payload: Sequence[Buffer], *, bulk: bool = False) -> None:
        """Queue a frame; one for a peer that is no neighbour is dropped, it will be told when it connects."""
        line = self._lines.get(to)
        if line is None or (bulk and len(line.bulk) >= BULK_FRAMES):
            return
        if len(line.first) >= QUEUE_FRAMES:
            self.let_go(to, f"reads too slowly, {QUEUE_FRAMES} frames wait")
            return
        frame = _Frame(kind, payload, tuple(_keys(payload)), bulk)
        self._urgent += frame.urgent
        if self._urgent:
            self._calm.clear()
        line.put(frame)
        if line.held.bytes > self._limits.each:
            self.let_go(to, f"reads too slowly, more than {self._limits.each >> 20} MiB wait")
        elif self._held.bytes > self._limits.all:
            slowest = max(self._lines, key=lambda peer: self._lines[peer].held.bytes)
            most = self._lines[slowest].held.bytes >> 20
            self.let_go(slowest, f"reads slowest, {most} of {self._limits.all >> 20} MiB for all wait for it")

    def flood(self, kind: str, payload: Sequence[Buffer], source: PeerId | None) -> None:
        """Queue a frame for every neighbour but ``source``."""
        self._flooded = asyncio.get_running_loop().time()
        for peer in list(self._lines):
            if peer != source:
                self.post(peer, kind, payload)

    def let_go(self, peer: PeerId, reason: str) -> None:
        """Drop what waits for a neighbour and reopen its stream, upon which ``connect`` returns it as new."""
        if peer in self._lines:
            self._drop(peer)
            self._leaving |= {peer}
            self._transport.reopen(peer, reason)

    async def drained(self) -> None:
        """Wait until everything queued was handed to the transport or given up; the caller sets the deadline."""
        await asyncio.gather(*(line.idle.wait() for line in self._lines.values()))

    async def calm(self) -> None:
        """Wait until no bytes of a round wait, for ``HOLD_S`` at most: for what is sent beside this outbox."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                await self._calm.wait()

    async def close(self) -> None:
        """Cancel and await every sender."""
        for peer in list(self._lines):
            self._drop(peer)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _drop(self, peer: PeerId) -> None:
        line = self._lines.pop(peer, None)
        if line is None:
            return
        if line.task is not None:
            line.task.cancel()
            self._ending.add(line.task)
            line.task.add_done_callback(self._ending.discard)
        for frame in (*line.first, *line.bulk):
            self._done(line, frame)
        line.first.clear()
        line.bulk.clear()
        line.idle.set()  # whoever waits in ``drained`` need not wait for these

    def _done(self, line: _Line, frame: _Frame) -> None:
        """A frame that was taken out is sent or given up."""
        line.held.give(frame.keys)
        if frame.urgent:
            self._urgent -= 1
            if not self._urgent:
                self._calm.set()
                for each in self._lines.values():
                    each.wake.set()

    async def _next(self, line: _Line) -> _Frame:
        """The frame that is to be sent now, once there is one."""
        loop = asyncio.get_running_loop()
        while True:
            line.wake.clear()
            now = loop.time()
            if line.bulk and line.held_back is None:
                line.held_back = now
            if line.first:
                return line.first.popleft()
            if line.held_back is not None:
                calm = self._flooded + QUIET_S
                due = max(line.held_back, self._forced) + HOLD_S
                at_rest = not self._urgent and now >= calm
                if at_rest or now >= due:
                    self._forced = self._forced if at_rest else now
                    line.held_back = None
                    return line.bulk.popleft()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due if self._urgent else min(due, calm)):
                        await line.wake.wait()
            else:
                line.idle.set()
                await line.wake.wait()

    async def _serve(self, peer: PeerId, line: _Line) -> None:
        while True:
            frame = await self._next(line)
            try:
                await self._transport.send(peer, frame.kind, frame.payload)
            except TransportError as error:
                log.debug("%s frame not sent: %s", frame.kind, error)
            except Exception:  # a defect, such as a frame over its limit: it must be seen, and the next ones sent
                log.exception("a %s frame to %s could not be sent", frame.kind, short(peer))
            finally:
                self._done(line, frame)


def _keys(payload: Sequence[Buffer]) -> Iterable[_Key]:
    return ((id(buffer), memoryview(buffer).nbytes) for buffer in payload if len(buffer))
