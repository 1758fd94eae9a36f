"""One trainer process from its start to its end: sockets, descriptors, last words. ``worker`` decides what is said."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from protocols.errors import LocalError

from . import channel

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

STOP_S = 2.0
"""Seconds between asking a trainer to stop and killing it."""

_STDERR_TAIL = 4096
_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Setup:
    """What a trainer hears first: the configuration, as plain values, and the descriptor of the slots."""

    config: dict[str, object]
    slots: int
    kept: Path | None
    """Where a pause leaves what is to go on."""


class TrainerProcess:
    """Runs one process; ``alive`` tells whether it is there, ``send`` talks to it."""

    def __init__(self, threads: int, receive: Callable[[channel.Message], None]) -> None:
        """``receive`` is called in the loop with each of its messages."""
        self._threads, self._receive = threads, receive
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it lives."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def hears(self) -> bool:
        """Whether it can be talked to."""
        return self._writer is not None and self.pid is not None

    def send(self, kind: str, **fields: object) -> None:
        """Send one message, unless it is ending."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(channel.encode(kind, **fields))

    def kill(self) -> None:
        """End it at once; ``run`` returns soon."""
        if self.pid is not None and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def run(self, setup: Callable[[], Coroutine[None, None, Setup]]) -> str:
        """Start it, tell it ``setup`` as soon as that is known, take its messages; returns why it ended."""
        ours, theirs = socket.socketpair()
        give, take = socket.socketpair()  # through which the slots come once their size is known
        try:
            with theirs, take:
                self._process = process = await asyncio.create_subprocess_exec(
                    *self._command(theirs.fileno(), take.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    pass_fds=(theirs.fileno(), take.fileno()),
                    env=_environment(),
                    start_new_session=True,  # Ctrl-C in the terminal is the daemon's to handle
                )
        except OSError as error:
            ours.close()
            give.close()
            return error.strerror or str(error)
        tail = asyncio.create_task(_tail(process), name="trainer stderr")
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            if await self._told(setup, give, tail):
                await self._listen(reader)
            # Having hung up it is ending; a kill right now would race with asyncio's reaping and lose its status.
            await asyncio.wait({tail}, timeout=STOP_S)
        finally:
            give.close()
            if not tail.done():
                self.kill()
            status = await process.wait()
            await asyncio.wait({tail})
            if self._writer is not None:
                self._writer.close()
                self._writer = None
        lines = tail.result().strip().splitlines()
        return lines[-1] if lines else f"exit status {status}"

    async def _told(
        self, setup: Callable[[], Coroutine[None, None, Setup]], give: socket.socket, end: asyncio.Task[str]
    ) -> bool:
        """Tell the trainer what to train and where its vectors are, once that is known; False when it ends first."""
        known = asyncio.create_task(setup(), name="trainer configuration")
        try:
            await asyncio.wait({known, end}, return_when=asyncio.FIRST_COMPLETED)
            if not known.done():
                return False
            given = known.result()
        finally:
            known.cancel()
        with contextlib.suppress(OSError):  # it has just died
            socket.send_fds(give, [b"slots"], [given.slots])
        self.send("setup", config=given.config, kept=str(given.kept) if given.kept is not None else None)
        return True

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Take replies until the channel ends."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, LocalError):
            while True:
                size = channel.size_of(await reader.readexactly(channel.PREFIX))
                self._receive(channel.decode(await reader.readexactly(size)))

    def _command(self, channel_fd: int, slots_fd: int) -> list[str]:
        """``slots_fd``: a socket on which the slots' descriptor comes."""
        given = {"channel": channel_fd, "slots": slots_fd, "threads": self._threads, "parent": os.getpid()}
        # -P: a folder called peer where the daemon was started must not be taken for this package.
        return [sys.executable, "-P", "-m", "peer.trainer", *(f"--{name}={value}" for name, value in given.items())]


def _environment() -> dict[str, str]:
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


async def _tail(process: asyncio.subprocess.Process) -> str:
    """The last words on stderr; memory stays bounded however much torch has to say."""
    assert process.stderr is not None  # it was started with a pipe
    tail = b""
    while chunk := await process.stderr.read(_STDERR_TAIL):
        tail = (tail + chunk)[-_STDERR_TAIL:]
    return tail.decode(errors="replace")
