"""``murmur export``: a sealed state as files that others can load, and the proof that this run has made it.

Tensors are named and shaped as in the model; a seal's state root is over parameters and outer momentum, so both are
written and the root can be computed again from the files.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from safetensors.numpy import save_file

from protocols.errors import ConfigError, EnvironmentFault
from protocols.manifest import Manifest, render, run_id

from .models.layout import VOCABULARY, layout, offsets, shape_of
from .paths import sync_folder
from .settings import CELL
from .stored import newest

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.round.chain import Head
    from protocols.round.effects import Vector
    from protocols.statements import Statement

    from .state import Checkpoint, StateStore

MODEL, MOMENTUM, CONFIG, SEAL = "model.safetensors", "momentum.safetensors", "config.json", "seal.json"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: the round, its seal and the root of its state, in hex."""

    round: int
    seal: str
    state_root: str


def export(manifest: Manifest, store: StateStore, destination: Path) -> Exported:
    """Write the newest sound checkpoint below ``destination``, which must be absent or empty: whole or not at all.

    Raises ConfigError for a destination that holds something, EnvironmentFault when there is nothing or no room.
    """
    _refuse_used(destination)
    checkpoint = newest(store)
    destination = destination.absolute()
    fresh = destination.with_name(f".{destination.name}.{os.getpid()}.new")
    try:
        fresh.mkdir(parents=True)
        try:
            _write(fresh, manifest, checkpoint, _tokens(store, checkpoint.head.round))
            _sync(fresh)
            fresh.replace(destination)  # an empty folder gives way
            sync_folder(destination.parent)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write {destination}: {error.strerror}", remedy="choose another folder, or free some disk space"
        ) from error
    body = checkpoint.head.body
    assert body is not None  # only seal 0 has none, and it is no checkpoint
    return Exported(checkpoint.head.round, checkpoint.head.seal.hex(), body.state.hex())


def named(vector: Vector, manifest: Manifest) -> dict[str, Vector]:
    """The flat vector as the model's tensors, in its order; views, not copies."""
    tensors = layout(manifest.model.size, manifest.model.context)
    starts = offsets(tensors)
    return {
        tensor.name: vector[start : start + tensor.count].reshape(tensor.shape)
        for tensor, start in zip(tensors, starts, strict=False)
    }


def seal_document(manifest: Manifest, head: Head) -> dict[str, Any]:
    """``seal.json``: the seal, its hash, and every signed statement that certifies it, bytes in hex."""
    body = head.body
    assert body is not None and head.proposal is not None
    voters = head.parent_table.voters if head.parent_table else {}
    founders = manifest.members.founders
    return {
        "schema": 1,
        "run": run_id(manifest).hex(),
        "cell": CELL,
        "round": head.round,
        "view": head.view,
        "seal": head.seal.hex(),
        "state_root": body.state.hex(),
        "body": _hex(body.to_wire()),
        "proposal": _signed(head.proposal),
        "votes": [_signed(vote) for vote in head.votes],
        "voters": dict(voters),
        "founders": {"all": len(founders), "voted": sum(each in head.signers for each in founders)},
    }


def config_document(manifest: Manifest, checkpoint: Checkpoint, tokens: int | None) -> dict[str, Any]:
    """``config.json``: what it takes to build the model, and where it comes from."""
    shape = shape_of(manifest.model.size)
    return {
        "schema": 1,
        "architecture": manifest.model.kind,
        "size": manifest.model.size,
        "width": shape.width,
        "layers": shape.layers,
        "heads": shape.heads,
        "context": manifest.model.context,
        "vocabulary": "bytes",
        "vocabulary_size": VOCABULARY,
        "parameters": len(checkpoint.params),
        "dtype": "float32",
        "run": {"id": run_id(manifest).hex(), "name": manifest.run.name},
        "round": checkpoint.head.round,
        "tokens": tokens,
        "software": f"murmuration {version('murmuration')}",
    }


def _write(folder: Path, manifest: Manifest, checkpoint: Checkpoint, tokens: int | None) -> None:
    head = checkpoint.head
    meta = {"format": "pt", "run": run_id(manifest).hex(), "round": str(head.round), "seal": head.seal.hex()}
    for name, vector in ((MODEL, checkpoint.params), (MOMENTUM, checkpoint.momentum)):
        save_file(named(vector, manifest), folder / name, metadata=meta)
    for name, document in (
        (CONFIG, config_document(manifest, checkpoint, tokens)),
        (SEAL, seal_document(manifest, head)),
    ):
        (folder / name).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (folder / "manifest.toml").write_text(render(manifest), encoding="utf-8")
    (folder / "README.md").write_text(_readme(manifest, head, tokens), encoding="utf-8")


def _readme(manifest: Manifest, head: Head, tokens: int | None) -> str:
    model, data, founders = manifest.model, manifest.data, manifest.members.founders
    voted = sum(each in head.signers for each in founders)
    alone = 3 * voted > 2 * len(founders)
    trust = "which is enough to trust it" if alone else "so trust in it comes through the seals between"
    members = "\n".join(
        f"- `{each}`: {head.table.members[each].sealed}" for each in sorted(head.table.members, key=str)
    )
    learnt = f"{tokens:,} bytes of text" if tokens is not None else "an amount of text that this copy does not know"
    return f"""# {manifest.run.name}, round {head.round}

A byte-level {model.kind} of size {model.size}, context {model.context}, trained by a Murmuration run on {learnt}.

- `{MODEL}`: parameters, float32, in the model's own shapes
- `{MOMENTUM}`: the outer optimizer's momentum, in the same shapes; to go on training, and to check the seal
- `{CONFIG}`: what it takes to build the model
- `{SEAL}`: the seal of the round, its hash, and the signed votes for it
- `manifest.toml`: the run; its BLAKE3 is the run id `{run_id(manifest).hex()}`

`murmur export --check .` computes everything again from these files. Of {len(founders)} founders that the manifest
names {voted} voted for this seal, {trust}.

## Data

{data.name}: {len(data.shards)} shards, named by size and BLAKE3 in the manifest.

## Members, and the rounds that hold an update of theirs

{members}

## Licence

The program that made these files is under the Apache License 2.0. That says nothing about the data, nor about what
may be done with a model trained on it: this is for those who hold the rights in the data, and for the members above.
"""


def _tokens(store: StateStore, last: int) -> int | None:
    """Tokens of all rounds up to ``last``; None where the round log does not know one of them."""
    entries = {entry.get("round"): entry for entry in store.rounds()}
    counted = [entries.get(number, {}) for number in range(1, last + 1)]
    if not all(isinstance(each.get("tokens"), dict) and not each.get("synced") for each in counted):
        return None
    return sum(sum(each["tokens"].values()) for each in counted)


def _signed(statement: Statement) -> dict[str, str]:
    return {"peer": statement.peer, "signed": statement.raw.hex(), "signature": statement.signature.hex()}


def _hex(value: object) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: _hex(item) for name, item in value.items()}
    return [_hex(item) for item in value] if isinstance(value, list | tuple) else value


def _refuse_used(destination: Path) -> None:
    try:
        used = destination.exists() and (not destination.is_dir() or any(destination.iterdir()))
    except OSError as error:
        raise EnvironmentFault(
            f"cannot read {destination}: {error.strerror}", remedy="choose another folder"
        ) from error
    if used:
        raise ConfigError(f"{destination} is not an empty folder", remedy="name a new one: nothing is overwritten")


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    sync_folder(folder)
