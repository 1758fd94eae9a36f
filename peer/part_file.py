"""Chunks of a state that is being loaded, on disk, so that a restart asks only for the rest.

One file for one seal: records of u32 LE length · frame of a chunk, in the order in which they came. Nothing in it is
believed: the machine checks every chunk under the seal's root again, and the chain that leads to the seal is asked for
anew. So it is written without fsync, and a record that a crash cut short ends it.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from protocols.errors import RemoteError
from protocols.frames import PAYLOAD_LIMITS
from protocols.ids import HASH_BYTES, Hash
from protocols.state_payloads import StateChunk

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

log = logging.getLogger(__name__)

CHUNKS_WAITING = 16
"""Chunks of a state that wait for the disk."""
PATTERN = "state-*.part"
_LIMIT = PAYLOAD_LIMITS["state"]

T = TypeVar("T")


class OnDisk(Protocol):
    """Runs something in the one thread for the disk."""

    async def __call__(self, run: Callable[[], T]) -> T:
        """What it returned, or raised."""


class Spawn(Protocol):
    """Starts a task that somebody owns."""

    def __call__(self, run: Coroutine[None, None, None], name: str) -> object:
        """The task."""


class PartFile:
    """The one such file of a run's folder. Calls may block on the disk; errors of the disk are OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def seal(self) -> Hash | None:
        """The seal whose chunks are here, if any."""
        paths = sorted(self._folder.glob(PATTERN))
        for path in paths[1:]:
            path.unlink(missing_ok=True)
        name = paths[0].name.removeprefix("state-").removesuffix(".part") if paths else ""
        with contextlib.suppress(ValueError):
            seal = bytes.fromhex(name)
            return Hash(seal) if len(seal) == HASH_BYTES else None
        return None

    def append(self, chunk: StateChunk) -> None:
        """Keep one chunk more; those of another seal go. Raises OSError."""
        path = self._path(chunk.seal)
        if not path.exists():
            self.drop()
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        frame = chunk.encode()
        size = sum(memoryview(each).nbytes for each in frame)
        with path.open("ab") as file:
            file.write(b"".join([size.to_bytes(4, "little"), *frame]))

    def read(self, seal: Hash) -> list[StateChunk]:
        """The chunks of a seal that are here, mapped rather than read; what a crash cut short is cut off."""
        path = self._path(seal)
        try:
            with path.open("r+b") as file:
                size = os.fstat(file.fileno()).st_size
                if not size:
                    return []
                view = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
                chunks, end = [], 0
                for chunk, end in _records(view, seal):  # noqa: B007 - the last end is wanted
                    chunks.append(chunk)
                if end < size:
                    file.truncate(end)
        except OSError:
            return []
        return chunks

    def drop(self) -> None:
        """Nothing of it is needed any more."""
        for path in self._folder.glob(PATTERN):
            path.unlink(missing_ok=True)

    def _path(self, seal: Hash) -> Path:
        return self._folder / f"state-{seal.hex()}.part"


def _records(view: memoryview, seal: Hash) -> Iterator[tuple[StateChunk, int]]:
    """(chunk, where its record ends) as far as the file is sound."""
    at = 0
    while at + 4 <= len(view):
        size = int.from_bytes(view[at : at + 4], "little")
        if not 0 < size <= min(_LIMIT, len(view) - at - 4):
            return
        try:
            chunk = StateChunk.decode(view[at + 4 : at + 4 + size], sender="disk")
        except RemoteError:
            return
        if chunk.seal != seal:
            return
        at += 4 + size
        yield chunk, at


class PartKeeper:
    """Lets one thread keep, read and drop chunks beside everything else: it only saves time after a restart."""

    def __init__(self, folder: Path, on_disk: OnDisk, spawn: Spawn) -> None:
        self._file, self._on_disk, self._spawn = PartFile(folder), on_disk, spawn
        self._waiting = 0

    def keep(self, chunk: StateChunk) -> None:
        """Write a chunk; while the disk is slow it is left out and may be asked for again."""
        if self._waiting < CHUNKS_WAITING:
            self._waiting += 1
            self._spawn(self._keep(chunk), "keep a chunk")

    def drop(self) -> None:
        """The state is whole, or another one is loaded."""
        self._spawn(self._safely(self._file.drop), "drop chunks")

    def load(self, seal: Hash, hand_in: Callable[[list[StateChunk]], None]) -> None:
        """Read what came before a restart, and hand it in."""

        async def go() -> None:
            chunks = await self._on_disk(partial(self._file.read, seal))
            log.info("%d chunks of the state came before the restart", len(chunks))
            hand_in(chunks)

        self._spawn(go(), "read chunks")

    async def _keep(self, chunk: StateChunk) -> None:
        try:
            await self._safely(partial(self._file.append, chunk))
        finally:
            self._waiting -= 1

    async def _safely(self, run: Callable[[], None]) -> None:
        try:
            await self._on_disk(run)
        except OSError as error:
            log.warning("chunks of the state are not kept for a restart: %s", error)
