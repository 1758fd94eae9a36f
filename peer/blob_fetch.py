"""Fetching blobs: each from one provider at a time, several at once from different ones, until all are here.

A provider that lies, stalls, dies or crawls costs nothing but itself: what it sent stays where it may, and another
goes on. If a blob of several providers has the wrong hash, nobody knows whose fault it is: it is fetched again, and
this time from one alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dht.tasks import end
from protocols.blobs import BUSY, HERE, NONE, TURN, WAIT, AskBlob, Incoming
from protocols.errors import EnvironmentFault, RemoteError, TransportError
from protocols.ids import Hash, short

from .blobs import Damaged

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from dht.services import Service
    from dht.stream import FrameStream
    from protocols.ids import PeerId
    from protocols.manifest import ShardEntry

    from .blob_providers import Providers
    from .blobs import BlobStore, BlobWriter

log = logging.getLogger(__name__)

PROTOCOL = "/murmur/1/blob"
T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called with (bytes that are here, bytes in all)."""


class Caller(Protocol):
    """What is needed of the transport; ``dht.transport.StreamTransport`` has it."""

    def call(
        self, peer: PeerId, protocol: str, addresses: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[FrameStream]:
        """A greeted stream, closed when the block ends."""

    async def serve(self, protocol: str, service: Service) -> None:
        """Take streams of a protocol."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How much is asked of providers. Times in seconds."""

    parallel: int = 6
    """Providers at the same time."""
    stall_s: float = 20.0
    """Without a frame a provider is given up."""
    queue_s: float = 300.0
    """In a provider's queue."""
    slow_after_s: float = 10.0
    """After so long a blob is taken from a provider that crawls, if another can go on with it."""
    slow: float = 32 << 10
    """Bytes per second; less is crawling."""
    tick_s: float = 1.0
    """How often those who may have blobs are asked for anew."""
    disk_s: float = 5.0
    """Until the disk is tried again."""


class Crew:
    """Tasks, one for each provider, all of which end with it."""

    def __init__(self) -> None:
        self.tasks: dict[PeerId, asyncio.Task[Any]] = {}

    def hire(self, peer: PeerId, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Begin ``work`` with ``peer``."""
        self.tasks[peer] = asyncio.create_task(work, name=f"{name} {short(peer)}")

    async def wait(self, limit_s: float) -> list[Any]:
        """Results of those that end, at the latest after ``limit_s``; raises what one of them raised."""
        if not self.tasks:
            await asyncio.sleep(limit_s)
            return []
        done, _ = await asyncio.wait(self.tasks.values(), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        self.tasks = {peer: task for peer, task in self.tasks.items() if task not in done}
        return [task.result() for task in done if not task.cancelled()]

    async def dismiss(self) -> None:
        """Cancel and await all."""
        tasks, self.tasks = list(self.tasks.values()), {}
        await end(tasks)


@dataclass(slots=True, eq=False)
class _Job:
    """One blob that is wanted."""

    entry: ShardEntry
    here: int = 0
    """Bytes on the disk."""
    origins: set[PeerId | None] = field(default_factory=set)
    """Whose bytes these are; None: of an earlier start."""
    alone: bool = False
    """To be taken from one provider from its first byte on."""
    peer: PeerId | None = None
    """Who is asked for it now."""
    since: float = 0.0
    before: int = 0
    """When that began, and the bytes that were here then."""
    position: int = 0
    """In the provider's queue; 0 = not waiting."""


class Fetch:
    """One order of blobs. ``entries`` are of different hashes and pinned in the store, none of them is there."""

    def __init__(
        self,
        transport: Caller,
        store: BlobStore,
        providers: Providers,
        patience: Patience,
        entries: Sequence[ShardEntry],
        progress: Progress,
    ) -> None:
        self._transport, self._store, self._providers = transport, store, providers
        self._patience, self._progress = patience, progress
        self._jobs = {entry.hash: _Job(entry) for entry in entries}
        self._free = deque(self._jobs.values())
        self._count, self._total = len(self._jobs), sum(entry.bytes for entry in entries)
        self._here = 0
        self._crew = Crew()
        self._fault: EnvironmentFault | None = None
        self._rest_until = 0.0
        self._clock = asyncio.get_running_loop().time

    async def run(self, find: Callable[[], Mapping[PeerId, Sequence[str]]], first: Callable[[], Any]) -> None:
        """Until all are in the store. ``find`` tells who may have them and where, ``first`` whom to ask first.

        Raises ConfigError when a blob is larger than the store may become.
        """
        try:
            while self._jobs:
                self._employ(find(), first())
                await self._crew.wait(self._patience.tick_s)
                self._hand_over(find())
        finally:
            await self._crew.dismiss()

    def state(self) -> str:
        """One line for a person."""
        busy = [job for job in self._jobs.values() if job.peer is not None]
        done = self._count - len(self._jobs)
        text = f"{done} of {self._count} files, {self._here / 1e6:.1f} of {self._total / 1e6:.1f} MB"
        waiting = [job for job in busy if job.position]
        if self._fault is not None:
            return f"{text}; {self._fault}"
        if busy and len(waiting) == len(busy):
            return f"{text}; place {min(job.position for job in waiting)} in a queue"
        if busy:
            return f"{text}, from {len(busy)} peer{'s' * (len(busy) > 1)}"
        trouble = self._providers.trouble(self._clock())
        return f"{text}; {trouble}" if trouble else f"{text}; nobody here offers the rest yet"

    def _employ(self, found: Mapping[PeerId, Sequence[str]], first: Any) -> None:
        now = self._clock()
        if now < self._rest_until:
            return
        self._fault = None
        for peer in self._providers.ranked([each for each in found if each not in self._crew.tasks], now, first=first):
            if len(self._crew.tasks) >= self._patience.parallel:
                return
            job = self._claim(peer)
            if job is not None:
                self._crew.hire(peer, self._work(peer, found[peer], job), "blobs from")

    def _claim(self, peer: PeerId) -> _Job | None:
        """A blob that nobody is asked for and this provider may have; those begun come first."""
        now = self._clock()
        job = next((each for each in self._free if self._providers.may_have(peer, each.entry.hash, now)), None)
        if job is not None:
            self._free.remove(job)
            job.peer, job.since, job.before, job.position = peer, now, job.here, 0
        return job

    def _release(self, job: _Job) -> None:
        """Nobody is asked for it any more; it is wanted still unless it is here."""
        job.peer = None
        if job.entry.hash not in self._jobs:
            return
        if job.here:
            self._free.appendleft(job)
        else:
            self._free.append(job)

    async def _work(self, peer: PeerId, addresses: Sequence[str], job: _Job | None) -> None:
        """Take blobs from one provider while it has some that are wanted."""
        mine = job
        try:
            async with self._transport.call(peer, PROTOCOL, addresses) as stream:
                while mine is not None:
                    await self._take(stream, mine)
                    self._release(mine)
                    mine = self._claim(peer)
        except RemoteError as error:
            log.warning("no more blobs from %s", error)
            self._providers.lied(peer, self._clock(), str(error))
        except TransportError as error:
            log.info("%s", error)
            self._providers.failed(peer, self._clock(), str(error))
        except EnvironmentFault as error:
            self._fault, self._rest_until = error, self._clock() + self._patience.disk_s
        finally:
            if mine is not None:
                self._release(mine)

    async def _take(self, stream: FrameStream, job: _Job) -> None:
        """One blob, or as much of it as this provider sends."""
        writer = self._store.write(job.entry)
        try:
            if writer.offset and not job.origins:
                job.origins.add(None)
            if job.alone and job.origins != {stream.peer}:
                writer.restart()
            if not writer.offset:
                job.origins.clear()
            self._at(job, writer.offset)
            job.before = job.here
            while writer.offset < job.entry.bytes:
                if not await self._range(stream, job, writer):
                    return
            await in_thread(writer.finish)
        except Damaged as error:
            self._damaged(job, stream.peer, error)
        else:
            self._providers.delivered(stream.peer, job.entry.bytes)
            del self._jobs[job.entry.hash]
        finally:
            self._at(job, writer.offset)
            writer.close()

    def _damaged(self, job: _Job, peer: PeerId, error: Damaged) -> None:
        origins = set(job.origins)
        job.origins.clear()
        if origins == {peer}:
            raise RemoteError(peer, f"sent {error}") from error
        log.warning("%s, of several origins: fetched again, from one", error)
        job.alone = True
        for each in origins:
            if each is not None and each != peer:
                self._providers.failed(each, self._clock(), f"may have sent {error}")
        if peer in origins:
            raise TransportError(peer, f"may have sent {error}") from error

    async def _range(self, stream: FrameStream, job: _Job, writer: BlobWriter) -> bool:
        """Ask for the rest of a blob and write what comes; False when this provider has not got it."""
        entry, patience = job.entry, self._patience
        ask = AskBlob(Hash(bytes.fromhex(entry.hash)), writer.offset, entry.bytes - writer.offset)
        incoming = Incoming(ask, entry.bytes, stream.peer)
        await stream.send("ask-blob", [ask.encode()])
        until = self._clock() + patience.queue_s
        while incoming.left:
            came = incoming.take(*await next_frame(stream, patience.stall_s))
            if isinstance(came, bytes):
                job.origins.add(stream.peer)
                await in_thread(writer.append, came)
                self._at(job, writer.offset)
                continue
            job.position = came.position if came.word == WAIT else 0
            if came.word == NONE:
                self._providers.lacks(stream.peer, entry.hash, self._clock())
                return False
            if came.word == TURN:
                return True
            if came.word == BUSY or (came.word == WAIT and self._clock() > until):
                raise TransportError(stream.peer, f"serves {came.position} others before us")
            assert came.word in {HERE, WAIT}
        return True

    def _hand_over(self, found: Mapping[PeerId, Sequence[str]]) -> None:
        """Take a blob from the slowest provider if it crawls, nothing else is left, and another may be quicker."""
        if self._free:
            return
        now, busy = self._clock(), [job for job in self._jobs.values() if job.peer is not None]
        if not busy:
            return
        rates = {job: (job.here - job.before) / max(now - job.since, 1e-3) for job in busy}
        slowest = min(busy, key=lambda job: rates[job])
        peer, rate = slowest.peer, rates[slowest]
        assert peer is not None
        idle = [each for each in found if each not in self._crew.tasks]
        others = [each for each in self._providers.ranked(idle, now) if self._fits(each, slowest, now)]
        crawls = rate < self._patience.slow and (len(busy) == 1 or rate < sum(rates.values()) / len(rates) / 2)
        if others and crawls and now - slowest.since > self._patience.slow_after_s:
            log.info("%s sends %.1f kB/s: another goes on", peer, rate / 1e3)
            self._providers.failed(peer, now, f"{peer}: sends {rate / 1e3:.1f} kB/s")
            self._crew.tasks[peer].cancel()

    def _fits(self, peer: PeerId, job: _Job, now: float) -> bool:
        return self._providers.may_have(peer, job.entry.hash, now)

    def _at(self, job: _Job, here: int) -> None:
        """So much of it is on the disk now."""
        self._here += here - job.here
        job.here = here
        self._progress(self._here, self._total)


async def next_frame(stream: FrameStream, limit_s: float) -> tuple[str, bytes]:
    """The next frame; raises TransportError when there is none for ``limit_s``, RemoteError."""
    try:
        async with asyncio.timeout(limit_s):
            return await stream.receive()
    except TimeoutError as error:
        raise TransportError(stream.peer, f"sent nothing for {limit_s:.0f} s") from error


async def in_thread(call: Callable[..., T], *args: Any) -> T:
    """Run a call that blocks; when cancelled, only after it has ended: what it works on may be closed then."""
    task = asyncio.ensure_future(asyncio.to_thread(call, *args))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
        raise
