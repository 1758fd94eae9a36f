"""Bytes sent over the connections that daemons made between each other, through the daemons' own p2pd."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import psutil

from dht.attachment import Attachment
from dht.control import Control
from protocols.ids import PeerId
from tests.network.homes import identity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from tests.network.homes import Program

SINK, ALL = "sink", b"all"
OPEN_S = 5.0
CHUNK = bytes(1 << 20)


class Gone(Exception):
    """No connection is there."""


class Tap:
    """A second client of a daemon's p2pd, which is reached by its control socket, a file."""

    def __init__(self, program: Program) -> None:
        self.peer = PeerId(identity(program))
        self.control = _control(program)
        self._requests = Control(self.control.removeprefix("/unix"), OPEN_S)

    async def is_relayed(self, other: Tap) -> bool:
        """Whether streams to another daemon go through a relay; raises Gone where no connection is."""
        ends = [end for peer, end in await self._requests.connected(self.peer) if peer == other.peer]
        if not ends:
            raise Gone(f"{self.peer} is not connected with {other.peer}")
        return all("/p2p-circuit" in end for end in ends)

    async def send(self, other: Tap, size: int, within: float) -> None:
        """Send so many bytes over the connection that is there, all of which must arrive; raises OSError and others."""
        async with asyncio.timeout(within):
            reader, writer = await self._requests.open(other.peer, SINK)
            try:
                writer.write(size.to_bytes(8, "big"))
                for start in range(0, size, len(CHUNK)):
                    writer.write(CHUNK[: size - start])
                    await writer.drain()
                assert await reader.readexactly(len(ALL)) == ALL
            finally:
                writer.transport.abort()


@contextlib.asynccontextmanager
async def taps(programs: Iterable[Program]) -> AsyncIterator[list[Tap]]:
    """One at each daemon; all of them take what is sent."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for program in programs:
            tap = Tap(program)
            attachment = await Attachment.open(tap.control)
            stack.push_async_callback(attachment.close)
            await attachment.p2p.add_binary_stream_handler(SINK, _sink)
            found.append(tap)
        yield found


async def _sink(_: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take what comes, tell so, and wait until the other side has heard it."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # the connection may be dropped for a hole
        left = int.from_bytes(await reader.readexactly(8), "big")
        while left and (data := await reader.read(min(left, len(CHUNK)))):
            left -= len(data)
        if not left:
            writer.write(ALL)
            await reader.read()
    writer.close()


def _control(program: Program) -> str:
    """The multiaddr in its p2pd's command line."""
    for child in psutil.Process(program.process.pid).children(recursive=True):
        for word in child.cmdline():
            if word.startswith("-listen=/unix"):
                return word.removeprefix("-listen=")
    raise AssertionError(f"no p2pd of {program.home.root}")
