"""Every defence of the round, switched off: a swarm that comes through with it then comes to the harm it prevents.

The quorum's is in ``test_byzantine``, the journal's in ``test_virtual``, that of finality in ``test_links``, those of
outbox and door beside their bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from peer.virtual import Faults, Kill, Outcome, Violation, World
from protocols.round import (
    dispatch,
    exchanging,
    gathering,
    gossip,
    reducing,
    rostering,
    settling,
    syncing,
    views,
    voting,
)

Patch = pytest.MonkeyPatch
Switch = Callable[[Patch], None]
PATIENCE_S = 900.0
"""Virtual seconds after which a small swarm that is not done never will be."""


@dataclass(frozen=True)
class Case:
    """``harm`` is given the outcome without the defence, None where an invariant broke."""

    world: Callable[[], World]
    off: Switch
    harm: Callable[[Outcome | None], bool]


def swarm(seed: int, peers: int, rounds: int, **faults: Any) -> Callable[[], World]:
    """A virtual swarm with these faults."""
    return lambda: World(seed, peers, rounds, Faults(**faults))


def killed(kill: str, phase: str, peers: int = 4) -> Callable[[], World]:
    """One in which somebody dies in round 2."""
    return swarm(0, peers, 4, kills=(Kill(kill, 2, phase),))


def idle(*_: object, **__: object) -> None:
    """In place of what is switched off."""


def deaf(*names: str) -> Switch:
    """Timers that ring unheard; nobody is gone before his time is over."""

    def off(patch: Patch) -> None:
        for module in (views, gathering, rostering, exchanging, reducing):
            patch.setattr(module, "is_gone", lambda *_: False)
        for name in names:
            patch.setitem(dispatch.TIMERS, name, idle)

    return off


def no_revisions(patch: Patch) -> None:
    """Nobody is put out."""
    deaf()(patch)
    patch.setattr(exchanging, "revise", idle)
    patch.setattr(rostering, "unserved", lambda *_: ())
    patch.setattr(views, "unserved_here", lambda *_: ())


def no_digests(patch: Patch) -> None:
    """Neighbours do not compare what they hold."""
    for name in ("on_digest", "on_have", "tell"):
        patch.setattr(gossip, name, idle)


def no_shrink(patch: Patch) -> None:
    """Nobody goes on without the others."""
    deaf("shrink")(patch)


def no_fork_choice(patch: Patch) -> None:
    """Nobody asks for another chain."""
    patch.setattr(syncing, "ask", idle)


def no_carry_over(patch: Patch) -> None:
    """A void round takes what was trained with it."""

    def settle(ctx: Any, task: Any, head: Any) -> None:
        settling.settle_round(ctx, task, head)
        if task.cast.void:
            ctx.drift = np.zeros_like(ctx.drift)

    patch.setattr(voting, "settle_round", settle)


def stuck(outcome: Outcome | None) -> bool:
    """Not done when everybody should be."""
    return outcome is not None and not outcome.ok


def void(outcome: Outcome | None) -> bool:
    """A round was lost."""
    return outcome is not None and any(link.void for link in outcome.chain)


def slow(outcome: Outcome | None) -> bool:
    """Rounds were lost, or it took much longer."""
    return stuck(outcome) or void(outcome)


def violated(outcome: Outcome | None) -> bool:
    """A rule broke."""
    return outcome is None


CASES = {
    "a dead coordinator stops everybody": Case(killed("coordinator", "roster"), deaf("view"), stuck),
    "who never commits stops everybody": Case(killed("contributor", "train"), deaf("grace"), stuck),
    "a dead reducer costs the round": Case(killed("reducer", "exchange"), no_revisions, slow),
    "lost messages cost rounds": Case(swarm(2, 8, 4, loss=0.3), no_digests, slow),
    "lost bytes stop a reducer": Case(swarm(1, 4, 4, loss=0.3), deaf("chase"), slow),
    "half of the members stops the other half": Case(killed("2x", "train"), no_shrink, stuck),
    "what a void round held is lost": Case(killed("2x", "train"), no_carry_over, violated),
    "a healed partition stays split": Case(swarm(4, 6, 6, partitions=1, split=(0.5, 0.5)), no_fork_choice, stuck),
}


@pytest.mark.parametrize("name", CASES)
def test_without_its_defence(name: str, monkeypatch: Patch) -> None:
    case = CASES[name]
    assert case.world().run(PATIENCE_S).ok
    case.off(monkeypatch)
    try:
        outcome: Outcome | None = case.world().run(PATIENCE_S)
    except Violation:
        outcome = None
    assert case.harm(outcome)
