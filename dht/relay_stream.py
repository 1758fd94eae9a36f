"""One stream of the relay (yamux) and the memory that all of them share: what a peer may send before it is read.

A stream begins with 256 KiB, as yamux has it. Only a circuit that is read from gets more, while there is room for that,
and gives it back when there are many: so all windows together are bounded, and with them what may wait here.
Specification: https://github.com/hashicorp/yamux/blob/master/spec.md
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Protocol

import trio

from .relay_limits import BUFFERS, WINDOW

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 65535 - 16 - 12
"""Bytes of a frame's body: with its header one message of Noise."""
QUIET_BYTES = 4 << 10
"""Unread bytes on a stream that is no circuit: its messages are short."""

HEADER = struct.Struct("!BBHII")
DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8


class Reset(Exception):
    """The stream or its connection was cut."""


class Source(Protocol):
    """Where bytes come from."""

    async def read(self, most: int) -> bytes:
        """Some of them, ``most`` at most; none at the end."""


async def read_exactly(source: Source, size: int) -> bytes:
    """So many bytes; raises Reset when fewer come."""
    data = b""
    while len(data) < size:
        piece = await source.read(size - len(data))
        if not piece:
            raise Reset
        data += piece
    return data


class Pool:
    """Bytes that wait in all streams of a relay, and a quarter as many that windows may have grown by.

    What came from one address fills half of it at most.
    """

    def __init__(self, most: int = BUFFERS) -> None:
        self._waiting, self._lent = _Share(most), _Share(most // 4)

    def take(self, ip: str, size: int) -> bool:
        """Room for so many bytes that came from there; False when there is none."""
        return self._waiting.take(ip, size)

    def give(self, ip: str, size: int) -> None:
        """They are gone."""
        self._waiting.give(ip, size)

    def lend(self, ip: str, size: int) -> bool:
        """Whether a window of a peer from there may grow by so many bytes."""
        return self._lent.take(ip, size)

    def repay(self, ip: str, size: int) -> None:
        """It is smaller again."""
        self._lent.give(ip, size)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is lent."""
        return not self._waiting.used and not self._lent.used


class _Share:
    """An amount of which each address has half at most."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self.used: Counter[str] = Counter()

    def take(self, ip: str, size: int) -> bool:
        if size > self._left or 2 * (self.used[ip] + size) > self._most:
            return False
        self._left -= size
        self.used[ip] += size
        return True

    def give(self, ip: str, size: int) -> None:
        self._left += size
        self.used[ip] -= size
        if not self.used[ip]:
            del self.used[ip]


class Sender(Protocol):
    """What a stream needs of its connection."""

    pool: Pool
    ip: str

    async def send(self, frame: bytes) -> None:
        """One frame, whole; raises Reset."""
        ...

    def control(self, kind: int, flags: int, number: int, value: int) -> None:
        """A frame without body, soon."""
        ...

    def forget(self, number: int) -> None:
        """The stream is over."""
        ...


class Stream:
    """One stream; read by one task and written by one task."""

    def __init__(self, mux: Sender, number: int) -> None:
        self.mux, self.number = mux, number
        self._buffer = bytearray()
        self._most: Callable[[], int] | None = None
        self._credit = self._window = WINDOW  # what the peer may still send; what it may have unread here
        self._room = WINDOW  # what we may still send
        self._ended = self._finished = self._cut = False
        self._news, self._space = trio.Event(), trio.Event()

    @property
    def circuit(self) -> bool:
        """Whether it is one."""
        return self._most is not None

    def become_circuit(self, most: Callable[[], int]) -> None:
        """From now on more may wait here; ``most`` tells how many bytes at present."""
        self._most = most

    async def read(self, most: int) -> bytes:
        """The next bytes, at most so many; none at the end; raises Reset."""
        while not self._buffer:
            if self._cut:
                raise Reset
            if self._ended:
                return b""
            self._news = trio.Event()
            await self._news.wait()
        with memoryview(self._buffer) as view:
            piece = bytes(view[:most])
        del self._buffer[: len(piece)]
        self.mux.pool.give(self.mux.ip, len(piece))
        self._replenish()
        return piece

    async def read_exactly(self, size: int) -> bytes:
        """So many bytes; raises Reset when fewer come."""
        return await read_exactly(self, size)

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
            await self.mux.send(HEADER.pack(0, DATA, 0, self.number, size) + data[sent : sent + size])
            sent += size

    async def finish(self) -> None:
        """Nothing more comes from this side; the other direction goes on."""
        if not self._finished and not self._cut:
            self._finished = True
            await self.mux.send(HEADER.pack(0, WINDOW_UPDATE, FIN, self.number, 0))
            self._forget_if_over()

    def reset(self) -> None:
        """Cut both directions, and tell the other side."""
        if not self._cut:
            if not (self._ended and self._finished):
                self.mux.control(WINDOW_UPDATE, RST, self.number, 0)
            self.cut()

    def cut(self) -> None:
        """It is cut: whoever reads or writes learns it, and what was not read is dropped."""
        if not self._cut:
            self._cut = True
            self.mux.pool.give(self.mux.ip, len(self._buffer))
            self._buffer.clear()
            self._forget()
            self._news.set()
            self._space.set()

    def expect(self, size: int) -> bool:
        """A frame of so many bytes begins; False when the peer was not allowed to send it."""
        self._credit -= size
        return self._credit >= 0

    def feed(self, piece: bytes) -> None:
        """Bytes of a frame that was expected."""
        if self._cut:
            return
        too_much = not self.circuit and len(self._buffer) + len(piece) > QUIET_BYTES
        if too_much or not self.mux.pool.take(self.mux.ip, len(piece)):
            self.reset()
            return
        self._buffer += piece
        self._news.set()

    def on_flags(self, flags: int, room: int) -> None:
        """What a frame says besides its bytes."""
        self._room += room
        if room:
            self._space.set()
        if flags & FIN:
            self._ended = True
            self._news.set()
            self._forget_if_over()
        if flags & RST:
            self.cut()

    def _replenish(self) -> None:
        """Let the peer send more, half a window at a time; a larger window where one is free, a smaller where not."""
        owed = self._window - self._credit - len(self._buffer)
        if owed < self._window // 2 or self._ended or self._cut:
            return
        most = self._most() if self._most is not None else WINDOW
        step = min(self._window, most - self._window)
        if step > 0:
            if not self.mux.pool.lend(self.mux.ip, step):
                step = 0
        else:
            step = max(step, -owed)
            self.mux.pool.repay(self.mux.ip, -step)
        self._window += step
        if owed + step:
            self._credit += owed + step
            self.mux.control(WINDOW_UPDATE, 0, self.number, owed + step)

    def _forget_if_over(self) -> None:
        if self._ended and self._finished:
            self._forget()

    def _forget(self) -> None:
        self.mux.forget(self.number)
        self.mux.pool.repay(self.mux.ip, self._window - WINDOW)
        self._window = WINDOW
