"""What a start knows of the run's history, for the round machine: the chain on the disk, seal 0, a person's choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.outer import state_root
from protocols.round.chain import Head, seal_zero
from protocols.table import genesis

from .start_state import fresh_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocols.ids import Hash, PeerId
    from protocols.round.links import Image

    from .entering import Run
    from .reporter import Reporter
    from .state import Checkpoint, StateStore


@dataclass(frozen=True, slots=True)
class Roots:
    """``past``: what the chain kept; ``zero``: seal 0; ``followed``: the seal that a person chose. None: unknown."""

    past: Image | None
    zero: Head | None
    followed: Head | None


def find_roots(run: Run, store: StateStore, checkpoint: Checkpoint, reporter: Reporter) -> Roots:
    """Read and check what lies beside ``checkpoint``; what is damaged is told as a warning and left out."""
    founders = run.manifest.members.founders
    chain = store.chain
    past = chain.load(founders) if checkpoint.head.proposal is not None else None
    followed = chain.followed()
    for text in chain.warnings:
        reporter.warn("chain", text)
    if checkpoint.head.proposal is None:
        return Roots(None, None, followed)
    return Roots(past, _zero(past.zero if past else None, run, founders), followed)


def _zero(seal: Hash | None, run: Run, founders: Sequence[PeerId]) -> Head | None:
    """Seal 0, by the hash that was saved, or from the run's first parameters where they can be drawn again."""
    if seal is not None:
        return Head(seal, 0, 0, genesis(founders, seal), None, ())
    if run.manifest.start is not None:
        return None
    state = fresh_state(run.training.size, run.training.context, run.training.seed)
    return seal_zero(run.scope, founders, state_root(*state))
