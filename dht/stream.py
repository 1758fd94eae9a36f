"""One stream to one peer: handshake, frames both ways, heartbeat. Works on any asyncio reader and writer.

p2pd drops what is still under way when the side that wrote it closes first. So whoever wants its last words heard
waits until the other side has closed: after a refusal, and after the goodbye (an empty ``hello`` frame).

Buffers given to ``send`` must not change until the peer has acted on them: uvloop keeps references to what
is written, and ``drain`` returning does not mean "sent".
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from protocols.errors import LocalError, RemoteError, TransportError
from protocols.frames import HEADER_LIMIT, PAYLOAD_LIMITS, Header, decode_header, encode_header

from .handshake import HELLO_LIMIT, Hello, decode_hello, encode_hello
from .limits import HELLO_S
from .rooms import ROOMS
from .straight import receive_into

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from protocols.ids import PeerId
    from protocols.ports import Buffer

Ends: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CHUNK = 256 * 1024
"""Payload bytes that must arrive within ``Timing.silent_s``."""

_STRAIGHT = frozenset({"parts", "results"})
"""Kinds of frames whose bytes stay where they were received until the round is over: u32 length, head, numbers."""
_LENGTH, _ALIGNED = 4, 16

_BROKEN = (OSError, asyncio.IncompleteReadError, EOFError)


@dataclass(frozen=True, slots=True)
class Timing:
    """Deadlines and pauses, seconds."""

    dial_s: float = 10.0
    """To reach a peer and open a stream."""
    handshake_s: float = HELLO_S
    ping_s: float = 5.0
    """Between heartbeats."""
    silent_s: float = 30.0
    """Without a byte from the peer, the stream is dead (libp2p notices after 39.5 s)."""
    send_s: float = 60.0
    """For one frame to be taken, waiting for earlier ones included."""
    goodbye_s: float = 2.0
    """For the other side to close."""
    first_retry_s: float = 0.5
    """p2pd, when a dial is refused, does not dial again for 5 s and more: give the other's time to restart."""
    last_retry_s: float = 15.0
    refused_retry_s: float = 120.0
    """After a refusal: the other side will hardly have changed its run or version."""
    give_up_s: float = 600.0
    """Without success for so long, a peer that nobody asked for again is forgotten."""


class Counter:
    """Bytes that crossed, headers and payloads: of one stream, of all with one peer, or of all."""

    __slots__ = ("_total", "received", "sent")

    def __init__(self, total: Counter | None = None) -> None:
        """Whatever is added is added to ``total`` too."""
        self.sent = 0
        self.received = 0
        self._total = total

    def add(self, *, sent: int = 0, received: int = 0) -> None:
        """Bytes crossed."""
        self.take(sent, received)
        if self._total is not None:
            self._total.add(sent=sent, received=received)

    def take(self, sent: int, received: int) -> None:
        """Bytes crossed that the total already holds."""
        self.sent += sent
        self.received += received


class FrameStream:
    """Frames of one run on an open stream. Every wait has a deadline; every failure is a TransportError."""

    def __init__(
        self,
        peer: PeerId,
        ends: Ends,
        *,
        run: bytes,
        timing: Timing,
        counter: Counter,
        pace: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """``pace`` is awaited with a frame's size before its payload is read: it slows whoever sends too much."""
        self.peer = peer
        self._reader, self._writer = ends
        self._run = run
        self._timing = timing
        self.counter = counter
        self.address = ""
        """Where the peer is, as a multiaddr, on a stream that it opened; "" when that is not known."""
        self._pace = pace
        self._lock = asyncio.Lock()
        self._clock = asyncio.get_running_loop().time
        self._waiting: float | None = None  # since when we wait for bytes; None while a frame is handled
        self._verdict = ""

    async def greet(self, own: Hello) -> Hello:
        """Send our hello and read the peer's; raises TransportError, RemoteError."""
        await self.say(own)
        return await self.listen()

    async def say(self, hello: Hello) -> None:
        """Send one hello."""
        try:
            async with asyncio.timeout(self._timing.handshake_s):
                await self._write([raw := encode_hello(hello)], len(raw))
        except TimeoutError as error:
            raise TransportError(self.peer, "did not take our hello in time") from error

    async def listen(self) -> Hello:
        """Read one hello."""
        try:
            async with asyncio.timeout(self._timing.handshake_s):
                return decode_hello(await self._prefixed(HELLO_LIMIT, "hello"), peer=self.peer)
        except TimeoutError as error:
            raise TransportError(self.peer, "sent no hello in time") from error

    async def send(self, kind: str, payload: Sequence[Buffer]) -> None:
        """Write one frame; returns when the stream's buffer has room again. Raises TransportError, LocalError."""
        size = sum(memoryview(part).nbytes for part in payload)
        if size > PAYLOAD_LIMITS.get(kind, -1):
            raise LocalError(f"{kind} frame of {size} bytes, limit {PAYLOAD_LIMITS.get(kind)}")
        header = encode_header(Header(kind, self._run, size))
        try:
            async with asyncio.timeout(self._timing.send_s), self._lock:
                if self._verdict:
                    raise TransportError(self.peer, self._verdict)
                await self._write([header, *payload], len(header) + size)
        except TimeoutError as error:
            self.abort(f"took no frame for {self._timing.send_s:.0f} s")
            raise TransportError(self.peer, self._verdict) from error
        except TransportError:
            self.abort("the stream broke")
            raise

    async def receive(self) -> tuple[str, bytes]:
        """The next frame that is not a ping: (kind, payload). Raises TransportError, RemoteError.

        A large payload of ``_STRAIGHT`` kinds is a read-only memoryview.
        """
        while True:
            raw = await self._prefixed(HEADER_LIMIT, "header")
            header = decode_header(raw, run=self._run, peer=self.peer)
            if header.kind == "hello":
                raise _goodbye(self.peer, header.size)
            if self._pace is not None:
                await self._pace(header.size)
            payload = await self._payload(header.kind, header.size)
            if header.kind != "ping":
                return header.kind, payload

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """While inside, the heartbeat runs."""
        heartbeat = asyncio.create_task(self._keep_alive(), name=f"heartbeat {self.peer}")
        try:
            yield
        finally:
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)

    async def _keep_alive(self) -> None:
        """Ping forever; closes the stream when the peer falls silent. Returns when the stream is closed."""
        while not self._verdict:
            await asyncio.sleep(self._timing.ping_s)
            if self._waiting is not None and self._clock() - self._waiting > self._timing.silent_s:
                self.abort(f"silent for {self._timing.silent_s:.0f} s")
            elif not self._lock.locked():  # a frame under way is sign of life enough
                with contextlib.suppress(TransportError):
                    await self.send("ping", [])

    def abort(self, verdict: str) -> None:
        """Close at once; ``verdict`` is what pending and later calls report. The first one stays."""
        self._verdict = self._verdict or verdict
        self._writer.transport.abort()

    async def say_goodbye(self) -> None:
        """Ask the other side to close once it has read everything; nothing can be sent afterwards."""
        with contextlib.suppress(TransportError):
            await self.send("hello", [])
        self._verdict = self._verdict or "closing"

    async def outlast(self) -> None:
        """Read and drop until the other side closes, so that it gets what we said last; then close."""
        with contextlib.suppress(*_BROKEN, TimeoutError):
            async with asyncio.timeout(self._timing.goodbye_s):
                while await self._reader.read(CHUNK):
                    pass
        self.abort("closed")

    async def _write(self, buffers: Sequence[Buffer], size: int) -> None:
        try:
            self._writer.writelines(buffers)
            self.counter.add(sent=size)
            await self._writer.drain()
        except (*_BROKEN, RuntimeError) as error:  # uvloop: RuntimeError on a closed transport
            raise TransportError(self.peer, self._verdict or f"the stream broke: {_words(error)}") from error

    async def _prefixed(self, limit: int, what: str) -> bytes:
        """Bytes after a u32 length, refused before they are read when longer than ``limit``."""
        length = int.from_bytes(await self._exactly(4), "little")
        if length > limit:
            raise RemoteError(self.peer, f"{what} of {length} bytes, limit {limit}")
        return await self._exactly(length)

    async def _payload(self, kind: str, size: int) -> bytes:
        if size <= CHUNK:
            return await self._exactly(size)
        if kind in _STRAIGHT:
            return await self._received(size)
        return b"".join([await self._exactly(min(CHUNK, size - start)) for start in range(0, size, CHUNK)])

    async def _received(self, size: int) -> bytes:
        """As ``_exactly``, bytes that were copied nowhere in between.

        They begin with the length of a head; what follows that is aligned, so that numbers can be read where they lie.
        """
        head = await self._exactly(_LENGTH)
        lead = -(_LENGTH + int.from_bytes(head, "little")) % _ALIGNED
        whole = ROOMS.take(lead + size)[lead:]
        whole[:_LENGTH] = head
        room, due = whole[_LENGTH:], 0

        def came(count: int) -> None:
            nonlocal due
            due += count
            if due >= CHUNK:  # drop by drop is as bad as nothing
                due, self._waiting = due % CHUNK, self._clock()

        with self._reading():
            await receive_into(self._reader, self._writer, room, came)
        self.counter.add(received=len(room))
        return cast("bytes", whole.toreadonly())

    async def _exactly(self, size: int) -> bytes:
        """``size`` bytes; the heartbeat breaks the wait when none come."""
        with self._reading():
            data = await self._reader.readexactly(size)
        self.counter.add(received=size)
        return data

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """While inside, bytes are waited for; raises TransportError for what ends that."""
        self._waiting = self._clock()
        try:
            yield
        except _BROKEN as error:
            raise TransportError(self.peer, self._verdict or f"the stream broke: {_words(error)}") from error
        finally:
            self._waiting = None
        if self._verdict:
            raise TransportError(self.peer, self._verdict)


def _goodbye(peer: PeerId, size: int) -> TransportError | RemoteError:
    return RemoteError(peer, "a hello in the middle of the stream") if size else TransportError(peer, "said goodbye")


def _words(error: BaseException) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return "closed by the other side" if not error.partial else "closed in the middle of a frame"
    return str(error) or type(error).__name__
