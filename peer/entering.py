"""The way from a run's id to all that training on it needs: manifest, data, and the state it begins from.

What this machine lacks comes from other peers of the run, and is known by its hash; while nobody answers the daemon
seeks. Nothing here gives up: network trouble shows in the status.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.manifest import Manifest, run_id
from protocols.outer import state_root
from protocols.round.chain import seal_zero
from protocols.statements import Scope

from . import status as st
from .models import initial_vector
from .settings import CELL, round_setting, train_config
from .state import Checkpoint

if TYPE_CHECKING:
    from protocols.ids import PeerId
    from protocols.round.chain import Head
    from protocols.round.effects import Setting

    from .network import Network
    from .options import UpOptions
    from .paths import Home
    from .reporter import Reporter
    from .runs import Goal
    from .state import StateStore
    from .training import TrainConfig

AGAIN_S = (1.0, 5.0)
"""First and longest pause before everybody is asked again; at once when somebody new answers."""
LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Run:
    """What a daemon serves: the manifest and what follows from it."""

    manifest: Manifest
    scope: Scope
    setting: Setting
    training: TrainConfig

    @staticmethod
    def of(manifest: Manifest, options: UpOptions) -> Run:
        """Raises ConfigError for what this software cannot train."""
        training = train_config(manifest, options.data)
        scope = Scope(run_id(manifest), CELL)
        return Run(manifest, scope, round_setting(manifest, training.parameters), training)


class Entry:
    """Brings together what a run needs, asking other peers for what is not here."""

    def __init__(self, goal: Goal, home: Home, identity: PeerId, reporter: Reporter) -> None:
        self._goal, self._home, self._peer, self._reporter = goal, home, identity, reporter

    async def manifest(self, network: Network | None) -> Manifest:
        raise NotImplementedError

    async def data(self, run: Run, opening: asyncio.Task[Network | None]) -> None:
        pass


def beginning(run: Run, store: StateStore, reporter: Reporter) -> Checkpoint:
    """The last sealed state, or the run's beginning. Raises EnvironmentFault when the saved ones are unsound."""
    found = store.load()
    for text in store.warnings:
        reporter.warn("checkpoint", text)
    if found is not None:
        reporter.say(f"going on after sealed round {found.head.round}", event="resumed", round=found.head.round)
        reporter.apply(st.Loaded(len(found.params), _state_of(found.head), last_sealed=found.head.round))
        return found
    training = run.training
    params = initial_vector(training.size, training.context, training.seed)
    momentum = params * 0
    root = state_root(params, momentum)
    reporter.apply(st.Loaded(len(params), root.hex(), last_sealed=0))
    head = seal_zero(run.scope, run.manifest.members.founders, root)
    return Checkpoint(head, params, momentum, momentum.copy())


def _state_of(head: Head) -> str:
    return head.body.state.hex() if head.body else ""
