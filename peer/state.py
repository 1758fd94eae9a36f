"""Checkpoints: a sealed state with its proof on disk, written whole or not at all; the previous ones stay.

A checkpoint is one safetensors file: parameters, outer momentum and drift, and in its metadata
the seal, its certificate and the tables. Loading recomputes every hash.
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
from protocols.ids import digest
from protocols.outer import state_root
from protocols.round.chain import Head, check_head, head_from_wire, head_to_wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from protocols.ids import Hash
    from protocols.round.effects import Vector
    from protocols.statements import Scope

LOG_BYTES = 8 << 20
"""The round log is halved when it grows beyond this."""


@dataclass(frozen=True)
class Checkpoint:
    """What a round ended with: the head, parameters, outer momentum and drift, float32 [values] each."""

    head: Head
    params: Vector
    momentum: Vector
    drift: Vector


class StateStore:
    """The folder of one run and cell. Calls may block on the disk."""

    def __init__(self, folder: Path, scope: Scope, values: int, keep: int = 2) -> None:
        """``keep`` checkpoints stay, at least two."""
        self.folder, self._scope, self._values = folder, scope, values
        self._keep = max(2, keep)
        self.warnings: list[str] = []

    @property
    def journal_path(self) -> Path:
        """Where the signing journal of this run is."""
        return self.folder / "journal"

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint beside the older ones, then drop the oldest. Raises EnvironmentFault."""
        tensors = {"params": checkpoint.params, "momentum": checkpoint.momentum, "drift": checkpoint.drift}
        if not checkpoint.drift.view(np.uint32).any():
            del tensors["drift"]
        head = pack(head_to_wire(checkpoint.head))
        meta = {"head": head.hex(), "check": _check(head, checkpoint.drift)}
        self._write(self._path(checkpoint.head.round), save(tensors, metadata=meta))
        for old in self._rounds()[: -self._keep]:
            self._path(old).unlink(missing_ok=True)

    def load(self) -> Checkpoint | None:
        """The newest sound checkpoint, None if there never was one; says in ``warnings`` what it passed over.

        Raises EnvironmentFault when there are checkpoints and none is sound.
        """
        why = ""
        for number in reversed(self._rounds()):
            try:
                return self.read(number)
            except ValueError as error:
                why = f"checkpoint of round {number} is damaged ({error})"
                self.warnings.append(f"{why}; taking the one before")
        if why:
            raise EnvironmentFault(
                f"no checkpoint in {self.folder} is sound: {why}",
                remedy="restore the round-*.safetensors from a backup, but no older journal; or use a new --home",
            )
        return None

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
            raw = bytes.fromhex(meta.get("head", ""))
            if _check(raw, drift) != meta.get("check"):
                raise ValueError("seal or drift are not the saved ones")
            head = head_from_wire(unpack(raw), self._scope)
            state = state_root(vectors["params"], vectors["momentum"])
            check_head(head, self._scope, state)
        except (SafetensorError, OSError, RemoteError) as error:
            raise ValueError(str(error)) from error
        if head.round != number:
            raise ValueError(f"it is of round {head.round}")
        return Checkpoint(head, vectors["params"], vectors["momentum"], drift)

    def save_pending(self, parent: Hash, drift: Vector, steps: int, tokens: int) -> None:
        """Keep what is about to be committed, so that the commit can be honoured after a crash."""
        check = _check(pack([parent, steps, tokens]), drift)
        meta = {"steps": str(steps), "tokens": str(tokens), "check": check}
        self._write(self._pending(parent), save({"drift": drift}, metadata=meta))
        for old in sorted(self.folder.glob("pending-*.safetensors"), key=lambda path: path.stat().st_mtime)[
            : -self._keep
        ]:
            old.unlink(missing_ok=True)

    def load_pending(self, parent: Hash) -> tuple[Vector, int, int] | None:
        """(drift, steps, tokens) committed on top of ``parent`` before a crash, if it is there and sound."""
        try:
            with safe_open(self._pending(parent), framework="numpy") as file:
                meta = file.metadata() or {}
                drift, steps, tokens = self._vector(file, "drift"), int(meta["steps"]), int(meta["tokens"])
                return (drift, steps, tokens) if meta["check"] == _check(pack([parent, steps, tokens]), drift) else None
        except (SafetensorError, OSError, ValueError, KeyError):
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
                except ValueError:  # being written just now, or its writer was killed
                    continue

    def _vector(self, file: Any, name: str) -> Vector:
        part = file.get_slice(name)
        if part.get_dtype() != "F32" or part.get_shape() != [self._values]:
            raise ValueError(f"{name} is {part.get_dtype()} {part.get_shape()}, expected F32 [{self._values}]")
        return cast("Vector", file.get_tensor(name))

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:08d}.safetensors"

    def _pending(self, parent: Hash) -> Path:
        return self.folder / f"pending-{parent.hex()[:16]}.safetensors"

    def _rounds(self) -> list[int]:
        stems = (path.stem.removeprefix("round-") for path in self.folder.glob("round-*.safetensors"))
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def _write(self, path: Path, data: bytes) -> None:
        fresh = path.with_name(path.name + ".new")
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with fresh.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, path)
            directory = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise _disk(path, error) from error


def _check(proof: bytes, drift: Vector) -> str:
    """Guards what no state hash covers: the proof itself, and what this peer alone has trained."""
    return digest(proof, drift.astype("<f4", copy=False).view(np.uint8).data).hex()


def _disk(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(
        f"cannot write {path}: {error.strerror}",
        remedy="free some disk space or make the folder writable, then start again: nothing sealed is lost",
    )
