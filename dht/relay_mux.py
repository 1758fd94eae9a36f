"""Streams over one connection of the relay: yamux, for the side that was dialled, with every buffer bounded.

py-libp2p's own muxer keeps whatever a peer sends beyond its window, takes frames of 16 MiB in one piece, gives windows
of 16 MiB to each stream and kills a stream whose other end reads nothing for 5 s: not for a relay.
Specification: https://github.com/hashicorp/yamux/blob/master/spec.md
"""

from __future__ import annotations

import contextlib
import struct
from collections import Counter
from typing import TYPE_CHECKING, Protocol

import trio

from .relay_limits import BUFFERS, WINDOW

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PROTOCOL = "/yamux/1.0.0"
CHUNK = 65535 - 16 - 12
"""Bytes of a frame's body: with its header one message of Noise."""

STREAMS = 16
"""Of one connection that are no circuits: a peer reserves, connects, identifies, pings."""
QUIET_BYTES = 4 << 10
"""Unread bytes on a stream that is no circuit: its messages are short."""
CONTROL_BYTES = 64 << 10
"""Control frames that wait for a peer who does not read."""

PING_S = 10.0
SILENT_S = 25.0
"""Without a byte for so long, pings included, the other side is gone or frozen."""
SEND_S = 20.0
"""A peer that does not take a frame within this is gone or frozen."""

_HEADER = struct.Struct("!BBHII")
_DATA, _WINDOW, _PING, _GO_AWAY = range(4)
_SYN, _ACK, _FIN, _RST = 1, 2, 4, 8


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


class Reset(Exception):
    """The stream or its connection was cut."""


class Pool:
    """Bytes that wait in all streams of a relay; those from one address fill half of it at most."""

    def __init__(self, most: int = BUFFERS) -> None:
        self._left, self._share = most, most // 2
        self._used: Counter[str] = Counter()

    def take(self, ip: str, size: int) -> bool:
        """Room for so many bytes that came from there; False when there is none."""
        if size > self._left or self._used[ip] + size > self._share:
            return False
        self._left -= size
        self._used[ip] += size
        return True

    def give(self, ip: str, size: int) -> None:
        """They are gone."""
        self._left += size
        self._used[ip] -= size
        if not self._used[ip]:
            del self._used[ip]


class Stream:
    """One stream; read by one task and written by one task."""

    def __init__(self, mux: Mux, number: int) -> None:
        self.mux, self.number = mux, number
        self.circuit = False
        self._buffer = bytearray()
        self._credit = self._window = WINDOW  # what the peer may still send; what it may have unread here
        self._room = WINDOW  # what we may still send
        self._ended = self._finished = self._cut = False
        self._news, self._space = trio.Event(), trio.Event()

    async def read(self, most: int) -> bytes:
        """The next bytes, at most so many; none at the end; raises Reset."""
        while not self._buffer:
            if self._cut:
                raise Reset
            if self._ended:
                return b""
            self._news = trio.Event()
            await self._news.wait()
        piece = bytes(self._buffer[:most])
        del self._buffer[: len(piece)]
        self.mux.pool.give(self.mux.ip, len(piece))
        self._replenish()
        return piece

    async def read_exactly(self, size: int) -> bytes:
        """So many bytes; raises Reset when fewer come."""
        data = b""
        while len(data) < size:
            piece = await self.read(size - len(data))
            if not piece:
                raise Reset
            data += piece
        return data

    async def write(self, data: bytes) -> None:
        """Send all of it, as fast as the other side reads; raises Reset."""
        sent = 0
        while sent < len(data):
            while self._room == 0 and not self._cut:
                self._space = trio.Event()
                await self._space.wait()
            if self._cut or self._finished:
                raise Reset
            size = min(self._room, CHUNK, len(data) - sent)
            self._room -= size
            await self.mux.send(_HEADER.pack(0, _DATA, 0, self.number, size) + data[sent : sent + size])
            sent += size

    async def finish(self) -> None:
        """Nothing more comes from this side; the other direction goes on."""
        if not self._finished and not self._cut:
            self._finished = True
            await self.mux.send(_HEADER.pack(0, _WINDOW, _FIN, self.number, 0))
            self._forget_if_over()

    def reset(self) -> None:
        """Cut both directions, and tell the other side."""
        if not self._cut and not (self._ended and self._finished):
            self.mux.control(_WINDOW, _RST, self.number, 0)
            self.cut()

    def cut(self) -> None:
        """It is cut: whoever reads or writes learns it, and what was not read is dropped."""
        self._cut = True
        self.mux.pool.give(self.mux.ip, len(self._buffer))
        self._buffer.clear()
        self.mux.forget(self.number)
        self._news.set()
        self._space.set()

    def widen(self, window: int) -> None:
        """From now on so many bytes may wait here."""
        self.circuit = True
        self._window = max(self._window, window)
        self._replenish()

    def feed(self, piece: bytes | memoryview) -> None:
        """Bytes of its own, whose frame was admitted with ``expect``."""
        if self._cut:
            return
        if (
            not self.circuit
            and len(self._buffer) + len(piece) > QUIET_BYTES
            or not self.mux.pool.take(self.mux.ip, len(piece))
        ):
            self.reset()
            return
        self._buffer += piece
        self._news.set()

    def expect(self, size: int) -> bool:
        """A frame of so many bytes begins; False when the peer was not allowed to send it."""
        self._credit -= size
        return self._credit >= 0

    def on_flags(self, flags: int, room: int) -> None:
        """What a frame says besides its bytes."""
        self._room += room
        if room:
            self._space.set()
        if flags & _FIN:
            self._ended = True
            self._news.set()
            self._forget_if_over()
        if flags & _RST and not self._cut:
            self.cut()

    def _replenish(self) -> None:
        """Let the peer send more, half a window at a time."""
        owed = self._window - self._credit - len(self._buffer)
        if owed >= self._window // 2 and not self._ended and not self._cut:
            self._credit += owed
            self.mux.control(_WINDOW, 0, self.number, owed)

    def _forget_if_over(self) -> None:
        if self._ended and self._finished:
            self.mux.forget(self.number)


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
        await self.send(_HEADER.pack(0, _WINDOW, _SYN, stream.number, 0))
        return stream

    def control(self, kind: int, flags: int, number: int, value: int) -> None:
        """Send a frame without body as soon as possible."""
        self._control += _HEADER.pack(0, kind, flags, number, value)
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
                self.control(_PING, _SYN, 0, 0)
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
                elif len(self._unread) < _HEADER.size:
                    break
                else:
                    header = _HEADER.unpack_from(self._unread)
                    del self._unread[: _HEADER.size]
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
        if version or kind > _PING:
            self.close()
        elif kind == _PING:
            if flags & _SYN:
                self.control(_PING, _ACK, 0, value)
        else:
            self._stream, self._flags = self._stream_of(number, flags, nursery), flags
            if kind == _DATA and value:
                self._body = value
                if self._stream is not None and not self._stream.expect(value):
                    self.close()
            elif self._stream is not None:
                self._stream.on_flags(flags, value)

    def _stream_of(self, number: int, flags: int, nursery: trio.Nursery) -> Stream | None:
        """The stream of a frame, a new one where it opens one; None: its bytes are dropped."""
        if not flags & _SYN:
            return self._streams.get(number)
        if number % 2 == 0 or number <= self._newest:
            self.close()
            return None
        self._newest = number
        if sum(not stream.circuit for stream in self._streams.values()) >= STREAMS:
            self.control(_WINDOW, _RST, number, 0)
            return None
        stream = self._streams[number] = Stream(self, number)
        self.control(_WINDOW, _ACK, number, 0)
        nursery.start_soon(self._serve, stream)
        return stream

    async def _serve(self, stream: Stream) -> None:
        try:
            await self._accept(stream)
        except Reset:
            stream.reset()
