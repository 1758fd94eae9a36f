"""The signing journal: what was signed for a slot is on disk before the signature leaves (protocol.md 5.2).

An honest peer that is killed at any instant and restarted resends what it signed and never signs a
second thing for the same slot, which would be a proof against it (redteam.md 23).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import msgpack

from protocols.errors import EnvironmentFault, LocalError
from protocols.ids import PeerId, digest
from protocols.statements import Scope, Sign, Statement

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.messages import Body

ROUNDS_KEPT = 3
"""Rounds whose statements stay: those of the head, the one in flight, and one to go back to."""
COMPACT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Entry:
    round: int
    raw: bytes
    signature: bytes


class Journal:
    """Signs for one identity in one cell. Not safe for concurrent calls; every call may block on the disk."""

    def __init__(self, path: Path, scope: Scope, signer: PeerId, sign: Sign) -> None:
        self._path, self._scope, self._signer, self._sign = path, scope, signer, sign
        self._entries: dict[bytes, _Entry] = {}
        self._floor = 0
        self._file = self._open()

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
            self._write(self._file, key, held)
            self._entries[key] = held
        elif held.raw == self._scope.signed_bytes(body):
            return Statement(self._signer, body, held.raw, held.signature)
        return self._scope.decode(Statement(self._signer, body, held.raw, held.signature).encode(), sender=self._signer)

    def forget_before(self, round_number: int) -> None:
        """Rounds below ``round_number`` − 3 will never be signed again; the file is rewritten when it is large."""
        self._floor = max(self._floor, round_number - ROUNDS_KEPT)
        if self._file.tell() > COMPACT_BYTES:
            self._compact()

    def close(self) -> None:
        """Close the file; everything in it is on the disk already."""
        self._file.close()

    def _open(self) -> BinaryIO:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            good = self._load()
            file = open(self._path, "ab", opener=lambda path, flags: os.open(path, flags, 0o600))  # noqa: SIM115
            if file.tell() > good:  # a record cut short by a crash was never sent: drop it
                file.truncate(good)
            return file
        except OSError as error:
            raise _disk(self._path, error) from error

    def _load(self) -> int:
        """Read all whole records; returns how many bytes of the file they are."""
        if not self._path.exists():
            return 0
        data = self._path.read_bytes()
        unpacker = msgpack.Unpacker(raw=False, max_buffer_size=len(data) or 1)
        unpacker.feed(data)
        good = 0
        while True:
            try:
                key, round_number, raw, signature, check = unpacker.unpack()
            except (msgpack.OutOfData, ValueError, TypeError, msgpack.UnpackException):
                return good
            if check != _check(key, round_number, raw, signature):
                return good
            if key:
                self._entries[key] = _Entry(round_number, raw, signature)
            else:
                self._floor = round_number
            good = unpacker.tell()

    def _write(self, file: BinaryIO, key: bytes, entry: _Entry) -> None:
        check = _check(key, entry.round, entry.raw, entry.signature)
        try:
            file.write(msgpack.packb([key, entry.round, entry.raw, entry.signature, check]))
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise _disk(self._path, error) from error

    def _compact(self) -> None:
        self._entries = {key: entry for key, entry in self._entries.items() if entry.round >= self._floor}
        fresh = self._path.with_suffix(".new")
        with open(fresh, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            self._write(file, b"", _Entry(self._floor, b"", b""))
            for key, entry in self._entries.items():
                self._write(file, key, entry)
        os.replace(fresh, self._path)
        self._file.close()
        self._file = self._open()


def _check(key: bytes, round_number: int, raw: bytes, signature: bytes) -> bytes:
    return digest(key, round_number.to_bytes(8, "big"), raw, signature)[:8]


def _disk(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(
        f"cannot write the signing journal {path}: {error.strerror}",
        remedy="free some disk space or make the folder writable; nothing is signed without it",
    )
