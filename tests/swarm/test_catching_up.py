"""Who was cut off for some rounds gets them one after another, faster than the others make new ones."""

from __future__ import annotations

import pytest

from tests.swarm.crowd import identities, losing, until, world

BEHIND = 4
"""Rounds that it missed."""


@pytest.mark.parametrize("number", range(4))
def test_it_is_level_again_within_seconds(number: int) -> None:
    """A round takes 5 s here, and while a member is missing 15 s: at 2 s a missed round it gains on the others."""
    made = world(4, 30)
    cut = identities(4)[number].peer
    victim, others = made.peers[cut], [each for each in made.peers.values() if each.peer != cut]
    away = False
    losing(made, lambda frame: away and cut in (frame.sender, frame.to))
    made.begin()
    until(made, lambda: victim.machine.head.round >= 2)
    away = True
    until(made, lambda: min(each.machine.head.round for each in others) >= 2 + BEHIND)
    away = False
    until(made, lambda: victim.machine.head.round == max(each.machine.head.round for each in others), 2.0 * BEHIND)
    assert not any(each.record.synced for each in victim.sealed), "no state had to be fetched"
