"""A trace: what real daemons trained and sealed, and how long it took: enough to run the same rounds again in memory.

The virtual swarm drives the very class the daemons drive, so its seals must be the same bytes.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from protocols.manifest import render, run_id
from protocols.manifest_text import parse
from protocols.round.effects import Train, Window

from ..options import SwarmOptions
from ..settings import CELL, round_setting, train_config
from ..start_state import fresh_state
from ..state import StateStore
from ..virtual import Plan, QuickScope, VirtualPeer, World
from .launch import Launcher, keys

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.ids import PeerId

    from .harvest import Harvest

HEADER = "trace.json"
NO_RECORD_S = 20.0
"""Of a window whose round nobody logged."""


def write_trace(folder: Path, launcher: Launcher, harvests: list[Harvest]) -> None:
    """Write manifest, committed windows and seals of every peer below ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.toml").write_text(render(launcher.manifest))
    seals: dict[str, list[str]] = {}
    seconds: dict[str, dict[int, float]] = {}
    for each in harvests:
        own = folder / f"peer-{each.peer.index}"
        own.mkdir(exist_ok=True)
        for path in each.store.folder.glob("pending-*.safetensors"):
            shutil.copy2(path, own / path.name)
        checkpoints = (each.checkpoint(number) for number in sorted(each.log))
        proposals = [found.head.proposal for found in checkpoints if found is not None]
        seals[str(each.peer.index)] = [proposal.raw.hex() for proposal in proposals if proposal is not None]
        seconds[str(each.peer.index)] = {n: entry["seconds"].get("train", 0.0) for n, entry in each.log.items()}
    header = {"schema": 1, "seed": launcher.manifest.run.seed, "peers": len(harvests)}
    (folder / HEADER).write_text(json.dumps({**header, "seals": seals, "seconds": seconds}))


def replay(folder: Path) -> list[VirtualPeer]:
    """Run the traced rounds in memory; the peers, in order of their index, with what they sealed."""
    header = json.loads((folder / HEADER).read_text())
    manifest = parse((folder / "run.toml").read_text())
    config = train_config(manifest, None)
    scope = QuickScope(run_id(manifest), CELL)
    identities = keys(SwarmOptions(peers=header["peers"], seed=header["seed"]))
    numbers = {each.peer: str(index) for index, each in enumerate(identities)}
    stores = {peer: StateStore(folder / f"peer-{index}", scope, config.parameters) for peer, index in numbers.items()}

    def trainer(peer: PeerId, effect: Train) -> Window | None:
        found = stores[peer].load_pending(effect.parent)
        return Window(*found) if found else None

    def pace(peer: PeerId, effect: Train) -> float:
        return float(header["seconds"][numbers[peer]].get(str(effect.round), NO_RECORD_S))

    state = fresh_state(config.size, config.context, config.seed)
    plan = Plan(
        scope=scope, setting=round_setting(manifest, config.parameters), founders=identities,
        state=state, trainer=trainer, pace=pace, work_s=(0.0, 0.0), keep=0,
    )  # fmt: skip
    rounds = max((len(seals) for seals in header["seals"].values()), default=0)
    world = World(header["seed"], header["peers"], rounds, plan=plan)
    world.run()
    return [world.peers[each.peer] for each in identities]


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
