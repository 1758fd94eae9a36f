"""Streams over one connection of the relay: yamux, for the side that was dialled, with every buffer bounded.

py-libp2p's own muxer keeps whatever a peer sends beyond its window, takes frames of 16 MiB in one piece, gives windows
of 16 MiB to each stream and kills a stream whose other end reads nothing for 5 s: not for a relay.
Specification: https://github.com/hashicorp/yamux/blob/master/spec.md
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import trio

from .relay_stream import ACK, DATA, HEADER, PING, RST, SYN, WINDOW_UPDATE, Pool, Reset, Stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PROTOCOL = "/yamux/1.0.0"
STREAMS = 16
"""Of one connection that are no circuits: a peer reserves, connects, identifies, pings."""
CONTROL_BYTES = 64 << 10
"""Control frames that wait for a peer who does not read."""

PING_S = 10.0
SILENT_S = 25.0
"""Without a byte for so long, pings included, the other side is gone or frozen."""
SEND_S = 20.0
"""A peer that does not take a frame within this is gone or frozen."""


class Channel(Protocol):
    """An encrypted connection, as py-libp2p's security transports give it."""

    async def read(self, n: int | None = None) -> bytes:
        """What has come, at least a byte; nothing or an error at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """All of it, in order."""
        ...

    async def close(self) -> None:
        """Both directions."""
        ...


class Mux:
    """The streams of one connection; ``run`` serves it until it ends."""

    def __init__(self, channel: Channel, accept: Callable[[Stream], Awaitable[None]], pool: Pool, ip: str) -> None:
        """``accept`` gets each stream that the peer opens, in a task of its own; ``ip``: the peer's ``address_key``."""
        self.pool, self.ip = pool, ip
        self._channel, self._accept = channel, accept
        self._streams: dict[int, Stream] = {}
        self._lock = trio.Lock()
        self._control = bytearray()
        self._flush, self._closed = trio.Event(), trio.Event()
        self._next, self._newest = 2, 0
        self._heard = trio.current_time()
        self._unread = bytearray()
        self._body = self._flags = 0  # of the frame under way: bytes that are still to come
        self._stream: Stream | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing more can be sent."""
        return self._closed.is_set()

    async def run(self) -> None:
        """Until the connection breaks or ends, the peer breaks the protocol, or the task is cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._flush_control)
                nursery.start_soon(self._watch)
                nursery.start_soon(self._close_when_told, nursery.cancel_scope)
                await self._read(nursery)
                nursery.cancel_scope.cancel()
        finally:
            self.close()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1.0), contextlib.suppress(Exception):
                await self._channel.close()

    def close(self) -> None:
        """End the connection and cut its streams."""
        self._closed.set()
        for stream in list(self._streams.values()):
            stream.cut()

    async def open(self) -> Stream:
        """A new stream to the peer; raises Reset."""
        stream = Stream(self, self._next)
        self._next += 2
        self._streams[stream.number] = stream
        await self.send(HEADER.pack(0, WINDOW_UPDATE, SYN, stream.number, 0))
        return stream

    def control(self, kind: int, flags: int, number: int, value: int) -> None:
        """Send a frame without body as soon as possible."""
        self._control += HEADER.pack(0, kind, flags, number, value)
        if len(self._control) > CONTROL_BYTES:
            self.close()
        self._flush.set()

    async def send(self, frame: bytes) -> None:
        """Send one frame whole, even where the task is cancelled meanwhile; raises Reset."""
        async with self._lock:
            if self.closed:
                raise Reset
            with trio.CancelScope(shield=True, deadline=trio.current_time() + SEND_S) as scope:
                try:
                    await self._channel.write(frame)
                except Exception as error:  # whatever the layers below raise, this connection is over
                    self.close()
                    raise Reset from error
            if scope.cancelled_caught:
                self.close()
                raise Reset

    def forget(self, number: int) -> None:
        """The stream is over."""
        self._streams.pop(number, None)

    async def _flush_control(self) -> None:
        while True:
            await self._flush.wait()
            self._flush = trio.Event()
            frames, self._control = bytes(self._control), bytearray()
            try:
                await self.send(frames)
            except Reset:
                return

    async def _watch(self) -> None:
        while trio.current_time() < self._heard + SILENT_S:
            await trio.sleep(PING_S / 2)
            if trio.current_time() >= self._heard + PING_S:
                self.control(PING, SYN, 0, 0)
        self.close()

    async def _close_when_told(self, scope: trio.CancelScope) -> None:
        await self._closed.wait()
        scope.cancel()

    async def _read(self, nursery: trio.Nursery) -> None:
        """Frames, until the connection ends or the peer breaks the protocol."""
        while not self.closed:
            try:
                data = await self._channel.read(None)
            except Exception:  # a broken connection, or bytes that do not decrypt
                return
            if not data:
                return
            self._heard = trio.current_time()
            self._unread += data
            while self._unread and not self.closed:
                if self._body:
                    self._take_body()
                elif len(self._unread) < HEADER.size:
                    break
                else:
                    header = HEADER.unpack_from(self._unread)
                    del self._unread[: HEADER.size]
                    self._take_header(header, nursery)

    def _take_body(self) -> None:
        """What has come of it goes to its stream at once, whole or not; without a stream it is dropped."""
        with memoryview(self._unread) as view:
            piece = bytes(view[: self._body])
        del self._unread[: len(piece)]
        self._body -= len(piece)
        if self._stream is not None:
            self._stream.feed(piece)
            if not self._body:
                self._stream.on_flags(self._flags, 0)

    def _take_header(self, header: tuple[int, int, int, int, int], nursery: trio.Nursery) -> None:
        version, kind, flags, number, value = header
        if version or kind > PING:
            self.close()
        elif kind == PING:
            if flags & SYN:
                self.control(PING, ACK, 0, value)
        else:
            self._stream, self._flags = self._stream_of(number, flags, nursery), flags
            if kind == DATA and value:
                self._body = value
                if self._stream is not None and not self._stream.expect(value):
                    self.close()
            elif self._stream is not None:
                self._stream.on_flags(flags, value)

    def _stream_of(self, number: int, flags: int, nursery: trio.Nursery) -> Stream | None:
        """The stream of a frame, a new one where it opens one; None: its bytes are dropped."""
        if not flags & SYN:
            return self._streams.get(number)
        if number % 2 == 0 or number <= self._newest:
            self.close()
            return None
        self._newest = number
        if sum(not stream.circuit for stream in self._streams.values()) >= STREAMS:
            self.control(WINDOW_UPDATE, RST, number, 0)
            return None
        stream = self._streams[number] = Stream(self, number)
        self.control(WINDOW_UPDATE, ACK, number, 0)
        nursery.start_soon(self._serve, stream)
        return stream

    async def _serve(self, stream: Stream) -> None:
        try:
            await self._accept(stream)
        except Reset:
            stream.reset()
