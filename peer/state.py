"""Checkpoints: a sealed state with its proof on disk, written whole or not at all; the previous ones stay.

A checkpoint is one safetensors file: parameters, outer momentum and drift, and in its metadata
the seal, its certificate, the tables and the drift's ages. Loading recomputes every hash.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from protocols.canonical import pack, unpack
from protocols.errors import EnvironmentFault, RemoteError
from protocols.ids import Hash, digest
from protocols.messages import MAX_LEGS, MAX_PARTS, MAX_VIEW, Leg
from protocols.outer import state_root
from protocols.round.chain import Head, check_head, head_from_wire, head_to_wire
from protocols.shapes import integer, list_of

from .chain_file import ChainFile
from .paths import sync_folder, write_safely

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from protocols.messages import Seal
    from protocols.round.effects import Vector
    from protocols.statements import Scope

LOG_BYTES = 8 << 20
"""The round log is halved when it grows beyond this."""
KEPT = 2
"""Checkpoints that always stay, and updates that were committed: those of the head and of the one before."""
FOLDER_BYTES = 16 << 30
"""While a run's folder is larger, its oldest checkpoints go, whatever ``--keep-checkpoints`` says."""
_AGES = list_of(integer(0, MAX_VIEW), MAX_PARTS)
_LEGS = list_of(Leg.from_wire, MAX_LEGS)


@dataclass(frozen=True)
class Checkpoint:
    """What a round ended with: the head, parameters, outer momentum and drift, float32 [values] each.

    ``ages`` counts for each part of the drift the seals in a row that have not taken it; empty = none of them.
    """

    head: Head
    params: Vector
    momentum: Vector
    drift: Vector
    ages: tuple[int, ...] = ()


class StateStore:
    """The folder of one run and cell. Calls may block on the disk."""

    def __init__(self, folder: Path, scope: Scope, values: int, keep: int = KEPT) -> None:
        """``keep`` checkpoints stay, at least two."""
        self.folder, self._scope, self._values = folder, scope, values
        self._keep = max(KEPT, keep)
        self._loaded = 0
        self.chain = ChainFile(folder, scope)
        self.warnings: list[str] = []

    @property
    def journal_path(self) -> Path:
        """Where the signing journal of this run is."""
        return self.folder / "journal"

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint, then drop those of rounds above it and the oldest. Raises EnvironmentFault.

        Rounds above are those of a chain that was left. Until the new one is whole on the disk they are the state.
        """
        tensors = {"params": checkpoint.params, "momentum": checkpoint.momentum, "drift": checkpoint.drift}
        if not checkpoint.drift.view(np.uint32).any():
            del tensors["drift"]
        head, ages = pack(head_to_wire(checkpoint.head)), pack(list(checkpoint.ages))
        meta = {"head": head.hex(), "ages": ages.hex(), "check": _check(head + ages, checkpoint.drift)}
        path = self._path(checkpoint.head.round)
        self._write(path, save(tensors, metadata=meta))
        try:
            self._prune(checkpoint.head.round)
        except OSError as error:
            raise _disk(path, error) from error

    def load(self) -> Checkpoint | None:
        """The newest sound checkpoint, None if there never was one; says in ``warnings`` what it passed over.

        Raises EnvironmentFault when there are checkpoints and none is sound.
        """
        why = ""
        for number in reversed(self._rounds()):
            try:
                found = self.read(number)
                self._loaded = number
                return found
            except ValueError as error:
                why = f"checkpoint of round {number} is damaged ({error})"
                self.warnings.append(f"{why}; taking the one before")
        if why:
            raise EnvironmentFault(
                f"no checkpoint in {self.folder} is sound: {why}",
                remedy="restore the round-*.safetensors from a backup, but no older journal; or use a new --home",
            )
        return None

    def links(self) -> tuple[Head, ...]:
        """The heads of the kept checkpoints of rounds before the one that ``load`` gave, oldest first.

        Their proofs are checked, their parameters are not read; an unsound one is left out.
        """
        found = []
        for number in self._rounds():
            if number < self._loaded:
                with contextlib.suppress(ValueError):
                    found.append(self._head(number))
        return tuple(found)

    def read(self, number: int) -> Checkpoint:
        """Read and verify the checkpoint of one round; raises ValueError saying what is wrong."""
        try:
            with safe_open(self._path(number), framework="numpy") as file:
                meta = file.metadata() or {}
                names = set(file.keys())
                if not {"params", "momentum"} <= names <= {"params", "momentum", "drift"}:
                    raise ValueError("unexpected tensors")
                vectors = {name: self._vector(file, name) for name in sorted(names)}
            drift = vectors.get("drift", np.zeros(self._values, dtype=np.float32))
            raw, ages = bytes.fromhex(meta.get("head", "")), bytes.fromhex(meta.get("ages", ""))
            if _check(raw + ages, drift) != meta.get("check"):
                raise ValueError("seal or drift are not the saved ones")
            head = head_from_wire(unpack(raw), self._scope)
            state = state_root(vectors["params"], vectors["momentum"])
            check_head(head, self._scope, state)
        except (SafetensorError, OSError, RemoteError) as error:
            raise ValueError(str(error)) from error
        if head.round != number:
            raise ValueError(f"it is of round {head.round}")
        return Checkpoint(head, vectors["params"], vectors["momentum"], drift, _AGES(unpack(ages)))

    def save_pending(self, parent: Hash, number: int, drift: Vector, legs: Iterable[Leg]) -> None:
        """Keep what is about to be committed for round ``number``, so that it can be honoured after a crash.

        Raises EnvironmentFault.
        """
        trained = pack([each.to_wire() for each in legs])
        meta = {"legs": trained.hex(), "check": _check(parent + trained, drift)}
        path = self._pending(number, parent)
        self._write(path, save({"drift": drift}, metadata=meta))
        for old in sorted(self.folder.glob("pending-*.safetensors"))[: -self._keep]:
            if old != path:
                old.unlink(missing_ok=True)

    def load_pending(self, parent: Hash) -> tuple[Vector, int, int] | None:
        """(drift, steps, tokens) that were committed on top of ``parent`` before a crash, if all is there and sound.

        Steps and tokens are those of all legs together.
        """
        for path in self.folder.glob(self._pending(None, parent).name):
            with contextlib.suppress(SafetensorError, OSError, ValueError), safe_open(path, framework="numpy") as file:
                meta = file.metadata() or {}
                drift, trained = self._vector(file, "drift"), bytes.fromhex(meta.get("legs", ""))
                if meta.get("check") == _check(parent + trained, drift):
                    legs = _LEGS(unpack(trained))
                    return drift, sum(each.steps for each in legs), sum(each.tokens for each in legs)
        return None

    def append_round(self, entry: dict[str, Any]) -> None:
        """Add a line to the round log (JSON lines), which is kept below 8 MiB."""
        path = self.folder / "rounds.jsonl"
        try:
            if path.exists() and path.stat().st_size > LOG_BYTES:
                lines = path.read_bytes().splitlines(keepends=True)
                self._write(path, b"".join(lines[len(lines) // 2 :]))
            # A line that a crash or a full disk cut short stays alone: the next begins on its own.
            with path.open("ab+", buffering=0) as file:
                whole = file.tell() == 0 or os.pread(file.fileno(), 1, file.tell() - 1) == b"\n"
                file.write(b"\n" * (not whole) + json.dumps(entry).encode() + b"\n")
        except OSError as error:
            raise _disk(path, error) from error

    def rounds(self) -> Iterator[dict[str, Any]]:
        """The round log, oldest first; the last entry of a round counts. A line cut short is left out."""
        path = self.folder / "rounds.jsonl"
        if path.exists():
            for line in path.read_bytes().splitlines():
                try:
                    yield cast("dict[str, Any]", json.loads(line))
                except (ValueError, RecursionError):  # being written just now, or its writer was killed
                    continue

    def _head(self, number: int) -> Head:
        """The head of a checkpoint, its proof checked; raises ValueError."""
        try:
            with safe_open(self._path(number), framework="numpy") as file:
                raw = bytes.fromhex((file.metadata() or {}).get("head", ""))
            head = head_from_wire(unpack(raw), self._scope)
            if head.proposal is None or head.round != number:
                raise ValueError("it is of another round")
            check_head(head, self._scope, cast("Seal", head.proposal.body).state)
        except (SafetensorError, OSError, RemoteError) as error:
            raise ValueError(str(error)) from error
        return head

    def _prune(self, newest: int) -> None:
        """Drop what is above ``newest``, more than is kept, more than the folder may hold, or torn. Raises OSError."""
        below = [number for number in self._rounds() if number <= newest]
        left = [number for number in self._rounds() if number > newest]
        for path in self.folder.glob("*.safetensors.new"):
            path.unlink()  # a crash cut it short
        for path in self.folder.glob("pending-*.safetensors"):
            if path.name > self._pending(newest + 2, Hash(b"")).name:
                path.unlink()
        for number in reversed(left):
            self._path(number).unlink(missing_ok=True)
        for number in below[: -self._keep]:
            self._path(number).unlink(missing_ok=True)
        below = below[-self._keep :]
        size = sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())
        for number in below[:-KEPT]:
            if size <= FOLDER_BYTES:
                break
            size -= self._path(number).stat().st_size
            self._path(number).unlink()
        if left:
            sync_folder(self.folder)  # they must not come back and be taken for the newest

    def _vector(self, file: Any, name: str) -> Vector:
        part = file.get_slice(name)
        if part.get_dtype() != "F32" or part.get_shape() != [self._values]:
            raise ValueError(f"{name} is {part.get_dtype()} {part.get_shape()}, expected F32 [{self._values}]")
        return cast("Vector", file.get_tensor(name))

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:08d}.safetensors"

    def _pending(self, number: int | None, parent: Hash) -> Path:
        """The file for an update on top of ``parent``; a pattern for those of any round when it is None."""
        which = "*" if number is None else f"{number:08d}"
        return self.folder / f"pending-{which}-{parent.hex()[:16]}.safetensors"

    def _rounds(self) -> list[int]:
        stems = (path.stem.removeprefix("round-") for path in self.folder.glob("round-*.safetensors"))
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def _write(self, path: Path, data: bytes) -> None:
        try:
            write_safely(path, data)
        except OSError as error:
            raise _disk(path, error) from error


def _check(proof: bytes, drift: Vector) -> str:
    """Guards what no state hash covers: the proof itself, and what this peer alone has trained."""
    return digest(proof, drift.astype("<f4", copy=False).view(np.uint8).data).hex()


def _disk(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(
        f"cannot write {path}: {error.strerror}",
        remedy="free some disk space or make the folder writable, then start again: nothing sealed is lost",
    )
