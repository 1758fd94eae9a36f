"""A member that dies before it has saved a round's end, while the others seal the round and go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.swarm.crowd import trains, until, world

if TYPE_CHECKING:
    from peer.virtual import World

ROUNDS = 4


def began(count: int, seed: int, rounds: int) -> World:
    """A cell that has begun."""
    made = world(count, rounds, seed=seed, update_codec="int8", trainer=trains(rounds))
    made.begin()
    return made


def restart_after(made: World, number: int, seconds: float) -> None:
    """Kill a peer now; it is back from its disk so many seconds later."""
    victim = list(made.peers.values())[number]
    made.kill(victim)
    made.injector.open += 1

    def back() -> None:
        made.restart(victim)
        made.injector.open -= 1

    made.clock.at(made.clock.now + seconds, back)


@pytest.mark.parametrize("seed", range(8))
def test_it_gets_the_rounds_end_from_the_others_and_goes_on(seed: int) -> None:
    """It has voted for round 2, saved round 1 only, and is back when the others are in round 3."""
    made = began(4, seed, ROUNDS)
    victim = list(made.peers.values())[seed % 4]

    def voted() -> bool:
        return victim.head.round == 1 and any(each.peer == victim.peer for each in victim.machine._ctx.votes)

    until(made, voted)
    restart_after(made, seed % 4, 2.0)
    until(made, lambda: made.done)
    peers = list(made.peers.values())
    assert len({(peer.head.seal, peer.sealed[-1].params.tobytes()) for peer in peers}) == 1
    assert not any(each.record.synced for peer in peers for each in peer.sealed), "it computes what it missed"
    assert all(peer.head.round == ROUNDS for peer in peers)
    assert not made.refused


@pytest.mark.parametrize(("count", "every"), [(2, 1), (3, 7)])
def test_in_a_small_cell_it_can_restart_after_any_event(count: int, every: int) -> None:
    """With two or three everybody's vote is needed, and a reducer's parts must reach it a second time."""
    for steps in range(1, 2000, every):
        made = began(count, steps, 1)
        for _ in range(steps):
            made.clock.step()
        if made.done or all(peer.sealed for peer in made.peers.values()):
            assert steps > 30
            return
        restart_after(made, steps % count, 1.0)
        until(made, lambda made=made: made.done)  # type: ignore[misc]
        assert not made.refused
    raise AssertionError("a round of a few peers never ended")
