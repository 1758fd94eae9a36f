"""A trace: what real daemons trained and sealed, enough to run the same rounds again in memory.

The in-memory harness drives the very class the daemons drive, so its seals must be the same bytes.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from protocols.manifest import render, run_id
from protocols.manifest_text import parse
from protocols.outer import state_root
from protocols.round.chain import seal_zero
from protocols.round.effects import Train, Window
from protocols.statements import Scope

from ..models import initial_vector
from ..options import SwarmOptions
from ..settings import CELL, round_setting, train_config
from ..state import StateStore
from ..virtual import VirtualPeer, VirtualSwarm
from .launch import Launcher, keys

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.ids import PeerId

    from .harvest import Harvest

HEADER = "trace.json"


def write_trace(folder: Path, launcher: Launcher, harvests: list[Harvest]) -> None:
    """Write manifest, committed windows and seals of every peer below ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.toml").write_text(render(launcher.manifest))
    seals: dict[str, list[str]] = {}
    for each in harvests:
        own = folder / f"peer-{each.peer.index}"
        own.mkdir(exist_ok=True)
        for path in each.store.folder.glob("pending-*.safetensors"):
            shutil.copy2(path, own / path.name)
        checkpoints = (each.checkpoint(number) for number in sorted(each.log))
        proposals = [found.head.proposal for found in checkpoints if found is not None]
        seals[str(each.peer.index)] = [proposal.raw.hex() for proposal in proposals if proposal is not None]
    seed = launcher.manifest.run.seed
    (folder / HEADER).write_text(json.dumps({"schema": 1, "seed": seed, "peers": len(harvests), "seals": seals}))


def replay(folder: Path) -> list[VirtualPeer]:
    """Run the traced rounds in memory; the peers, in order of their index, with what they sealed."""
    header = json.loads((folder / HEADER).read_text())
    manifest = parse((folder / "run.toml").read_text())
    config = train_config(manifest, None)
    scope = Scope(run_id(manifest), CELL)
    identities = keys(SwarmOptions(peers=header["peers"], seed=header["seed"]))
    stores = {
        each.peer: StateStore(folder / f"peer-{index}", scope, config.parameters)
        for index, each in enumerate(identities)
    }

    def trainer(peer: PeerId, effect: Train) -> Window | None:
        found = stores[peer].load_pending(effect.parent)
        return Window(*found) if found else None

    swarm = VirtualSwarm(scope, round_setting(manifest, config.parameters), trainer)
    params = initial_vector(config.size, config.context, config.seed)
    state = (params, params * 0)
    swarm.add(identities, seal_zero(scope, manifest.members.founders, state_root(*state)), state)
    swarm.run()
    return [swarm.peers[each.peer] for each in identities]


def replay_check(folder: Path) -> dict[str, Any]:
    """The check ``replay_identical``: every seal in memory has the bytes of the daemons' seal."""
    header = json.loads((folder / HEADER).read_text())
    wrong = []
    for index, peer in enumerate(replay(folder)):
        own = [sealed.head.proposal.raw.hex() for sealed in peer.sealed if sealed.head.proposal is not None]
        real = header["seals"][str(index)]
        if own != real:
            same = sum(mine == theirs for mine, theirs in zip(own, real, strict=False))
            wrong.append(f"peer {index}: {len(own)} seals in memory, {len(real)} of the daemon, {same} equal")
    return {"name": "replay_identical", "ok": not wrong, "detail": "; ".join(wrong)}
