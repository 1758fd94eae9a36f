"""One to four members: who is silent is gone on without, and votes again when it has been back for three rosters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from protocols.table import AWAY, LOST, STANDING
from tests.swarm.crowd import body_of, run, trains, until, world

if TYPE_CHECKING:
    from collections.abc import Sequence

    from peer.virtual import VirtualPeer, World

SHRINK_S = 100.0
"""Three views without a quorum, each 15 s and longer than the one before, and the training before."""


def going(count: int, rounds: int = 1) -> World:
    """A cell that has made some rounds and goes on for long."""
    made = world(count, 99, trainer=trains(999))
    made.begin()
    until(made, lambda: all(peer.head.round >= rounds for peer in made.living()))
    return made


def killed(made: World, count: int) -> Sequence[VirtualPeer]:
    """The first so many, at once."""
    dead = list(made.living())[:count]
    for peer in dead:
        made.kill(peer)
    return dead


def witness(made: World, but: VirtualPeer) -> VirtualPeer:
    """Somebody else on the newest head, as soon as there is one."""
    others = [each for each in made.living() if each.peer != but.peer]
    until(made, lambda: any(each.head.seal == made.newest().seal for each in others))
    return next(each for each in others if each.head.seal == made.newest().seal)


def state(made: World, peer: VirtualPeer) -> str:
    return made.newest().table.members[peer.peer].state


@pytest.mark.parametrize(("count", "deaths"), [(2, 1), (3, 1), (4, 2)])
def test_a_death_too_many_costs_a_shrink_and_no_work(count: int, deaths: int) -> None:
    made = going(count)
    (peer, *_) = made.living()[deaths:]
    dead = killed(made, deaths)
    at, before = made.clock.now, len(peer.sealed)
    until(made, lambda: len(peer.sealed) > before + 1)
    shrink, after = list(peer.sealed)[before : before + 2]
    assert shrink.record.void and shrink.record.reason == f"going on without {deaths} silent members"
    assert set(body_of(shrink).lost) == {each.peer for each in dead}
    assert not after.record.void
    assert set(after.record.contributors) >= {each.peer for each in made.living()}
    assert made.clock.now - at < SHRINK_S + 20
    assert all(state(made, each) == LOST for each in dead)
    assert body_of(shrink).state == (body_of(peer.sealed[before - 1]).state), "nothing is taken, nothing is lost"
    assert not any(each.seal == shrink.head.seal for each in peer.final), "provisional as long as they are lost"


@pytest.mark.parametrize("count", [4, 7])
def test_a_death_that_leaves_a_quorum_shrinks_nobody(count: int) -> None:
    made = going(count)
    (dead,) = killed(made, 1)
    until(made, lambda: all(peer.head.round >= 4 for peer in made.living()))
    for peer in made.living():
        assert not any(each.record.void for each in peer.sealed)
    assert state(made, dead) == STANDING


@pytest.mark.parametrize("count", [2, 3])
def test_who_was_lost_and_comes_back_votes_with_its_third_roster(count: int) -> None:
    made = going(count)
    (dead,) = killed(made, 1)
    until(made, lambda: state(made, dead) == LOST)
    until(made, lambda: made.newest().round >= 4)
    back = made.restart(dead)
    until(made, lambda: state(made, back) == STANDING)
    peer = witness(made, back)
    with_it = [back.peer in each.record.tokens for each in peer.sealed]
    came = next(
        number
        for number, (has, row) in enumerate(zip(with_it, peer.sealed, strict=True))
        if has and row.head.table.members[back.peer].state == LOST
    )
    assert peer.sealed[came].record.weights[back.peer] > 0, "its progress counts before its vote does"
    stands = [each.head.table.stands(back.peer) for each in peer.sealed]
    third = next(number for number in range(came + 2, len(stands)) if with_it[number - 2 : number + 1] == [True] * 3)
    assert stands[came : third + 1] == [False] * (third - came) + [True]
    until(made, lambda: back.peer in {vote.peer for vote in made.newest().votes})
    until(made, lambda: bool(peer.final) and peer.final[-1].round > came + 1)


def test_a_member_is_away_after_four_rosters_and_back_after_three() -> None:
    made = going(7)
    (dead,) = killed(made, 1)
    until(made, lambda: state(made, dead) == AWAY, 900)
    peer = witness(made, dead)
    missed = [dead.peer not in each.record.tokens for each in peer.sealed]
    first = missed.index(True)
    assert missed[first:] == [True] * 4
    assert [each.head.table.stands(dead.peer) for each in list(peer.sealed)[first:]] == [True, True, True, False]
    back = made.restart(dead)
    until(made, lambda: state(made, back) == STANDING)
    until(made, lambda: peer.head.table.stands(back.peer))
    here = [back.peer in each.record.tokens for each in peer.sealed]
    came = here.index(True, first)
    assert here[came : came + 3] == [True] * 3
    assert all(each.record.weights[back.peer] > 0 for each in list(peer.sealed)[came:])


def test_a_cell_of_one_needs_nobody() -> None:
    outcome = run(1, 5)
    (peer,) = outcome.peers
    assert [each.record.view for each in peer.sealed] == [1, 2, 3, 4, 5]
    assert len(peer.final) == 5
    assert outcome.world.clock.now < 5 * 6 + 15
