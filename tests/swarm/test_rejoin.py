"""Two halves of a virtual swarm that went on alone become one again, however quick their rounds are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from peer.virtual import Plan, World
from protocols.table import STANDING

if TYPE_CHECKING:
    from collections.abc import Callable

    from peer.virtual import VirtualPeer
    from protocols.ids import PeerId
    from protocols.round.effects import Train


def go_on(world: World, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
    """So many virtual seconds, or until something holds; returns whether it came to that."""
    end = world.clock.now + seconds
    while not until() and world.clock.now < end:
        assert world.clock.step(), world.stand()
    return until()


def synced(peer: VirtualPeer) -> list[int]:
    """Rounds whose state it fetched."""
    return [each.record.round for each in peer.sealed if each.record.synced]


@pytest.mark.parametrize(("window", "slower", "seed"), [(1.0, 0.0, 12), (3.0, 0.15, 5), (20.0, 0.15, 1)])
def test_the_losing_half_resyncs_once_and_votes_again(window: float, slower: float, seed: int) -> None:
    def pace(peer: PeerId, effect: Train) -> float:
        # Nobody waits for those who do not vote: both halves must be equally fast, for either may lose.
        return window * (1 + slower * (world.number(peer) % 3))

    world = World(seed, 6, 1000, plan=Plan(pace=pace, keep=0))
    world.begin()
    peers = world.living()
    go_on(world, 4 * window + 10)
    world.network.part([each.peer for each in peers[:3]])
    assert go_on(world, 240, lambda: all(len(each.machine.head.table.voters) == 3 for each in peers)), world.stand()
    go_on(world, window + 8)

    world.network.heal()
    assert go_on(world, 45, lambda: any(map(synced, peers))), world.stand()

    def one() -> bool:
        tables = [each.machine.head.table for each in peers]
        return all(row.state == STANDING for table in tables for row in table.members.values())

    assert go_on(world, 8 * (2 * window + 5), one), world.stand()
    lost = [each for each in peers if synced(each)]
    won = next(each for each in peers if each not in lost)
    assert sorted(len(synced(each)) for each in peers) == [0, 0, 0, 1, 1, 1]
    resync = min(synced(each)[0] for each in lost)
    assert won.machine.head.round <= resync + 10, "three rosters each, one back at a time"
    void = sum(each.record.void for each in won.sealed if each.record.round > resync)
    assert void <= 1, "those who are back may have signed a far higher view"
    taken = [each.record.weights for each in won.sealed if each.record.round > resync]
    assert all(any(weights.get(each.peer, 0.0) > 0 for weights in taken) for each in lost)
