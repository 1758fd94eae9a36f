"""Who is too far behind, or on a lost branch, fetches chain and state; nothing is believed from a donor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from protocols.chain_payloads import ChainReply
from protocols.round import settling
from protocols.state_payloads import StateChunk
from tests.swarm.crowd import SCOPE, body_of, lying, trains, until, world

if TYPE_CHECKING:
    from collections.abc import Sequence

    from peer.virtual import VirtualPeer, World
    from protocols.ids import PeerId
    from tests.swarm.crowd import Bend


def among_the_first(asked: set[PeerId], liars: int, who: PeerId, bend: Bend) -> Bend:
    """A donor that lies if it is among the first ``liars`` that are ``asked`` for what ``bend`` bends."""

    def forge(to: PeerId, kind: str, payload: bytes) -> Sequence[tuple[str, bytes]] | None:
        bent = bend(to, kind, payload)
        if bent is None or (who not in asked and len(asked) >= liars):
            return None
        asked.add(who)
        return bent

    return forge


def behind(monkeypatch: pytest.MonkeyPatch, bend: Bend | None = None, liars: int = 1) -> tuple[World, VirtualPeer]:
    """Four peers, one of whom was cut off for more rounds than are kept; ``bend``: what its first donors make of it."""
    monkeypatch.setattr(settling, "HISTORY", 3)
    made = world(4, 99, trainer=trains(999))
    cut = made.peers[list(made.peers)[0]]
    if bend is not None:
        asked: set[PeerId] = set()
        for other in list(made.peers)[1:]:
            lying(made, other, among_the_first(asked, liars, other, bend))
            made.peers[other].honest = True  # in all but what it donates
    made.begin()
    until(made, lambda: all(peer.sealed for peer in made.peers.values()))
    made.network.part({cut.peer})
    until(made, lambda: made.newest().round >= 5)
    made.network.heal()
    return made, cut


def caught_up(made: World, cut: VirtualPeer) -> None:
    """It has fetched a state, whose bits are the others', and takes part again."""
    until(made, lambda: any(each.record.synced for each in cut.sealed), 200)
    fetched = next(each for each in cut.sealed if each.record.synced)
    assert fetched.head.round > 2
    goal = made.newest().round + 3
    until(made, lambda: all(peer.head.round >= goal for peer in made.living()))
    mine = {each.head.seal: each.params.tobytes() for each in cut.sealed}
    other = next(each for each in made.living() if each is not cut)
    shared = [each for each in other.sealed if each.head.seal in mine]
    assert fetched.head.seal in {each.head.seal for each in shared}
    assert all(mine[each.head.seal] == each.params.tobytes() for each in shared)
    assert cut.peer in other.sealed[-1].record.tokens


def test_who_is_too_far_behind_fetches_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    made, cut = behind(monkeypatch)
    caught_up(made, cut)
    assert sum(each.record.synced for each in cut.sealed) == 1
    assert not made.refused


def wrong_bytes(_to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
    if kind != "state":
        return None
    chunk = StateChunk.decode(payload, sender="test")
    bent = bytes([chunk.data[0] ^ 1]) + bytes(chunk.data[1:])
    return [(kind, b"".join(bytes(each) for each in replace(chunk, data=bent).encode()))]


def another_index(_to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
    if kind != "state":
        return None
    chunk = StateChunk.decode(payload, sender="test")
    return [(kind, b"".join(bytes(each) for each in replace(chunk, index=1 - chunk.index).encode()))]


def without_votes(_to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
    if kind != "chain":
        return None
    reply = ChainReply.decode(payload, SCOPE, sender="test")
    links = tuple(replace(link, votes=link.votes[:2]) for link in reply.links)
    return [(kind, replace(reply, links=links).encode())]


def another_table(_to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
    if kind != "chain":
        return None
    reply = ChainReply.decode(payload, SCOPE, sender="test")
    links = tuple(replace(link, table=link.table.without(list(link.table.members)[:1])) for link in reply.links)
    return [(kind, replace(reply, links=links).encode())]


@pytest.mark.parametrize(
    ("bend", "words"),
    [
        (wrong_bytes, "that is not of seal"),
        (another_index, "that is not of seal"),
        (without_votes, "lacks a quorum of votes"),
        (another_table, "comes with another table"),
    ],
)
@pytest.mark.parametrize("liars", [1, 2])
def test_a_donor_that_lies_is_named_and_another_one_helps(
    bend: Bend, words: str, liars: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, cut = behind(monkeypatch, bend, liars)
    caught_up(made, cut)
    said = [(sender, error) for who, sender, error in made.refused if who == cut.peer]
    assert 1 <= len({sender for sender, _ in said}) <= liars
    assert all(error.peer == sender and words in error.text for sender, error in said)


def test_a_cell_in_two_halves_becomes_one_and_the_lost_work_comes_back_as_drift() -> None:
    """Three of six on each side go on alone, with all others lost; then one history is left."""
    made = world(6, 99, trainer=trains(999))
    made.begin()
    until(made, lambda: all(peer.sealed for peer in made.living()))
    half = set(list(made.peers)[:3])
    made.network.part(half)
    sides = [[peer for peer in made.living() if (peer.peer in half) == inside] for inside in (True, False)]
    for side in sides:
        until(made, lambda side=side: all(len(peer.head.table.voters) == 3 for peer in side))  # type: ignore[misc]
        goal = side[0].head.round + 2
        until(made, lambda side=side, goal=goal: all(peer.head.round >= goal for peer in side))  # type: ignore[misc]
    assert sides[0][0].head.seal != sides[1][0].head.seal
    before = {peer.peer: (peer.sealed[-1], len(peer.sealed)) for peer in made.living()}
    made.network.heal()
    until(made, lambda: sum(synced_since(peer, before[peer.peer][1]) > 0 for peer in made.living()) == 3)
    losers = [peer for peer in made.living() if synced_since(peer, before[peer.peer][1])]
    assert losers in sides, "one whole side follows the other"
    for peer in losers:
        lost = list(peer.sealed)[: next(n for n, each in enumerate(peer.sealed) if each.record.synced)]
        fetched = next(each for each in peer.sealed if each.record.synced)
        fork = next(each for each in reversed(lost) if len(each.head.table.voters) == 6)
        gained = lost[-1].params - fork.params
        assert np.abs(gained).max() > 0.01
        back = fetched.drift - lost[-1].drift
        assert np.allclose(back, gained, atol=1e-7)
    winner = next(each for each in made.living() if each not in losers)
    until(made, lambda: all(each.peer in winner.sealed[-1].record.tokens for each in losers))
    taken = winner.sealed[-1]
    parent = next(each for each in reversed(winner.sealed) if each.head.seal == body_of(taken).parent)
    assert np.abs(taken.params - parent.params).max() > 0.01
    assert all(taken.record.weights[each.peer] > 0 for each in losers)
    goal = made.newest().round + 6
    until(made, lambda: all(peer.head.round >= goal for peer in made.living()))
    assert len(made.newest().table.voters) == 6
    for peer in losers:
        assert synced_since(peer, before[peer.peer][1]) == 1, "one resync"
    until(made, lambda: all(peer.final and peer.final[-1].round > goal - 3 for peer in made.living()))


def synced_since(peer: VirtualPeer, count: int) -> int:
    return sum(each.record.synced for each in list(peer.sealed)[count:])
