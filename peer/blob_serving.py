"""Serving blobs and the manifest: so many at once and of each peer, the others in a queue that tells their place."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dht.limits import PATIENCE, Buckets
from protocols.blobs import BUSY, HERE, NONE, TURN, WAIT, AskBlob, Reply, encode_manifest, needed_blobs
from protocols.errors import EnvironmentFault, RemoteError, TransportError
from protocols.manifest_text import parse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection
    from pathlib import Path

    from dht.stream import FrameStream
    from protocols.ids import PeerId
    from protocols.manifest import ShardEntry
    from protocols.ports import Buffer

    from .blobs import BlobStore

log = logging.getLogger(__name__)

PIECE = 256 << 10
"""Bytes read from the disk and sent at a time: what one request holds in memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What peers may take of this one at the same time; times in seconds."""

    at_once: int = 8
    """Requests that are answered at the same time."""
    strangers: int = 6
    """Of those, for peers that are no members."""
    each: int = 2
    """Of one peer."""
    waiting: int = 64
    """Requests in the queue."""
    waiting_each: int = 2
    turn_s: float = 10.0
    """While others wait, a request is answered for so long, and then comes last."""
    tell_s: float = 5.0
    """Between two words about the place in the queue."""
    send_s: float = 30.0
    """For one piece to be taken."""
    idle_s: float = 60.0
    """Without a request a stream is closed."""


class Queue:
    """Who is served now and who comes next, in the order of asking but for peers that have their share."""

    def __init__(self, limits: Limits, members: Callable[[], Collection[PeerId]]) -> None:
        self._limits, self._members = limits, members
        self._served: Counter[PeerId] = Counter()
        self._waiting: dict[asyncio.Future[None], PeerId] = {}
        self.refused = 0
        """Requests that found the queue full."""

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    @property
    def serving(self) -> int:
        """How many are answered now."""
        return self._served.total()

    @contextlib.asynccontextmanager
    async def turn(self, peer: PeerId, tell: Callable[[int], Awaitable[None]]) -> AsyncIterator[bool]:
        """Wait for ``peer``'s turn, ``tell`` its place now and then; False when the queue is full."""
        if sum(each == peer for each in self._waiting.values()) >= self._limits.waiting_each or (
            len(self) >= self._limits.waiting
        ):
            self.refused += 1
            yield False
            return
        await self._wait(peer, tell)
        try:
            yield True
        finally:
            self._served[peer] -= 1
            if not self._served[peer]:
                del self._served[peer]
            self._next()

    async def _wait(self, peer: PeerId, tell: Callable[[int], Awaitable[None]]) -> None:
        """Returns with one more of ``peer`` counted as served."""
        called = asyncio.get_running_loop().create_future()
        self._waiting[called] = peer
        self._next()
        try:
            while not called.done():
                await tell(1 + list(self._waiting).index(called))
                await asyncio.wait({called}, timeout=self._limits.tell_s)
        except BaseException:
            if called.done():
                self._served[peer] -= 1
            self._waiting.pop(called, None)
            self._next()
            raise

    def _next(self) -> None:
        members = self._members()
        for called, peer in list(self._waiting.items()):
            if self.serving >= self._limits.at_once:
                return
            strangers = sum(count for each, count in self._served.items() if each not in members)
            if self._served[peer] >= self._limits.each or (peer not in members and strangers >= self._limits.strangers):
                continue
            del self._waiting[called]
            self._served[peer] += 1
            called.set_result(None)


class BlobServer:
    """Answers requests on streams of the blob protocol: what the served run names, and its manifest, nothing else."""

    def __init__(
        self,
        store: BlobStore,
        run: bytes,
        manifest_text: Callable[[], str | None],
        *,
        members: Callable[[], Collection[PeerId]] = tuple,
        limits: Limits | None = None,
    ) -> None:
        self._store, self._run, self._manifest_text = store, run, manifest_text
        self._limits = limits or Limits()
        self.queue = Queue(self._limits, members)
        self._text: str | None = None
        self._frame: list[Buffer] = []
        self._named: dict[bytes, ShardEntry] = {}
        self.hold: Callable[[], Awaitable[None]] | None = None
        """Awaited before each piece: returns when the line is free, or after a while for a trickle."""
        self._gate = asyncio.Lock()
        self.unknown = 0
        """Requests for what the run does not name."""
        self._patience: Buckets[PeerId] = Buckets(PATIENCE)

    async def serve(self, stream: FrameStream) -> None:
        """Answer one stream until its peer has enough; raises RemoteError, TransportError."""
        while True:
            try:
                async with asyncio.timeout(self._limits.idle_s):
                    kind, payload = await stream.receive()
            except TimeoutError:
                return
            if kind != "ask-blob":
                raise RemoteError(stream.peer, f"a {kind} frame in place of a request for a blob")
            await self._answer(stream, AskBlob.decode(payload, sender=stream.peer))

    async def _answer(self, stream: FrameStream, ask: AskBlob) -> None:
        await self._learn()
        entry = self._named.get(ask.hash)
        if ask.hash != self._run and entry is None:
            await self._deny(stream)
            return
        if entry is not None and ask.offset >= entry.bytes:
            raise RemoteError(stream.peer, f"asks for byte {ask.offset} of a blob of {entry.bytes}")

        async def tell(position: int) -> None:
            await self._say(stream, Reply(WAIT, position=position))

        async with self.queue.turn(stream.peer, tell) as called:
            if not called:
                await self._say(stream, Reply(BUSY, position=len(self.queue)))
            elif entry is None:
                await self._send_manifest(stream)
            else:
                await self._send_blob(stream, entry, ask)

    async def _deny(self, stream: FrameStream) -> None:
        """A hash that the run does not name. Whoever knows the manifest asks for none; before we do, anybody may."""
        self.unknown += 1
        now = asyncio.get_running_loop().time()
        if self._text is not None and not self._patience.take(stream.peer, now):
            raise RemoteError(stream.peer, "goes on asking for blobs that the run does not name")
        await self._say(stream, Reply(NONE))

    async def _learn(self) -> None:
        """Keep up with the manifest that is served; parsed once."""
        text = self._manifest_text()
        if text is None or text == self._text:
            return
        manifest = await asyncio.to_thread(parse, text)
        self._frame = encode_manifest(manifest)
        self._named = {bytes.fromhex(entry.hash): entry for entry in needed_blobs(manifest)}
        self._text = text

    async def _send_manifest(self, stream: FrameStream) -> None:
        if self._frame:
            await self._send(stream, "manifest", self._frame)
        else:
            await self._say(stream, Reply(NONE))

    async def _send_blob(self, stream: FrameStream, entry: ShardEntry, ask: AskBlob) -> None:
        path = await asyncio.to_thread(self._find, entry)
        if path is None:
            await self._say(stream, Reply(NONE))
            return
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # it has just made room for another
            await self._say(stream, Reply(NONE))
            return
        try:
            await self._say(stream, Reply(HERE, size=entry.bytes))
            at, end = ask.offset, min(entry.bytes, ask.offset + ask.length)
            until = asyncio.get_running_loop().time() + self._limits.turn_s
            while at < end:
                if at > ask.offset and len(self.queue) and asyncio.get_running_loop().time() >= until:
                    await self._say(stream, Reply(TURN))
                    return
                if self.hold is not None:
                    async with self._gate:  # one piece of all requests together, when it has to be held
                        await self.hold()
                piece = await asyncio.to_thread(os.pread, file, min(PIECE, end - at), at)
                if not piece:
                    raise TransportError(stream.peer, f"the file of {entry.hash[:16]} was cut short while it was sent")
                await self._send(stream, "bytes", [piece])
                at += len(piece)
        finally:
            os.close(file)

    def _find(self, entry: ShardEntry) -> Path | None:
        try:
            return self._store.path(entry)
        except EnvironmentFault as error:
            log.warning("cannot serve the blob %s: %s", entry.hash[:16], error)
            return None

    async def _say(self, stream: FrameStream, reply: Reply) -> None:
        await self._send(stream, "blob", [reply.encode()])

    async def _send(self, stream: FrameStream, kind: str, payload: list[Buffer]) -> None:
        try:
            async with asyncio.timeout(self._limits.send_s):
                await stream.send(kind, payload)
        except TimeoutError as error:
            raise TransportError(stream.peer, f"took no piece of a blob for {self._limits.send_s:.0f} s") from error
