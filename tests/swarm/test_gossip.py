"""What is lost in silence comes by digests; who is behind is told the rounds it missed; floods fill nothing."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from peer.identity import Identity
from protocols.ids import Hash, digest
from protocols.messages import Commit, Gram, Ready, Result, Vote
from protocols.payloads import Want
from protocols.round.effects import Effect, Flood, Sign
from protocols.round.machine import Machine
from protocols.round.pool import BYTES_PER_CORNER, PER_CORNER, Pool
from protocols.table import NEW, Member, Table
from tests.swarm.crowd import (
    SCOPE,
    SETTING,
    first_head,
    first_state,
    identities,
    settle,
    stand_in,
    trains,
    until,
    world,
)

if TYPE_CHECKING:
    from protocols.messages import Body
    from protocols.statements import Statement

LOST = Hash(b"?" * 32)


@pytest.mark.parametrize("seed", range(4))
def test_with_a_third_of_the_frames_lost_in_silence_everything_arrives(seed: int) -> None:
    made = world(5, 3, seed=seed)
    made.network.weather = replace(made.network.weather, loss=0.3, told=0.0)
    outcome = settle(made)
    assert made.network.silent > 100 and not made.network.told
    assert made.done, made.stand()
    assert not outcome.refusals()
    whole = max(outcome.peers, key=lambda peer: len(peer.sealed))
    assert not any(each.record.void for each in whole.sealed)
    assert made.clock.now < 3 * 60


@pytest.mark.parametrize("rounds", [1, 3])
def test_who_is_a_few_rounds_behind_is_told_them_one_after_another(rounds: int) -> None:
    """No state travels: it computes every round that it missed."""
    made = world(4, 99, trainer=trains(999))
    made.begin()
    until(made, lambda: all(peer.sealed for peer in made.living()))
    cut = made.living()[0]
    made.network.part({cut.peer})
    until(made, lambda: made.newest().round >= 1 + rounds)
    made.network.heal()
    until(made, lambda: cut.head.round > 1 + rounds, 120)
    assert not any(each.record.synced for each in cut.sealed)
    assert [each.head.round for each in cut.sealed] == list(range(1, len(cut.sealed) + 1))
    goal = made.newest().round + 2
    until(made, lambda: all(peer.head.round >= goal for peer in made.living()))
    assert cut.peer in made.living()[1].sealed[-1].record.tokens, "and takes part again"


# --- floods ------------------------------------------------------------------------------------------


def far(who: Identity, view: int) -> Statement:
    return SCOPE.state(who.peer, Vote(view, LOST), who.sign)


def ready(view: int, head: Hash = LOST) -> Ready:
    return Ready(view, head, 0, (), b"", 0, ())


def test_a_member_that_says_valid_things_without_end_fills_nothing() -> None:
    """Readys and votes for far views, commits for unknown parents, Grams and results for unknown cores."""
    keys = identities(4)
    one = stand_in(4, values=300)
    one.start(0.0)
    before = one.sizes()
    largest: dict[str, int] = {}
    for number in range(1, 400):
        name = digest(number.to_bytes(2, "big"))
        said: list[Body] = [
            ready(number, one.head.seal),
            Vote(number, name),
            Commit(name, LOST, (), 0, True),
            Gram(name, b"", (), LOST),
            Result(name, (), LOST),
        ]
        for body in said:
            one.receive(SCOPE.state(keys[1].peer, body, keys[1].sign), keys[1].peer, 1.0)
        for key, size in one.sizes().items():
            largest[key] = max(largest.get(key, 0), size)
    grown = {key: size - before[key] for key, size in largest.items() if size > before[key]}
    assert grown == {"known": 16, "readys": 8, "votes": 8, "peers": 1, "parked": PER_CORNER}, grown


def test_statements_of_far_views_fill_only_their_signers_corner() -> None:
    keys = identities(4)
    one = stand_in(4, values=300)
    one.start(0.0)
    early = SCOPE.state(keys[2].peer, Gram(LOST, b"", (), LOST), keys[2].sign)
    assert one.receive(early, keys[2].peer, 0.0) == []
    for number in range(5 * PER_CORNER):
        body = Result(digest(number.to_bytes(2, "big")), (), LOST)
        assert one.receive(SCOPE.state(keys[1].peer, body, keys[1].sign), keys[1].peer, 0.0) == []
    assert one._pool.holds(early)
    assert len(one._pool.drain()) == PER_CORNER + 1


def test_wants_for_unknown_rounds_are_not_counted_for_ever() -> None:
    keys = identities(4)
    one = stand_in(4, values=300)
    one.start(0.0)
    for number in range(200):
        want = Want(digest(number.to_bytes(2, "big")), (1,))
        assert one.payload(keys[1].peer, "want", want.encode(), 0.0) == []
    assert one.sizes()["served"] == 0


def test_free_keys_do_not_fill_the_memory() -> None:
    """Commits for unknown parents and votes by 300 keys that no table knows."""
    keys = identities(4)
    one = stand_in(4, values=300)
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
        flooded += sum(isinstance(each, Flood) for each in one.receive(statement, keys[1].peer, 0.0))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert flooded == 2, "room for two newcomers; what others say is not passed on"
    assert len(one._pool.drain()) <= PER_CORNER
    assert held < 1 << 20


def test_a_stranger_that_speaks_as_a_voter_may_be_one_by_the_next_seal() -> None:
    """Whoever adopts a seal first hears the newcomer as a voter first; others keep what it says until they follow."""
    keys = identities(5)
    one = stand_in(4, values=300)
    one.start(0.0)
    said = SCOPE.state(keys[4].peer, ready(2), keys[4].sign)
    assert one.receive(said, keys[1].peer, 0.0) == []
    assert one._pool.holds(said)


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
    said = next(each.body for each in effects if isinstance(each, Sign))
    assert isinstance(said, Ready)
    voters = {SCOPE.state(each.peer, Commit(head.seal, LOST, (), 0, True), each.sign).hash for each in keys[:4]}
    assert set(said.commits) == voters


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
