"""A peer that trains nothing for a while: it follows, votes and waits, and goes on with what is still of use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from protocols.drift import MAX_AGE
from protocols.round.effects import Effect, Sealed, Sign, Train, Window, Work
from tests.swarm.crowd import VALUES, stand_in, until, world

if TYPE_CHECKING:
    from peer.virtual.peer import VirtualPeer
    from peer.virtual.world import World
    from protocols.round.machine import Machine

WINDOW = Window(np.ones(VALUES, dtype=np.float32), 1, 1)


def idle(machine: Machine, seconds: float) -> list[Effect]:
    """What it does when only time passes."""
    effects, now = [], 0.0
    while (now := max(machine.deadline(), now + 0.1)) < seconds:
        effects += machine.tick(now)
    return effects


def test_alone_nothing_is_signed_while_nothing_is_trained() -> None:
    machine = stand_in(1)
    assert [type(each) for each in machine.start(0.0) if isinstance(each, Train)] == [Train]
    machine.pause(1.0)
    assert not [each for each in idle(machine, 86_400.0) if isinstance(each, (Sign, Sealed))]
    assert not [each for each in machine.resume(86_400.0) if isinstance(each, Train)], "the window in flight goes on"
    effects = machine.trained(machine.head.seal, WINDOW, 86_401.0)
    assert [each.key for each in effects if isinstance(each, Work)] == ["encode"]


def test_without_a_pause_the_same_silence_ends_in_void_rounds() -> None:
    machine = stand_in(1)
    machine.start(0.0)
    assert [each for each in idle(machine, 86_400.0) if isinstance(each, Sign)]


def test_what_was_trained_before_and_not_taken_is_offered_during_the_pause() -> None:
    machine = stand_in(1)
    machine.start(0.0, WINDOW.drift)
    machine._ctx.ages = (1,) * len(machine._ctx.ages)  # a restart: one seal has left it
    machine.pause(1.0)
    assert "encode" in [each.key for each in idle(machine, 86_400.0) if isinstance(each, Work)]


@pytest.mark.parametrize("rounds", [MAX_AGE - 1, MAX_AGE])
def test_the_others_go_on_and_a_window_that_has_waited_too_long_is_replaced(rounds: int) -> None:
    made = world(4, 8)
    one = next(iter(made.peers.values()))
    asked: list[Train] = []
    one._do[Train] = asked.append
    made.begin()
    until(made, lambda: bool(asked))
    one._call(one.machine.pause, made.clock.now)
    until(made, lambda: one.machine.head.round >= rounds)
    assert [each.record.void for each in one.sealed] == [False] * rounds
    assert all(one.peer not in each.record.contributors for each in one.sealed)
    assert len(asked) == 1, "nothing more is asked of a trainer that is not there"
    one._call(one.machine.resume, made.clock.now)
    if rounds < MAX_AGE:
        assert len(asked) == 1
    else:
        assert asked[-1].parent == one.machine.head.seal
        assert (asked[-1].base == one.sealed[-1].params).all()
    train_again(made, one, asked[-1])
    until(made, lambda: bool(one.sealed) and one.peer in one.sealed[-1].record.contributors)


def train_again(made: World, one: VirtualPeer, effect: Train) -> None:
    """The window comes 5 s later."""
    window = Window(effect.drift + np.float32(0.01), 25, 25)
    made.clock.at(made.clock.now + 5.0, lambda: one._call(one.machine.trained, effect.parent, window, made.clock.now))
