"""Peers of one process for the tests of blobs: a call is a pair of joined sockets with a FrameStream at each end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

from dht.handshake import Hello
from dht.services import attend, calling
from dht.stream import Counter as Bytes
from dht.stream import FrameStream, Timing
from peer import corpus
from peer.identity import Identity
from protocols.blobs import HERE, AskBlob, Reply
from protocols.errors import RemoteError, TransportError
from protocols.manifest import render, run_id, sign
from protocols.manifest_defaults import Choices, default_manifest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from dht.services import Service
    from protocols.ids import PeerId
    from protocols.manifest import Manifest, ShardEntry

FOUNDER = Identity.from_seed(bytes(32))
PEERS = [Identity.from_seed(bytes([number]) * 32).peer for number in range(1, 9)]
TIMING = Timing(goodbye_s=0.2)


def manifest_of(shards: Sequence[ShardEntry] = corpus.SHARDS[:1]) -> Manifest:
    """A signed run with this data."""
    return sign(default_manifest(Choices(), founders=[FOUNDER.peer], shards=shards), FOUNDER.peer, FOUNDER.sign)


def text_of(manifest: Manifest) -> str:
    """What its file holds."""
    return render(manifest)


class Wire:
    """All peers; ``services`` are those that answer, and ``calls`` how often each was called."""

    def __init__(self, manifest: Manifest) -> None:
        self.run = run_id(manifest)
        self.services: dict[PeerId, Service] = {}
        self.calls: Counter[PeerId] = Counter()
        self.hang_ups: list[RemoteError] = []
        self._streams: dict[PeerId, set[FrameStream]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def found(self) -> Mapping[PeerId, Sequence[str]]:
        """Everybody who answers, as a directory would tell."""
        return dict.fromkeys(self.services, ())

    def kill(self, peer: PeerId) -> None:
        """This peer is gone, and its streams with it."""
        del self.services[peer]
        for stream in self._streams.get(peer, ()):
            stream.abort("killed")

    async def close(self) -> None:
        """End everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def answer(self, peer: PeerId, stream: FrameStream) -> None:
        """Serve one stream as ``peer``, as the transport does."""
        self._streams.setdefault(peer, set()).add(stream)
        try:
            await stream.listen()
            await stream.say(Hello(self.run, "test"))
            await attend(stream, self.services[peer])
        except RemoteError as error:
            self.hang_ups.append(error)
        except (TransportError, KeyError):
            pass
        finally:
            self._streams[peer].discard(stream)
            stream.abort("closed")

    async def join(self, caller: PeerId, peer: PeerId) -> FrameStream:
        """The caller's end of a stream to ``peer``, not greeted yet."""
        ours, theirs = socket.socketpair()
        ends = [await asyncio.open_connection(sock=each) for each in (ours, theirs)]
        near, far = (
            FrameStream(other, end, run=self.run, timing=TIMING, counter=Bytes())
            for other, end in zip((peer, caller), ends, strict=True)
        )
        task = asyncio.create_task(self.answer(peer, far))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return near


class End:
    """One peer's side of the wire: ``peer.blob_fetch.Caller``."""

    def __init__(self, wire: Wire, me: PeerId) -> None:
        self._wire, self.me = wire, me

    async def serve(self, protocol: str, service: Service) -> None:
        """Answer calls."""
        del protocol
        self._wire.services[self.me] = service

    @contextlib.asynccontextmanager
    async def call(self, peer: PeerId, protocol: str, addresses: Sequence[str] = ()) -> AsyncIterator[FrameStream]:
        """A greeted stream."""
        del protocol, addresses
        self._wire.calls[peer] += 1
        if peer not in self._wire.services:
            raise TransportError(peer, "cannot be reached")
        async with calling(await self._wire.join(self.me, peer), Hello(self._wire.run, "test")) as stream:
            yield stream


async def until(condition: Callable[[], bool], running: asyncio.Task[Any]) -> None:
    """Wait for ``condition`` while a task runs that has to bring it about."""
    while not condition():
        await asyncio.wait({running}, timeout=0.01)
        assert condition() or not running.done()


class Donor:
    """A provider that a test writes: what it was asked, and how it answers."""

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        self.blobs = dict(blobs)
        self.asked: list[tuple[str, int]] = []
        """(hash, offset) of each request."""

    async def __call__(self, stream: FrameStream) -> None:
        """Serve one stream."""
        while True:
            _, payload = await stream.receive()
            ask = AskBlob.decode(payload, sender=stream.peer)
            self.asked.append((ask.hash.hex(), ask.offset))
            if not await self.answer(stream, self.blobs[ask.hash.hex()], ask.offset):
                return

    async def answer(self, stream: FrameStream, raw: bytes, offset: int) -> bool:
        """One reply; False ends the stream. This one is honest."""
        await self.say(stream, Reply(HERE, size=len(raw)))
        await self.pour(stream, raw[offset:])
        return True

    @staticmethod
    async def say(stream: FrameStream, reply: Reply) -> None:
        """One word."""
        await stream.send("blob", [reply.encode()])

    @staticmethod
    async def pour(stream: FrameStream, raw: bytes, piece: int = 64 << 10) -> None:
        """Bytes, piece by piece."""
        for start in range(0, len(raw), piece):
            await stream.send("bytes", [raw[start : start + piece]])
