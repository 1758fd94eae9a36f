"""The signing journal: what was signed for a slot is on disk before the signature leaves (protocol.md 5.2).

An honest peer that is killed at any instant and restarted resends what it signed and never signs a
second thing for the same slot, which would be a proof against it (redteam.md 23).
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgpack

from protocols.errors import EnvironmentFault, LocalError
from protocols.ids import PeerId, digest
from protocols.statements import Scope, Sign, Statement

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.messages import Body

log = logging.getLogger(__name__)

ROUNDS_KEPT = 3
"""Rounds whose statements stay: those of the head, the one in flight, and one to go back to."""
COMPACT_BYTES = 1 << 20
_LENGTH, _CHECK = 4, 8
_HEADER = _LENGTH + _CHECK


@dataclass(frozen=True, slots=True)
class _Entry:
    round: int
    raw: bytes
    signature: bytes


class _Damaged(ValueError):
    """A record in the middle of the journal is not what was written."""


class Journal:
    """Signs for one identity in one cell. Not safe for concurrent calls; every call may block on the disk.

    The file is a row of ``u32 LE length · check · msgpack · check``, each check the first 8 bytes of a BLAKE3 over the
    bytes before it in the record. A crash can only cut the last record short, and what it held was never sent; any
    other damage may hide something that was.
    """

    def __init__(self, path: Path, scope: Scope, signer: PeerId, sign: Sign) -> None:
        """Open or begin the journal at ``path``; raises EnvironmentFault when it is damaged or cannot be written."""
        self._path, self._scope, self._signer, self._sign = path, scope, signer, sign
        self._entries: dict[bytes, _Entry] = {}
        self._floor = 0
        self._file, self._size = self._open()

    def sign(self, body: Body, round_number: int) -> Statement:
        """The statement for ``body``, or the older one that this slot already holds.

        ``round_number`` is the round in flight. Raises LocalError for a round that has been forgotten,
        EnvironmentFault when the disk refuses.
        """
        if round_number < self._floor:
            raise LocalError(
                f"this key has already signed for rounds after {round_number}; "
                "signing them again could be taken for a lie",
                remedy="bring back the newer checkpoints, or take part with a new home",
            )
        key = digest(body.kind.encode(), body.slot())
        held = self._entries.get(key)
        if held is None:
            statement = self._scope.state(self._signer, body, self._sign)
            held = _Entry(round_number, statement.raw, statement.signature)
            self._append(_record(key, held))
            self._entries[key] = held
        elif held.raw == self._scope.signed_bytes(body):
            return Statement(self._signer, body, held.raw, held.signature)
        return self._scope.decode(Statement(self._signer, body, held.raw, held.signature).encode(), sender=self._signer)

    def forget_before(self, round_number: int) -> None:
        """Rounds below ``round_number`` − 3 will never be signed again; the file is rewritten when it is large."""
        self._floor = max(self._floor, round_number - ROUNDS_KEPT)
        if self._size > COMPACT_BYTES:
            self._compact()

    def close(self) -> None:
        """Close the file; everything in it is on the disk already. Safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self) -> tuple[int, int]:
        """(descriptor, bytes of whole records); the file ends with the last whole record afterwards."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise _disk(self._path, error) from error
        try:
            data = memoryview(self._path.read_bytes())  # slices without copies
            good = self._load(data)
            if len(data) > good:
                log.warning("the last record of %s was cut short by a crash, before it was sent: dropped", self._path)
                os.ftruncate(file, good)
            _sync_folder(self._path.parent)
        except OSError as error:
            os.close(file)
            raise _disk(self._path, error) from error
        except _Damaged as error:
            os.close(file)
            raise EnvironmentFault(
                f"the signing journal {self._path} is damaged {error}: what this key has signed is not known any more",
                remedy="take part with a new --home, and so with a new key; nobody hears an --alone run: there, "
                "deleting the file is safe",
            ) from error
        return file, good

    def _load(self, data: memoryview) -> int:
        """Take in all whole records; returns how many bytes they are. Raises _Damaged."""
        good = 0
        while (end := _end_of(data, good)) is not None:
            key, entry = _parse(bytes(data[good + _HEADER : end - _CHECK]))
            if key:
                self._entries[key] = entry
            else:
                self._floor = entry.round
            good = end
        return good

    def _append(self, record: bytes) -> None:
        """Write a record through to the disk; what was written of it goes again when the disk refuses."""
        try:
            _write_all(self._file, record)
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise _disk(self._path, error) from error
        self._size += len(record)

    def _compact(self) -> None:
        """Rewrite the file without what is forgotten, all or nothing."""
        kept = {key: entry for key, entry in self._entries.items() if entry.round >= self._floor}
        records = [_record(b"", _Entry(self._floor, b"", b"")), *(_record(key, entry) for key, entry in kept.items())]
        fresh = self._path.with_suffix(".new")
        try:
            file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                _write_all(file, b"".join(records))
                os.fsync(file)
            finally:
                os.close(file)
            os.replace(fresh, self._path)
        except OSError as error:
            raise _disk(self._path, error) from error
        self.close()
        self._entries = {}
        self._file, self._size = self._open()


def _record(key: bytes, entry: _Entry) -> bytes:
    packed: bytes = msgpack.packb([key, entry.round, entry.raw, entry.signature])
    length = len(packed).to_bytes(_LENGTH, "little")
    return length + _check(length) + packed + _check(length, packed)


def _end_of(data: memoryview, start: int) -> int | None:
    """Where the record at ``start`` ends; None when the file ends first. Raises _Damaged."""
    header = data[start : start + _HEADER]
    # After a power failure a file can be longer than what reached the disk: the rest of it reads as zeros.
    if len(header) < _HEADER or not any(data[start + _HEADER - 1 :]):
        return None
    if header[_LENGTH:] != _check(header[:_LENGTH]):
        raise _Damaged(f"at byte {start}")
    end = start + _HEADER + int.from_bytes(header[:_LENGTH], "little") + _CHECK
    if len(data) < end or not any(data[end - _CHECK :]):
        return None
    if data[end - _CHECK : end] != _check(header[:_LENGTH], data[start + _HEADER : end - _CHECK]):
        raise _Damaged(f"at byte {start}")
    return end


def _parse(packed: bytes) -> tuple[bytes, _Entry]:
    try:
        key, round_number, raw, signature = msgpack.unpackb(packed)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise _Damaged("or of another version") from error
    return key, _Entry(round_number, raw, signature)


def _check(*parts: bytes | memoryview) -> bytes:
    return digest(*parts)[:_CHECK]


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _sync_folder(folder: Path) -> None:
    """A new file's name must outlive a power failure as well."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _disk(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(
        f"cannot write the signing journal {path}: {error.strerror}",
        remedy="free some disk space or make the folder writable; nothing is signed without it",
    )
