"""What a finished or running swarm left in its homes, read and recomputed by the parent process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protocols.outer import state_root
from protocols.statements import Scope

from ..settings import CELL
from ..state import Checkpoint, StateStore

if TYPE_CHECKING:
    from protocols.round.effects import Vector

    from .launch import Peer


@dataclass(frozen=True)
class Harvest:
    """One peer's rounds: its round log by number, and a way to its checkpoints."""

    peer: Peer
    log: dict[int, dict[str, Any]]
    store: StateStore

    def checkpoint(self, number: int) -> Checkpoint | None:
        """The sealed state of a round, every hash recomputed; None when it is missing or damaged."""
        try:
            return self.store.read(number)
        except ValueError:
            return None

    def state_hash(self, number: int) -> str | None:
        """The state hash of a round, recomputed from the checkpoint's own bytes."""
        checkpoint = self.checkpoint(number)
        return state_root(checkpoint.params, checkpoint.momentum).hex() if checkpoint else None


def gather(peers: list[Peer], run: bytes, values: int) -> list[Harvest]:
    """Read every home's round log; cheap enough to be called while the swarm runs."""
    found = []
    for peer in peers:
        store = StateStore(peer.home.run(run), Scope(run, CELL), values)
        found.append(Harvest(peer, {entry["round"]: entry for entry in store.rounds()}, store))
    return found


def common_rounds(harvests: list[Harvest]) -> list[int]:
    """Rounds that everybody is past who still takes part; the killed, and who has yet to join, hold nothing up."""
    survivors = [each for each in harvests if each.peer.killed is None and (each.log or each.peer.joins is None)]
    if not survivors:
        return []
    reached = min(max(each.log, default=0) for each in survivors)
    return sorted(number for number in {number for each in survivors for number in each.log} if number <= reached)


def newest(harvests: list[Harvest]) -> int:
    """The last round that anybody has sealed; 0 before the first."""
    return max((number for each in harvests for number in each.log), default=0)


def params_of(harvests: list[Harvest], number: int) -> Vector | None:
    """The parameters after a round, from the first peer that has them."""
    for each in harvests:
        checkpoint = each.checkpoint(number)
        if checkpoint is not None:
            return checkpoint.params
    return None
