"""A member that dies before it has saved a round's end, while the others seal the round and go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.virtual import VirtualPeer
from protocols.ids import Hash
from protocols.payloads import Want
from tests.swarm.crowd import SETTING, Swarm, first_head, first_state, identities

SMALL = 2 * 32_768 + 200
ROUNDS = 4


def started(seed: int, count: int = 4, rounds: int = ROUNDS) -> Swarm:
    """Founders, some frames of theirs under way."""
    swarm = Swarm(replace(SETTING, values=SMALL, update_codec="int8"), rounds, seed)
    keys = identities(count)
    swarm.add(keys, first_head(keys, SMALL), first_state(SMALL))
    for each in swarm.peers.values():
        each.start()
    return swarm


def restart(swarm: Swarm, victim: VirtualPeer, saved: int) -> VirtualPeer:
    """The victim again, from its checkpoint of round ``saved``, with its journal and new streams to everybody."""
    last = victim.sealed[saved - 1] if saved else None
    state = (last.params.copy(), last.momentum.copy()) if last else first_state(SMALL)
    founders = [each._identity for each in swarm.peers.values()]
    again = VirtualPeer(swarm, victim._identity, last.head if last else first_head(founders, SMALL), state)
    again._signed = victim._signed
    again.sealed = victim.sealed[:saved]
    swarm.peers[victim.peer] = again
    again.carry_out(again.machine.start(0.0, last.drift if last else None))
    for each in swarm.peers.values():
        if each is not again:
            each.carry_out(each.machine.welcome(again.peer))
            again.carry_out(again.machine.welcome(each.peer))
    return again


def deliver_without(swarm: Swarm, victim: VirtualPeer, until: int) -> None:
    """Deliver, losing all that concerns the victim, until everybody else has sealed round ``until``."""
    others = [each for each in swarm.peers.values() if each is not victim]
    while any(len(each.sealed) < until for each in others):
        frame = swarm.network.pop()
        assert frame is not None, "the others did not seal without it"
        if victim.peer not in (frame.sender, frame.to):
            swarm.peers[frame.to].receive(frame.sender, frame.kind, frame.payload)


@pytest.mark.parametrize("seed", range(8))
def test_it_gets_the_rounds_end_from_the_others_and_goes_on(seed: int) -> None:
    swarm = started(seed)
    victim = swarm.peers[identities(4)[seed % 4].peer]
    while len(victim.sealed) < 2:  # it has sent all that round 2 needs from it, and saved round 1 only
        frame = swarm.network.pop()
        assert frame is not None
        swarm.peers[frame.to].receive(frame.sender, frame.kind, frame.payload)
    deliver_without(swarm, victim, 2)
    again = restart(swarm, victim, 1)
    swarm.deliver()
    chains = [[sealed.head.seal for sealed in each.sealed] for each in swarm.peers.values()]
    assert len(chains[0]) == ROUNDS
    assert all(chain == chains[0] for chain in chains)
    assert np_equal(again, next(iter(swarm.peers.values())))
    assert not swarm.network.refused


@pytest.mark.parametrize(("count", "every"), [(2, 1), (3, 9)])
def test_in_a_small_swarm_it_can_restart_after_any_frame(count: int, every: int) -> None:
    """With two or three everybody's vote is needed, and a reducer's parts must reach it a second time."""
    for steps in range(0, 1000, every):
        swarm = started(steps, count, rounds=1)
        victim = swarm.peers[identities(count)[steps % count].peer]
        for _ in range(steps):
            frame = swarm.network.pop()
            if frame is None:
                return  # the round takes no more frames than this
            swarm.peers[frame.to].receive(frame.sender, frame.kind, frame.payload)
        if victim.sealed:
            continue
        lost = [frame for frame in iter(swarm.network.pop, None) if victim.peer not in (frame.sender, frame.to)]
        for frame in lost:
            swarm.bent.post(frame.sender, frame.to, frame.kind, frame.payload)
        restart(swarm, victim, 0)
        swarm.deliver()
        assert all(len(each.sealed) == 1 for each in swarm.peers.values()), f"after {steps} frames"
    raise AssertionError("a round of a few peers never ended")


def np_equal(one: VirtualPeer, other: VirtualPeer) -> bool:
    """Same parameters and momentum, bit for bit."""
    mine, theirs = one.sealed[-1], other.sealed[-1]
    return mine.params.tobytes() == theirs.params.tobytes() and mine.momentum.tobytes() == theirs.momentum.tobytes()


def test_results_are_served_to_members_only_and_not_without_end() -> None:
    swarm = started(0)
    swarm.deliver()
    peer = next(iter(swarm.peers.values()))
    before = peer.machine._ctx.before
    assert before is not None
    want = Want(before.results.core, tuple(sorted(swarm.peers))).encode()
    asker, stranger = identities(9)[1].peer, identities(9)[8].peer
    assert peer.machine.payload(stranger, "want", want, 0.0) == []
    answers = [len(peer.machine.payload(asker, "want", want, 0.0)) for _ in range(5)]
    assert answers[0] > 0
    assert answers == [answers[0]] * 3 + [0] * 2
    unknown = Want(Hash(b"?" * 32), tuple(sorted(swarm.peers))).encode()
    assert peer.machine.payload(asker, "want", unknown, 0.0) == []
