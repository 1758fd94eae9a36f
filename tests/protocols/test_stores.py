"""What a machine keeps of others' statements: readys and votes by view, and what it compares with neighbours."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from peer.identity import Identity
from protocols.ids import Hash, digest
from protocols.messages import Vote
from protocols.payloads import PRINT_BYTES
from protocols.round.ballots import VIEWS_KEPT, Ballots
from protocols.round.known import Known
from protocols.statements import Scope, Statement
from protocols.table import AWAY, Table, genesis

SCOPE = Scope(b"s" * 32, "model")
KEYS = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 5)]
HEAD = digest(b"head")


def vote(number: int, view: int, seal: bytes = b"") -> Statement:
    """A vote of one of four keys."""
    key = KEYS[number]
    return SCOPE.state(key.peer, Vote(view, digest(b"seal", seal)), lambda _: bytes(64))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=80))
def test_of_each_signer_the_highest_views_stay(said: list[tuple[int, int]]) -> None:
    store, expected = Ballots(), {number: set[int]() for number in range(4)}
    for number, view in said:
        peer = KEYS[number].peer
        if peer in store.in_view(view) or not store.has_room(view, peer):
            continue
        gone = store.add(view, vote(number, view))
        expected[number].add(view)
        if len(expected[number]) > VIEWS_KEPT:
            lowest = min(expected[number])
            expected[number].remove(lowest)
            assert gone == vote(number, lowest)
        else:
            assert gone is None
    held = {(each.peer, each.body.view) for each in store if isinstance(each.body, Vote)}
    assert held == {(KEYS[number].peer, view) for number, views in expected.items() for view in views}
    assert len(store) == len(held)


def test_what_is_needed_now_stays_whatever_is_said_of_later_views() -> None:
    """Whoever is 30 rounds behind hears of every round that is made meanwhile."""
    store, peer = Ballots(), KEYS[0].peer
    for view in range(100, 120):
        if store.has_room(view, peer):
            store.add(view, vote(0, view))
    for view in (70, 71):
        assert not store.has_room(view, peer) and store.has_room(view, peer, needed=True)
        store.add(view, vote(0, view), needed=True)
    for view in range(120, 140):
        if store.has_room(view, peer):
            store.add(view, vote(0, view))
    assert peer in store.in_view(70) and peer in store.in_view(71)
    assert len(store) == VIEWS_KEPT
    for view in range(20, 60):
        store.add(view, vote(0, view), needed=True)
        assert len(store) == VIEWS_KEPT
    store.forget(200, genesis([peer], HEAD))
    assert len(store) == 0 and store.has_room(1, peer)


def test_what_is_over_goes_and_so_does_who_votes_no_more() -> None:
    store = Ballots()
    for number in range(4):
        for view in (3, 4, 5):
            store.add(view, vote(number, view))
    table = genesis([each.peer for each in KEYS], HEAD)
    away = replace(table.members[KEYS[0].peer], state=AWAY)
    store.forget(3, Table({**table.members, KEYS[0].peer: away}))
    assert not store.in_view(3)
    assert list(store.in_view(4)) == [each.peer for each in KEYS[1:]]
    assert len(store) == 6


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_the_mark_names_the_set_and_not_the_order(order: list[int], dropped: set[int]) -> None:
    statements = [vote(number % 4, number) for number in range(12)]
    one, other = Known(HEAD, []), Known(HEAD, [each for n, each in enumerate(statements) if n not in dropped])
    for number in order:
        one.add(statements[number])
        one.add(statements[number])
    for number in dropped:
        assert one.mark != other.mark
        one.drop(statements[number].hash)
        one.drop(statements[number].hash)
    assert one.mark == other.mark and len(one) == len(other)
    assert Known(digest(b"another"), []).mark != Known(HEAD, []).mark


def test_a_neighbour_is_given_what_its_prints_lack_in_the_order_of_coming() -> None:
    statements = [vote(number % 4, number) for number in range(6)]
    known = Known(HEAD, statements)
    prints = known.prints
    assert len(prints) == 6 * PRINT_BYTES
    held = {prints[:PRINT_BYTES], prints[3 * PRINT_BYTES : 4 * PRINT_BYTES]}
    assert known.lacking(held) == [statements[n] for n in (1, 2, 4, 5)]
    assert statements[2].hash in known and Hash(bytes(32)) not in known
