"""Files named by their BLAKE3 hash: the data of runs, kept under a cap, the least recently used going first.

A blob is written beside its name (``HASH.part``), checked, synced and renamed, so that what has the name is whole; a
part that was cut off is gone on with. Calls may block on the disk.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from blake3 import blake3

from protocols.errors import ConfigError, EnvironmentFault

from .paths import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from protocols.manifest import ShardEntry

CAP = 20 << 30
"""Bytes that blobs may take on the disk unless told otherwise."""
READ = 1 << 20
"""Bytes in memory while a file is hashed."""
_PART = ".part"


class Damaged(Exception):
    """The bytes are not those of the hash."""


class BlobStore:
    """The blobs of one home. A daemon and ``murmur run init`` may use one folder at the same time."""

    def __init__(self, folder: Path, cap_bytes: int = CAP) -> None:
        """Raises EnvironmentFault when the folder cannot be used."""
        self.folder, self.cap = folder, cap_bytes
        self._pinned: dict[str, int] = {}
        self._read: dict[tuple[Path, str], tuple[tuple[int, ...], bool]] = {}
        self._lent: dict[str, Path] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _disk(folder, error) from error

    def pin(self, entries: Iterable[ShardEntry]) -> None:
        """Make room for these, blobs of the run that is served: they stay from now on, whatever else is written.

        What is lent takes no room. Raises ConfigError when all that is pinned is above the cap, EnvironmentFault.
        """
        own = {entry.hash: entry.bytes for entry in entries if entry.hash not in self._lent}
        pinned = {**self._pinned, **own}
        self._make_room("the run's data", pinned)
        self._pinned = pinned

    def lend(self, paths: Mapping[str, Path]) -> None:
        """Files outside the folder that are said to be the blobs of these hashes: read, checked, served, never kept."""
        self._lent = dict(paths)

    def path(self, entry: ShardEntry) -> Path | None:
        """A file that is this blob, None when there is none. Its hash is checked when it is first asked for.

        A damaged file of the folder is removed, so that it can be fetched again. Raises EnvironmentFault.
        """
        own = self.folder / entry.hash
        for path in (own, self._lent.get(entry.hash)):
            if path is None or not self._is_sound(path, entry):
                continue
            if path == own:
                with contextlib.suppress(OSError):  # only its place in the order of use
                    os.utime(path)
            return path
        return None

    def put(self, raw: bytes) -> str:
        """Keep these bytes; their hash, in hex. Raises ConfigError above the cap, EnvironmentFault."""
        from protocols.manifest import ShardEntry

        entry = ShardEntry("", len(raw), blake3(raw).hexdigest())
        if self.path(entry) is None:
            with self.write(entry) as writer:
                writer.restart()
                writer.append(raw)
                writer.finish()
        return entry.hash

    def write(self, entry: ShardEntry) -> BlobWriter:
        """Begin a blob, or go on with a part of it. Raises ConfigError above the cap, EnvironmentFault.

        Opening a pinned one does not block.
        """
        if entry.hash not in self._pinned:
            self._make_room(f"the blob {entry.hash[:16]}", {entry.hash: entry.bytes})
        try:
            return BlobWriter(self, entry)
        except OSError as error:
            raise _disk(self.folder, error) from error

    def size(self) -> int:
        """Bytes on the disk, parts included."""
        return sum(size for _, size, _ in self._files())

    def _is_sound(self, path: Path, entry: ShardEntry) -> bool:
        """Whether the file is the blob; it is read once, and again when it has changed."""
        try:
            found = path.stat()
            own = path.parent == self.folder
            mark = (found.st_size, found.st_ino, 0 if own else found.st_mtime_ns)
            seen, sound = self._read.get((path, entry.hash), (None, False))
            if seen != mark:
                sound = hash_file(path) == entry.hash
                self._read[path, entry.hash] = (mark, sound)
            if own and not sound:  # a wrong size alone may be a lie of a manifest's
                path.unlink(missing_ok=True)
            return sound and found.st_size == entry.bytes
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _disk(path, error) from error

    def _make_room(self, what: str, coming: Mapping[str, int]) -> None:
        """Let go of the least recently used until the cap holds blobs of these sizes too."""
        size = sum(coming.values())
        if size > self.cap:
            raise _too_large(what, size, self.cap)
        others = [file for file in self._files() if _hash(file[0]) not in coming]
        over = size + sum(held for _, held, _ in others) - self.cap
        for name, held, _ in sorted(others, key=lambda file: file[2]):
            if over <= 0:
                return
            if _hash(name) not in self._pinned:
                with contextlib.suppress(FileNotFoundError):
                    (self.folder / name).unlink()
                over -= held
        if over > 0:
            raise _too_large(f"{what} beside that of the run that is served", self.cap + over, self.cap)

    def _files(self) -> list[tuple[str, int, int]]:
        """(name, bytes, last use in ns) of every blob and part."""
        found = []
        try:
            with os.scandir(self.folder) as files:
                for file in files:
                    with contextlib.suppress(FileNotFoundError):
                        status = file.stat(follow_symlinks=False)
                        found.append((file.name, status.st_size, status.st_mtime_ns))
        except OSError as error:
            raise _disk(self.folder, error) from error
        return found


class BlobWriter:
    """One blob on its way into the store; closing it leaves the part for later. Raises EnvironmentFault."""

    def __init__(self, store: BlobStore, entry: ShardEntry) -> None:
        self._store, self.entry = store, entry
        self._path = store.folder / entry.hash
        self._part = self._path.with_suffix(_PART)
        self._file = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.offset = os.fstat(self._file).st_size
        """Bytes that are there."""
        if self.offset > entry.bytes:
            self.restart()

    def append(self, data: bytes) -> None:
        """The next bytes."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            raise _disk(self._part, error) from error
        self.offset += len(data)

    def restart(self) -> None:
        """Drop what is there."""
        try:
            os.ftruncate(self._file, 0)
        except OSError as error:
            raise _disk(self._part, error) from error
        self.offset = 0

    def finish(self) -> None:
        """Check the hash and give the file its name; raises Damaged, upon which nothing is left of it."""
        try:
            if self.offset != self.entry.bytes or hash_file(self._part) != self.entry.hash:
                self.restart()
                raise Damaged(f"{self.entry.bytes} bytes with another hash than {self.entry.hash[:16]}")
            os.fsync(self._file)
            self._part.replace(self._path)
            sync_folder(self._store.folder)
        except OSError as error:
            raise _disk(self._part, error) from error

    def close(self) -> None:
        """Leave what is there. An empty part is no use."""
        os.close(self._file)
        if not self.offset:
            with contextlib.suppress(OSError):
                self._part.unlink()

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hash_file(path: Path) -> str:
    """BLAKE3 of a file in hex, read piece by piece; raises OSError."""
    state = blake3()
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(READ))
        while size := file.readinto(buffer):
            state.update(buffer[:size])
    return state.hexdigest()


def _hash(name: str) -> str:
    return name.removesuffix(_PART)


def _too_large(what: str, size: int, cap: int) -> ConfigError:
    return ConfigError(
        f"{what} takes {_mib(size)} MiB, and only {_mib(cap)} MiB are set aside for data",
        remedy="allow more with --blob-cap",
    )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f}"


def _disk(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(f"cannot use {path}: {error.strerror}", remedy="free some disk space, or use a new --home")
