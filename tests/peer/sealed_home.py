"""For tests: a home with two sealed rounds of nano on the plays, made without a daemon."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from peer import corpus
from peer.identity import Identity
from peer.models import initial_vector
from peer.paths import Home
from peer.runs import keep_manifest
from peer.settings import CELL
from peer.state import Checkpoint, StateStore
from protocols.ids import Hash
from protocols.manifest import Manifest, run_id, sign
from protocols.manifest_defaults import Choices, default_manifest
from protocols.messages import Contribution, Seal, Vote
from protocols.outer import state_root
from protocols.round.chain import Head, seal_hash, seal_zero
from protocols.statements import Scope

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROUNDS = 2


@dataclass(frozen=True)
class SealedHome:
    """A home, its run, and the states that were sealed in it."""

    home: Home
    manifest: Manifest
    checkpoints: tuple[Checkpoint, ...]
    store: StateStore

    @property
    def last(self) -> Checkpoint:
        return self.checkpoints[-1]


def founders(count: int) -> list[Identity]:
    return [Identity.from_seed(bytes(31) + bytes([number])) for number in range(1, count + 1)]


def sealed_home(
    folder: Path, keys: Sequence[Identity] | None = None, *, name: str = "home", seed: int = 0
) -> SealedHome:
    """Rounds whose updates are noise, voted for by all ``keys``."""
    keys = keys or founders(1)
    home = Home(folder / name)
    home.create()
    if not home.key.exists():
        keys[0].save(home.key)
    choices = Choices(size="nano", seed=seed)
    unsigned = default_manifest(choices, founders=[each.peer for each in keys], shards=corpus.SHARDS)
    manifest = sign(unsigned, keys[0].peer, keys[0].sign)
    keep_manifest(home, manifest)
    scope = Scope(run_id(manifest), CELL)
    params = initial_vector("nano", 32, seed)
    momentum = np.zeros_like(params)
    store = StateStore(home.run(scope.run), scope, len(params))
    head, made = seal_zero(scope, manifest.members.founders, state_root(params, momentum)), []
    draw = np.random.default_rng(5)
    for number in range(1, ROUNDS + 1):
        noise = draw.standard_normal(len(params), dtype=np.float32) * np.float32(0.01)
        params, momentum = params + noise, momentum + noise
        head = _seal(scope, keys, head, state_root(params, momentum), number)
        made.append(Checkpoint(head, params, momentum, np.zeros_like(params)))
        store.save(made[-1])
        store.append_round({"round": number, "tokens": {each.peer: 100 * number for each in keys}, "synced": False})
    return SealedHome(home, manifest, tuple(made), store)


def _seal(scope: Scope, keys: Sequence[Identity], parent: Head, state: Hash, number: int) -> Head:
    rows = tuple(Contribution(each.peer, Hash(bytes(32)), 100, 3, 1.0 / len(keys)) for each in keys)
    seal = Seal(
        view=number, parent=parent.seal, round=number, roster=Hash(bytes(32)), freeze=bytes(32), out=(), grams=(),
        contributions=rows, results=(), lost=(), table=parent.table.root, state=state,
    )  # fmt: skip
    name = seal_hash(scope, seal)
    proposal = scope.state(keys[0].peer, seal, keys[0].sign)
    votes = tuple(scope.state(each.peer, Vote(number, name), each.sign) for each in keys)
    return Head(name, number, number, replace(parent.table), proposal, votes, parent.table)
