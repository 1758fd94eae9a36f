"""The signing journal: what was signed for a slot is on disk before the signature leaves (protocol.md 5.2).

An honest peer that is killed at any instant and restarted resends what it signed and never signs a
second thing for the same slot, which would be a proof against it (redteam.md 23). What was forgotten
to keep the file small stays signed: below the floor views, and in the slots that are marked as used.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgpack

from protocols.canonical import pack, unpack
from protocols.errors import EnvironmentFault, LocalError
from protocols.ids import PeerId, digest
from protocols.statements import Scope, Sign, Statement

from .paths import sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from protocols.canonical import Value
    from protocols.messages import Body

log = logging.getLogger(__name__)

ROUNDS_KEPT = 3
"""Rounds whose statements stay: those of the head, the one in flight, and one to go back to."""
VIEWS_KEPT = 64
"""Views whose statements stay, however long no round is sealed; as many statements that belong to no view."""
SLOTS_KEPT = 1024
"""Rounds for which a slot outside of views stays known as used after its statement went; older ones are refused."""
COMPACT_BYTES = 1 << 20
"""The file is rewritten when it is larger, and twice as large as after the last time."""
READY = "ready"
VIEWED = frozenset({READY, "roster", "freeze", "seal", "vote"})
"""Kinds whose slot begins with the view, 8 bytes big-endian."""
_LENGTH, _CHECK = 4, 8
_HEADER = _LENGTH + _CHECK


class _Damaged(ValueError):
    """A record in the middle of the journal is not what was written."""


class Withheld(EnvironmentFault):
    """Nothing may be signed yet; it is asked for again."""


class SlotUsed(LocalError):
    """This slot may have been signed before, and what was signed is not at hand any more: nothing is signed."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """``view`` None: the kind's slot is not one of a view."""

    round: int
    raw: bytes
    signature: bytes
    kind: str
    view: int | None


@dataclass(frozen=True, slots=True)
class _Forgotten:
    """Which slots must not be signed although their statement is gone.

    Kinds with views: all up to ``views[kind]``. Others: those ``used`` (key → round), and all of rounds below
    ``oldest``. ``floor`` = the lowest round whose statements were kept.
    """

    floor: int = 0
    oldest: int = 0
    views: dict[str, int] = field(default_factory=dict)
    used: dict[bytes, int] = field(default_factory=dict)

    def holds(self, body: Body, key: bytes, round_number: int) -> bool:
        """Whether this slot may have been signed."""
        view = _view_of(body.kind, body.slot())
        if view is not None:
            return view <= self.views.get(body.kind, -1)
        return round_number < self.oldest or key in self.used

    def record(self) -> bytes:
        """As the journal's first record."""
        used: list[Value] = [[key, number] for key, number in self.used.items()]
        return _record(b"", self.floor, pack({"oldest": self.oldest, "used": used, "views": dict(self.views)}), b"")


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
        self._forgotten = _Forgotten()
        self._floor = 0
        self._compacted = 0
        self._unsynced = False
        self.gate: Callable[[], None] = lambda: None
        """Called before each new signature; what it raises comes out of ``sign``."""
        self._file, self._size = self._open()

    @property
    def signed_view(self) -> int:
        """The highest view for which a ready was signed, 0 if none was."""
        readys = (entry.view or 0 for entry in self._entries.values() if entry.kind == READY)
        return max(self._forgotten.views.get(READY, 0), *readys, 0)

    def sign(self, body: Body, round_number: int) -> Statement:
        """The statement for ``body``, or the older one that this slot already holds.

        ``round_number`` is the round in flight. Raises SlotUsed for a slot that has been forgotten and for a vote
        below ``signed_view``, EnvironmentFault when the disk refuses; nothing is signed then.
        """
        key = digest(body.kind.encode(), body.slot())
        held = self._entries.get(key)
        if held is None:
            self.gate()
            if self._forgotten.holds(body, key, round_number):
                raise SlotUsed(
                    f"this key may have signed another {body.kind} for round {round_number} before; "
                    "a second one could be taken for a lie",
                    remedy="nothing, it takes part again in later rounds; bringing back newer checkpoints is faster",
                )
            if body.kind == "vote" and (_view_of(body.kind, body.slot()) or 0) < self.signed_view:
                raise SlotUsed(
                    "this key has promised, perhaps on another machine, to vote in no view as low as this",
                    remedy="nothing, it votes again in later views",
                )
            held = self._keep(key, self._scope.state(self._signer, body, self._sign), round_number)
        elif held.raw == self._scope.signed_bytes(body):
            return Statement(self._signer, body, held.raw, held.signature)
        return self._scope.decode(Statement(self._signer, body, held.raw, held.signature).encode(), sender=self._signer)

    def note(self, statement: Statement, round_number: int) -> None:
        """A statement of this key that a neighbour showed: keep it, so that its slot is not signed again.

        It was signed on another machine, or before this journal was lost. EnvironmentFault when the disk refuses.
        """
        key = digest(statement.body.kind.encode(), statement.body.slot())
        if key not in self._entries and not self._forgotten.holds(statement.body, key, round_number):
            self._keep(key, statement, round_number)

    def _keep(self, key: bytes, statement: Statement, round_number: int) -> _Entry:
        kind = statement.body.kind
        view = _view_of(kind, statement.body.slot())
        held = _Entry(round_number, statement.raw, statement.signature, kind, view)
        self._append(_record(key, held.round, held.raw, held.signature))
        self._entries[key] = held
        self._compact_if_large()
        return held

    def forget_before(self, round_number: int) -> None:
        """Statements of rounds below ``round_number`` − 3 are not needed any more; the file is rewritten when large."""
        self._floor = max(self._floor, round_number - ROUNDS_KEPT)
        self._compact_if_large()

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
            sync_folder(self._path.parent)
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
            key, number, raw, signature = _parse(bytes(data[good + _HEADER : end - _CHECK]))
            if key:
                self._entries[key] = _entry(number, raw, signature)
            else:
                self._forgotten = _forgotten(number, raw)
                self._floor = number
            good = end
        return good

    def _append(self, record: bytes) -> None:
        """Write a record through to the disk; what was written of it goes again when the disk refuses."""
        try:
            if os.fstat(self._file).st_size != self._size:
                os.ftruncate(self._file, self._size)  # the rest of a record that the disk refused
            if self._unsynced:
                sync_folder(self._path.parent)
                self._unsynced = False
            _write_all(self._file, record)
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise _disk(self._path, error) from error
        self._size += len(record)

    def _compact_if_large(self) -> None:
        """Rewrite the file without what is not needed any more, all or nothing; a disk that refuses changes nothing."""
        if self._size <= max(COMPACT_BYTES, 2 * self._compacted):
            return
        kept, forgotten = _sift(self._entries, self._forgotten, self._floor)
        records = (_record(key, each.round, each.raw, each.signature) for key, each in kept.items())
        data = b"".join([forgotten.record(), *records])
        fresh = self._path.with_suffix(".new")
        file = -1
        try:
            file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
            _write_all(file, data)
            os.fsync(file)
            os.replace(fresh, self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            if file >= 0:
                os.close(file)
            log.warning("the signing journal %s stays as large as it is: %s", self._path, error.strerror)
            self._compacted = self._size  # the next try when it has doubled
            return
        os.close(self._file)
        self._file, self._size, self._compacted = file, len(data), len(data)
        self._entries, self._forgotten = kept, forgotten
        self._unsynced = True  # the new file's name, before anything is added to it


def _sift(entries: dict[bytes, _Entry], before: _Forgotten, floor: int) -> tuple[dict[bytes, _Entry], _Forgotten]:
    """(statements that stay, what must be remembered of the others)."""
    newest = max((entry.view for entry in entries.values() if entry.view is not None), default=0)
    others = [key for key, entry in entries.items() if entry.view is None]
    old = set(others[:-VIEWS_KEPT])
    oldest = max(before.oldest, floor - SLOTS_KEPT)
    views, used, kept = dict(before.views), dict(before.used), {}
    for key, entry in entries.items():
        recent = key not in old if entry.view is None else entry.view > newest - VIEWS_KEPT
        if entry.round >= floor and recent:
            kept[key] = entry
        elif entry.view is None:
            used[key] = entry.round
        else:
            views[entry.kind] = max(views.get(entry.kind, -1), entry.view)
    used = {key: number for key, number in used.items() if number >= oldest}
    return kept, _Forgotten(floor, oldest, views, used)


def _view_of(kind: str, slot: bytes) -> int | None:
    return int.from_bytes(slot[:8], "big") if kind in VIEWED else None


def _record(key: bytes, round_number: int, raw: bytes, signature: bytes) -> bytes:
    packed: bytes = msgpack.packb([key, round_number, raw, signature])
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


def _parse(packed: bytes) -> tuple[bytes, int, bytes, bytes]:
    try:
        key, round_number, raw, signature = msgpack.unpackb(packed, max_array_len=4)
        if [type(each) for each in (key, round_number, raw, signature)] != [bytes, int, bytes, bytes]:
            raise ValueError("other types")
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise _Damaged("or of another version") from error
    return key, round_number, raw, signature


def _entry(round_number: int, raw: bytes, signature: bytes) -> _Entry:
    """A statement's entry; its kind and slot are those in the signed bytes."""
    try:
        fields = msgpack.unpackb(raw)
        kind, slot = fields["kind"], fields["slot"]
        if not isinstance(kind, str) or not isinstance(slot, bytes):
            raise ValueError("other types")
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise _Damaged("or of another version") from error
    return _Entry(round_number, raw, signature, kind, _view_of(kind, slot))


def _forgotten(floor: int, raw: bytes) -> _Forgotten:
    try:
        fields: Any = unpack(raw)
        found = _Forgotten(floor, fields["oldest"], fields["views"], dict(fields["used"]))
        numbers = (found.oldest, *found.views.values(), *found.used.values())
        if not all(type(each) is int for each in numbers) or not all(type(each) is bytes for each in found.used):
            raise ValueError("other types")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _Damaged("or of another version") from error
    return found


def _check(*parts: bytes | memoryview) -> bytes:
    return digest(*parts)[:_CHECK]


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _disk(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(
        f"cannot write the signing journal {path}: {error.strerror}",
        remedy="free some disk space or make the folder writable; nothing is signed without it",
    )
