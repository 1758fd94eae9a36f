"""Bytes of a stream received straight into the memory where they are wanted.

An ``asyncio.StreamReader`` copies what comes three times before it hands it out, which for a round's bytes costs more
than all hashes over them. So a large payload is received by a protocol of its own, in between.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable


class _Straight(asyncio.BufferedProtocol):
    """Fills ``room``, and is the former protocol in everything else."""

    def __init__(
        self, former: asyncio.Protocol, transport: asyncio.Transport, room: memoryview, came: Callable[[int], None]
    ) -> None:
        self._former, self._transport, self._room, self._came = former, transport, room, came
        self._filled = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        """What is still empty: so nothing that comes behind is taken."""
        return self._room[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        self._filled += nbytes
        self._came(nbytes)
        if self._filled == len(self._room):
            self._end()

    def eof_received(self) -> bool | None:
        """The other side has ended in the middle."""
        self._end(asyncio.IncompleteReadError(b"\0", len(self._room)))
        return self._former.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The stream broke."""
        self._end(exc or asyncio.IncompleteReadError(b"\0", len(self._room)))
        self._former.connection_lost(exc)

    def pause_writing(self) -> None:
        """Too much waits to be sent: concerns whoever writes."""
        self._former.pause_writing()

    def resume_writing(self) -> None:
        """The same, over."""
        self._former.resume_writing()

    def give_back(self) -> None:
        """The former protocol reads again."""
        if self._transport.get_protocol() is self:
            self._transport.set_protocol(self._former)

    def _end(self, error: Exception | None = None) -> None:
        self.give_back()
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)


async def receive_into(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, room: memoryview, came: Callable[[int], None]
) -> None:
    """Fill ``room`` with the next bytes of a stream; ``came`` is told how many, whenever some have.

    Raises IncompleteReadError, or OSError, where the stream ends before. Nobody else may read meanwhile.
    """
    transport = cast("asyncio.Transport", writer.transport)
    while len(room):
        # What the reader holds already. Less than asked for means that it holds nothing more.
        data = await reader.read(len(room))
        if not data:
            raise asyncio.IncompleteReadError(b"\0", len(room))
        whole = len(data) == len(room)
        room[: len(data)] = data
        room = room[len(data) :]
        came(len(data))
        if whole or transport.is_closing():
            continue
        former = transport.get_protocol()
        assert isinstance(former, asyncio.Protocol)
        straight = _Straight(former, transport, room, came)
        transport.set_protocol(straight)
        try:
            await straight.done
        finally:
            straight.give_back()
        return
