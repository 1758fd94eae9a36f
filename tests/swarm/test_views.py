"""Views: whoever has the turn may die in any phase; its round's work is kept, or given up without a loss."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from protocols.drift import MAX_AGE
from protocols.messages import Ready, Roster
from tests.swarm.crowd import (
    PART,
    SCOPE,
    body_of,
    draw,
    first_head,
    first_state,
    identities,
    losing,
    run,
    settle,
    signed_kinds,
    spoken,
    stand_in,
    trains,
    turn_of,
    until,
    word,
    world,
)

if TYPE_CHECKING:
    from peer.virtual import VirtualPeer, World
    from protocols.ids import PeerId
    from protocols.round.effects import Effect, Train

TOKENS = 25 * 1024


def survivors(made: World, dead: PeerId) -> list[VirtualPeer]:
    return [peer for name, peer in made.peers.items() if name != dead]


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("phase", ["train", "commit", "roster", "exchange", "reduce", "apply", "seal"])
def test_a_coordinator_that_dies_costs_a_view_and_no_work(phase: str, silent: bool) -> None:
    """``silent``: its streams stay open. Its own update is kept where others had its commit and its parts."""
    made = world(4, 2)
    victim = turn_of(4, 1)
    made.begin()
    until(made, lambda: made.peers[victim].machine.waiting()[0] == phase)
    if phase not in {"train", "commit"}:  # let what it has pushed arrive
        until(made, lambda: all(victim in peer.machine._ctx.round.commits for peer in survivors(made, victim)))
    made.kill(made.peers[victim], silent=silent)
    until(made, lambda: made.done)
    for peer in survivors(made, victim):
        first = peer.sealed[0]
        assert not any(each.record.void for each in peer.sealed)
        assert first.record.view >= 2 or phase == "seal", "it may have sent its seal"
        assert first.record.view < 5
        rest = {each.peer for each in survivors(made, victim)}
        assert set(first.record.contributors) - {victim} == rest
        assert all(first.record.weights[each] > 0 for each in rest)
        assert (victim in first.record.contributors) == (phase not in {"train", "commit"})
        assert not peer.sealed[-1].drift.any(), "everything that was trained is sealed"


def test_nobody_votes_below_a_ready_that_its_key_signed_on_another_machine() -> None:
    """It comes from a neighbour while the first view is under way: the others seal that view, and this one looks on."""
    made = world(4, 2)
    key = next(each for each in identities(4) if each.peer != turn_of(4, 1))
    peer = made.peers[key.peer]
    made.begin()
    until(made, lambda: peer.machine.waiting()[0] == "exchange")
    elsewhere = Ready(3, peer.machine.head.seal, 0, (), b"", 0, ())
    peer.machine.receive(SCOPE.state(key.peer, elsewhere, key.sign), turn_of(4, 1), made.clock.now)
    until(made, lambda: made.done)
    assert all("vote" in signed_kinds(each, 1) for each in survivors(made, key.peer))
    assert not {"vote"} & {*signed_kinds(peer, 1), *signed_kinds(peer, 2)}
    assert peer.sealed[-1].head.seal == made.newest().seal


def test_a_view_in_vain_is_a_strike_for_whoever_had_it() -> None:
    made = world(4, 2)
    losing(made, lambda frame: word(frame) == "roster" and cast("Roster", spoken(frame)).view == 1)
    settle(made)
    table = made.newest().table
    assert table.members[turn_of(4, 1)].benched >= 16
    assert [each.record.coordinator for each in made.living()[0].sealed][0] == turn_of(4, 2)


def void_world() -> World:
    """Four peers whose rosters of views 1 and 2 get lost; they train two windows."""
    made = world(4, trainer=trains(2))
    losing(made, lambda frame: word(frame) == "roster" and cast("Roster", spoken(frame)).view < 3)
    settle(made)
    return made


def test_from_the_third_view_on_a_round_may_be_void_and_its_drift_stays() -> None:
    made = void_world()
    for peer in made.peers.values():
        first, second = peer.sealed
        assert (first.record.void, first.record.view, first.record.round) == (True, 3, 1)
        assert first.record.reason == "2 views failed"
        assert first.params.tobytes() == first_state(len(first.params))[0].tobytes()
        assert not first.momentum.any()
        assert (first.drift == draw(peer.peer, first_head(identities(4)).seal, len(first.drift))).all()
        assert not second.record.void
        assert second.record.tokens == dict.fromkeys(made.peers, 2 * TOKENS), "both windows are in"
        assert not second.drift.any()
    # The sum over both seals is what it would have been: the mean of what everybody trained, through one step.
    drifts = [
        draw(each, first_head(identities(4)).seal, len(first.drift)) + draw(each, first.head.seal, len(first.drift))
        for each in made.peers
    ]
    momentum = -np.mean(drifts, axis=0)
    assert np.allclose(second.momentum, momentum, atol=1e-6)
    assert np.allclose(second.params, first.params - 0.7 * 1.8 * momentum, atol=1e-6)


def test_no_round_is_void_while_views_are_few() -> None:
    """Only the first view's roster gets lost: the second coordinator makes the round."""
    made = world(4)
    losing(made, lambda frame: word(frame) == "roster" and cast("Roster", spoken(frame)).view < 2)
    outcome = settle(made)
    assert outcome.chains() == [outcome.chains()[0]] * 4
    assert [(each.record.view, each.record.void) for each in outcome.peers[0].sealed] == [(2, False)]


def test_drift_that_three_seals_have_not_taken_is_dropped() -> None:
    """One peer's parts reach nobody: only those that it reduces itself are ever taken."""
    made = world(4, 5)
    poor = identities(4)[0].peer
    losing(made, lambda frame: frame.kind == "parts" and frame.sender == poor)
    settle(made)
    peer = made.peers[poor]
    ages = [0] * 6
    dropped = 0
    for each in peer.sealed:
        for part, owner in enumerate(each.record.owners):
            taken = owner == poor
            ages[part] = 0 if taken else ages[part] + 1
            left = each.drift[part * PART : (part + 1) * PART]
            assert left.any() == (not taken and ages[part] < MAX_AGE)
            if ages[part] == MAX_AGE:
                ages[part], dropped = 0, dropped + 1
        assert each.ages == tuple(ages)
        parts = {line.peer: line.parts for line in body_of(each).contributions}
        assert parts[poor] == each.record.owners.count(poor)
    assert dropped


def test_a_window_that_comes_too_late_enters_the_next_round() -> None:
    made = world(4, 3)
    slow = identities(4)[0].peer
    asked: list[Train] = []

    def pace(peer: PeerId, effect: Train) -> float:
        if peer == slow:
            asked.append(effect)
        return 30.0 if peer == slow and effect.round == 1 else 5.0

    made.plan = replace(made.plan, pace=pace)
    settle(made)
    records = [each.record for each in made.peers[identities(4)[1].peer].sealed]
    assert slow not in records[0].tokens
    with_it = next(each for each in records if slow in each.tokens)
    assert with_it.weights[slow] > 0
    zero = first_head(identities(4)).seal
    assert asked[0].parent == zero
    assert asked[1].parent != zero, "one window at a time; the base moved meanwhile"
    assert with_it.tokens[slow] == TOKENS
    assert sum(each.tokens.get(slow, 0) for each in records) == TOKENS * len(
        [each for each in asked if each.round <= records[-1].round]
    )
    assert not made.peers[slow].sealed[-1].drift.any()


# --- moving up ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ahead", "moves"), [((1,), False), ((1, 2), True)])
def test_a_third_of_who_is_here_moves_a_peer_up_and_one_of_four_does_not(ahead: tuple[int, ...], moves: bool) -> None:
    """Neither does it where the others have said nothing for a long time: they may be training."""
    one, keys = stand_in(4), identities(4)
    one.start(0.0)
    for other in keys[1:]:
        one.welcome(other.peer, 0.0)
    for number in ahead:
        body = Ready(9, one.head.seal, 0, (), b"", 0, ())
        one.receive(SCOPE.state(keys[number].peer, body, keys[number].sign), keys[number].peer, 100.0)
    assert one.view == (9 if moves else 1)


def test_a_vote_is_never_below_a_ready() -> None:
    """A peer that is ready for view 2 does not vote for view 1, whatever comes."""
    made = world(4)
    early = identities(4)[0]
    if early.peer == turn_of(4, 1):
        early = identities(4)[1]
    losing(made, lambda frame: word(frame) == "seal" and frame.to == early.peer)
    made.begin()
    peer = made.peers[early.peer]
    until(made, lambda: peer.machine.waiting()[0] == "seal")
    peer.carry_out(_give_up(peer, made.clock.now))
    made.network.courier = None
    for frame in list(made.network.withheld):
        made.network.release(frame)
    until(made, lambda: made.done)
    signed = [statement.body for _, statement in peer.disk.journal.entries.values()]
    assert 2 in [body.view for body in signed if isinstance(body, Ready)]
    assert not [body for body in signed if body.kind == "vote" and getattr(body, "view", 0) == 1]
    assert run(4).chains()[0] == [each.head.seal for each in peer.sealed], "three of four votes were enough"


def _give_up(peer: VirtualPeer, now: float) -> list[Effect]:
    """What its view timer would do."""
    peer.machine._ctx.set_timer("view", now)
    return peer.machine.tick(now)
