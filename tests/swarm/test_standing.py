"""A peer that nobody can dial says so in its commits, and reduces nothing while others can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.messages import Commit
from tests.swarm.crowd import run, settle, world

if TYPE_CHECKING:
    from peer.virtual.peer import VirtualPeer
    from protocols.ids import PeerId


def said(peer: VirtualPeer) -> set[bool]:
    """What its commits say, those in its journal."""
    bodies = [statement.body for _, statement in peer.disk.journal.entries.values()]
    return {body.direct for body in bodies if isinstance(body, Commit)}


def owners(peer: VirtualPeer) -> list[set[PeerId]]:
    """Who reduced, by round."""
    return [set(sealed.record.owners) for sealed in peer.sealed if not sealed.record.void]


def test_whoever_cannot_be_dialled_trains_and_does_not_reduce() -> None:
    usual = run(4, 2)
    assert [said(each) for each in usual.peers] == [{True}] * 4
    reducer = min(owners(usual.peers[0])[0])
    made = world(4, 2)
    hidden = made.peers[reducer]
    hidden.machine.stand(direct=False)
    outcome = settle(made)
    assert [said(each) for each in outcome.peers] == [{each.peer != reducer} for each in outcome.peers]
    assert len(owners(hidden)) == 2 and all(reducer not in each for each in owners(hidden))
    assert all(reducer in sealed.record.contributors for sealed in hidden.sealed)
    assert not outcome.refusals() and outcome.chains() == [outcome.chains()[0]] * 4


def test_where_nobody_can_be_dialled_all_reduce_all_the_same() -> None:
    made = world(3, 1)
    for each in made.peers.values():
        each.machine.stand(direct=False)
    outcome = settle(made)
    assert owners(outcome.peers[0]) == [set(made.peers)]


def test_what_changes_holds_for_the_next_commit() -> None:
    made = world(2, 1)
    one = next(iter(made.peers.values()))
    one.machine.stand(direct=False)
    one.machine.stand(direct=True)
    settle(made)
    assert said(one) == {True}
