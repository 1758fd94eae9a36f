"""Restarts, a journal that remembers something else, windows that come late, and floods."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from peer.identity import Identity
from peer.virtual import VirtualPeer
from protocols.errors import LocalError
from protocols.ids import Hash, digest
from protocols.messages import Commit, Ready, Vote
from protocols.payloads import Want
from protocols.round.effects import Effect, Flood, Sign, Trouble, Window, Work
from protocols.round.machine import Machine
from protocols.round.pool import BYTES_PER_CORNER, PER_CORNER, Pool
from protocols.table import NEW, Member, Table
from tests.swarm.crowd import SCOPE, SETTING, Outcome, Swarm, draw, first_head, first_state, identities, run

if TYPE_CHECKING:
    from protocols.ids import PeerId
    from protocols.statements import Statement

LOST = Hash(b"?" * 32)
SMALL = 32_768 + 200


def swarm_of(count: int, seed: int | None = None) -> Swarm:
    """Founders that have not started."""
    swarm = Swarm(replace(SETTING, values=SMALL), 1, seed)
    keys = identities(count)
    swarm.add(keys, first_head(keys, SMALL), first_state(SMALL))
    return swarm


def settle(swarm: Swarm) -> Outcome:
    swarm.deliver()
    return Outcome(list(swarm.peers.values()), swarm)


def test_a_journal_with_an_older_commit_is_said_and_other_bytes_are_not_sent() -> None:
    swarm = swarm_of(4)
    who = identities(4)[0]
    older = SCOPE.state(who.peer, Commit(first_head(identities(4), SMALL).seal, LOST, (), 0, True), who.sign)
    peer = swarm.peers[who.peer]
    peer._signed[digest(b"commit", older.body.slot())] = older
    sent: list[str] = []
    swarm.bent.liar = who.peer
    swarm.bent.bend = lambda _to, kind, _payload: sent.append(kind)
    for each in swarm.peers.values():
        each.start()
    outcome = settle(swarm)
    assert [(each.peer, each.text) for each in peer.troubles] == [
        (who.peer, "committed other bytes for this round before a restart; its update waits for the next")
    ]
    assert "statement" in sent
    assert "parts" not in sent
    assert not outcome.refusals()
    assert not any(each.sealed for each in outcome.peers)
    owners = next(iter(swarm.peers.values())).machine._ctx.round.cast
    assert owners is not None
    for each in outcome.peers[1:]:
        if each.peer in owners.working:
            assert each.machine.waiting() == ("exchange", [who.peer])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("steps", [10, 35, 60, 75])
def test_a_peer_that_restarts_anywhere_in_the_round_ends_it_with_the_others(steps: int, seed: int) -> None:
    """It has its journal and what it trained; neighbours tell it again what it has missed, as on a new stream."""
    clean = run(4, values=SMALL)
    swarm = swarm_of(4, seed)
    keys = identities(4)
    for each in swarm.peers.values():
        each.start()
    for _ in range(steps):
        frame = swarm.network.pop()
        assert frame is not None
        swarm.peers[frame.to].receive(frame.sender, frame.kind, frame.payload)
    who = keys[seed % 4]
    old = swarm.peers[who.peer]
    if old.sealed:
        return
    # Frames on its streams are lost with it.
    swarm.bent._order = type(swarm.bent._order)(pair for pair in swarm.bent._order if who.peer not in pair)
    for pair, frames in swarm.bent._channels.items():
        if who.peer in pair:
            frames.clear()
    fresh = VirtualPeer(swarm, who, first_head(keys, SMALL), first_state(SMALL))
    fresh._signed = old._signed
    swarm.peers[who.peer] = fresh
    late = Late(fresh)
    for peer in swarm.peers.values():
        if peer is not fresh:
            peer.carry_out(peer.machine.welcome(who.peer))
    swarm.deliver()  # before its own training is over
    late.train()
    for peer in swarm.peers.values():
        if peer is not fresh:
            fresh.carry_out(fresh.machine.welcome(peer.peer))
    outcome = settle(swarm)
    assert not outcome.refusals()
    assert not outcome.troubles()
    assert outcome.chains() == clean.chains()


class Late:
    """A peer whose training ends when it is told to."""

    def __init__(self, peer: VirtualPeer) -> None:
        self.peer = peer
        effects = peer.machine.start(0.0)
        self.asked = [each for each in effects if type(each).__name__ == "Train"]
        peer.carry_out(each for each in effects if type(each).__name__ != "Train")

    def train(self) -> None:
        """End it."""
        self.peer.carry_out(self.asked)


def machine(who: Identity, founders: int = 1) -> Machine:
    keys = identities(founders)
    return Machine(SCOPE, who.peer, replace(SETTING, values=300), first_head(keys, 300), first_state(300))


def test_a_window_that_ends_after_its_round_does_not_replace_the_one_committed() -> None:
    who = identities(1)[0]
    one = machine(who)
    parent = one.head.seal
    one.start(0.0)
    drift = draw(who.peer, parent, 300)
    effects = one.trained(one.head.seal, Window(drift, 1, 1), 0.0)
    work = next(each for each in effects if isinstance(each, Work))
    assert any(isinstance(each, Sign) for each in one.done(work.key, work.parent, work.run(), 0.0))
    assert one.trained(one.head.seal, Window(np.ones(300, dtype=np.float32), 1, 1), 0.0) == []
    assert one.window is not None
    assert one.window.drift is drift


def test_a_window_on_another_parent_is_dropped() -> None:
    one = machine(identities(1)[0])
    one.start(0.0)
    assert one.trained(LOST, Window(np.ones(300, dtype=np.float32), 1, 1), 0.0) == []
    assert one.window is None


def test_a_window_that_is_not_finite_is_said_and_thrown_away() -> None:
    one = machine(identities(1)[0])
    one.start(0.0)
    effects = one.trained(one.head.seal, Window(np.full(300, np.nan, dtype=np.float32), 1, 1), 0.0)
    assert any(isinstance(each, Trouble) for each in effects)
    assert one.window is not None
    assert not one.window.drift.any()


def test_finish_in_the_middle_of_a_round_changes_nothing() -> None:
    who = identities(1)[0]
    one = machine(who)
    one.start(0.0)
    one.trained(one.head.seal, Window(draw(who.peer, one.head.seal, 300), 1, 1), 0.0)
    assert one.finish(0.0) == []


def test_work_for_another_parent_is_dropped_and_unknown_work_is_a_mistake() -> None:
    one = machine(identities(1)[0])
    one.start(0.0)
    assert one.done("encode", LOST, None, 0.0) == []
    with pytest.raises(LocalError, match="nobody asked"):
        one.done("magic", one.head.seal, None, 0.0)


def far(who: Identity, view: int) -> Statement:
    return SCOPE.state(who.peer, Vote(view, LOST), who.sign)


def test_statements_of_far_views_fill_only_their_signers_corner() -> None:
    keys = identities(4)
    one = machine(keys[0], founders=4)
    one.start(0.0)
    early = SCOPE.state(keys[2].peer, Ready(2, LOST, ()), keys[2].sign)
    assert one.receive(early, keys[2].peer, 0.0) == []
    for view in range(50, 50 + 5 * PER_CORNER):
        assert one.receive(far(keys[1], view), keys[1].peer, 0.0) == []
    assert one._pool.holds(early)
    assert len(one._pool.drain()) == PER_CORNER + 1


def test_wants_for_unknown_rounds_are_not_counted_for_ever() -> None:
    keys = identities(4)
    one = machine(keys[0], founders=4)
    one.start(0.0)
    for number in range(200):
        want = Want(digest(number.to_bytes(2, "big")), (keys[1].peer,))
        assert one.payload(keys[1].peer, "want", want.encode(), 0.0) == []
    assert not one._ctx.served


def test_free_keys_do_not_fill_the_memory() -> None:
    """Commits for unknown parents and votes by 300 keys that no table knows."""
    keys = identities(4)
    one = machine(keys[0], founders=4)
    one.start(0.0)
    strangers = [Identity.from_seed(b"stranger" + number.to_bytes(24, "big")) for number in range(300)]
    said = [far(each, 7) for each in strangers]
    said += [
        SCOPE.state(each.peer, Commit(digest(each.peer.encode()), LOST, (), 0, True), each.sign) for each in strangers
    ]
    said += [SCOPE.state(each.peer, Commit(one.head.seal, LOST, (), 0, True), each.sign) for each in strangers]
    tracemalloc.start()
    flooded = 0
    for statement in said:
        flooded += len(one.receive(statement, keys[1].peer, 0.0))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert flooded == 2, "room for two newcomers; what others say is not passed on"
    assert len(one._pool.drain()) <= PER_CORNER
    assert held < 1 << 20


def test_a_stranger_that_speaks_as_a_voter_may_be_one_by_the_next_seal() -> None:
    """Whoever adopts a seal first hears the newcomer as a voter first; others keep what it says until they follow."""
    keys = identities(5)
    one = machine(keys[0], founders=4)
    one.start(0.0)
    ready = SCOPE.state(keys[4].peer, Ready(2, LOST, ()), keys[4].sign)
    assert one.receive(ready, keys[1].peer, 0.0) == []
    assert one._pool.holds(ready)


def test_newcomers_that_are_members_already_have_no_more_room_than_strangers() -> None:
    """Else an honest coordinator could gather more of them than a roster may hold; and readys name voters only."""
    keys = identities(8)
    head = first_head(keys[:4], 300)
    new = {each.peer: Member(each.peer, 0.0, NEW, direct=True, admitted=LOST, sealed=1) for each in keys[4:7]}
    head = replace(head, table=Table({**head.table.members, **new}))
    one = Machine(SCOPE, keys[0].peer, replace(SETTING, values=300), head, first_state(300))
    one.start(0.0)
    effects: list[Effect] = []
    for each in (*keys[4:], *keys[:4]):  # three members without standing, a stranger, the founders
        commit = SCOPE.state(each.peer, Commit(head.seal, LOST, (), 0, True), each.sign)
        effects += one.receive(commit, keys[1].peer, 0.0)
    passed_on = [each.statement.peer for each in effects if isinstance(each, Flood)]
    assert passed_on == [each.peer for each in (*keys[4:6], *keys[:4])]
    ready = next(each.body for each in effects if isinstance(each, Sign))
    assert isinstance(ready, Ready)
    voters = {SCOPE.state(each.peer, Commit(head.seal, LOST, (), 0, True), each.sign).hash for each in keys[:4]}
    assert set(ready.commits) == voters


def test_a_corner_holds_a_megabyte_and_forgets_after_two_seals() -> None:
    who = identities(1)[0]
    pool = Pool()
    large = [replace(far(who, view), raw=bytes(300_000)[: 300_000 - view]) for view in range(1, 9)]
    for statement in large:
        pool.park(who.peer, statement, None)
    held = [statement for statement, _, _ in pool.drain()]
    assert held == large[-3:], "the oldest go first"
    assert sum(len(each.raw) for each in held) <= BYTES_PER_CORNER
    pool.park(who.peer, large[0], None)
    for _ in range(2):
        pool.grow_older()
        assert pool.holds(large[0])
    pool.grow_older()
    assert not pool.holds(large[0])
    assert pool.drain() == []


def test_statements_of_the_next_round_that_come_early_are_used() -> None:
    """No vote reaches one peer until everybody else has committed to the next round."""
    clean = run(4, 1, values=SMALL)
    swarm = swarm_of(4)
    victim = identities(4)[0].peer
    held: list[tuple[PeerId, bytes]] = []

    def bend(to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        if to != victim or kind != "statement":
            return None
        statement = SCOPE.decode(payload, sender="test")
        if not isinstance(statement.body, Vote):
            return None
        held.append((statement.peer, payload))
        return []

    swarm.bent.bend = bend
    for each in swarm.peers.values():
        each.start()
    swarm.deliver()
    assert [len(each.sealed) for each in swarm.peers.values()] == [0, 1, 1, 1]
    swarm.bent.bend = None
    for sender, payload in held:
        swarm.bent.post(sender, victim, "statement", payload)
    outcome = settle(swarm)
    assert outcome.chains() == clean.chains()
    # Their readys for the next view had come before the votes: they make the seal final here too.
    assert [each.round for each in swarm.peers[victim].final] == [0, 1]
    assert not outcome.refusals()
    assert not outcome.troubles()
