"""``murmur export --check``: computes again, from the exported files alone, what they claim.

The manifest's signature, the seal's hash and votes, and the state root over the tensors. What a seal on its own cannot
show, that its voters were the run's, is said: with more than 2/3 of the founders among them the manifest is enough.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open

from protocols.canonical import pack
from protocols.errors import ConfigError, LocalError, RemoteError
from protocols.ids import PeerId
from protocols.manifest import Manifest, run_id, verify
from protocols.messages import MAX_VOTERS, Seal, Vote
from protocols.outer import state_root
from protocols.round.chain import seal_hash
from protocols.statements import Scope, Statement

from .export import MODEL, MOMENTUM, SEAL
from .models.layout import layout
from .runs import read_manifest
from .settings import CELL

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.round.effects import Vector

SEAL_BYTES = 8 << 20
"""Largest ``seal.json`` that is read."""


@dataclass(frozen=True, slots=True)
class Checked:
    """``voted`` of ``founders`` voted for the seal of ``round``; ``proven``: these are more than two thirds."""

    round: int
    seal: str
    founders: int
    voted: int

    @property
    def proven(self) -> bool:
        """Whether the manifest alone shows that the seal is the run's."""
        return 3 * self.voted > 2 * self.founders


def check(folder: Path) -> Checked:
    """Check an exported folder; raises LocalError naming the first thing wrong, ConfigError for its manifest."""
    if not (folder / "manifest.toml").is_file():
        raise ConfigError(f"{folder} holds no export", remedy="name a folder that `murmur export` wrote")
    manifest = read_manifest(folder / "manifest.toml")
    verify(manifest)
    scope = Scope(run_id(manifest), CELL)
    try:
        document = _document(folder / SEAL)
        body = _statement(document["proposal"], scope).body
        if not isinstance(body, Seal):
            raise ValueError("the proposal is no seal")
        name = seal_hash(scope, body)
        if document["seal"] != name.hex() or document["state_root"] != body.state.hex():
            raise ValueError("the seal has another hash or state root")
        votes = [_statement(each, scope) for each in _votes(document)]
        voters = {vote.peer for vote in votes if vote.body == Vote(body.view, name)}
        if len(voters) != len(votes) or not voters:
            raise ValueError("there are votes for something else, or twice, or none")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _wrong(folder / SEAL, f"{error}") from error
    except RemoteError as error:
        raise _wrong(folder / SEAL, error.text) from error
    if state_root(*(_vector(folder / each, manifest) for each in (MODEL, MOMENTUM))) != body.state:
        raise _wrong(folder / MODEL, "parameters or momentum are not those of the seal")
    founders = manifest.members.founders
    return Checked(body.round, name.hex(), len(founders), sum(each in voters for each in founders))


def _document(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > SEAL_BYTES:
            raise ValueError(f"larger than {SEAL_BYTES >> 20} MiB")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(str(error.strerror)) from error
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def _votes(document: dict[str, Any]) -> list[Any]:
    votes = document["votes"]
    if not isinstance(votes, list) or len(votes) > MAX_VOTERS:
        raise ValueError(f"not a list of at most {MAX_VOTERS} votes")
    return votes


def _statement(plain: Any, scope: Scope) -> Statement:
    """A statement as ``seal.json`` has it, its signature checked; raises what the caller tells as one error."""
    raw, signature = bytes.fromhex(plain["signed"]), bytes.fromhex(plain["signature"])
    encoded = pack({"peer": PeerId(plain["peer"]), "raw": raw, "signature": signature})
    return scope.decode(encoded, sender="the file")


def _vector(path: Path, manifest: Manifest) -> Vector:
    """The flat vector of a tensor file; only float32 tensors of exactly the model's names and shapes are read."""
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = layout(manifest.model.size, manifest.model.context)
            if set(file.keys()) != {tensor.name for tensor in tensors}:
                raise ValueError("its tensors are not the model's")
            for tensor in tensors:
                part = file.get_slice(tensor.name)
                if part.get_dtype() != "F32" or part.get_shape() != list(tensor.shape):
                    raise ValueError(f"{tensor.name} is {part.get_dtype()} {part.get_shape()}")
            flat: Vector = np.concatenate([file.get_tensor(tensor.name).reshape(-1) for tensor in tensors])
    except (SafetensorError, OSError, ValueError) as error:
        raise _wrong(path, str(error)) from error
    return flat


def _wrong(path: Path, why: str) -> LocalError:
    return LocalError(f"{path} does not hold what it claims: {why}", remedy="fetch the export again from its source")
