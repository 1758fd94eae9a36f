"""Reducers that do not serve are put out within a view; what they have not spoilt stays, and nobody else is put out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from protocols.compression import get_codec
from protocols.ids import Hash, PeerId
from protocols.messages import Freeze, Gram, Result, Roster, Seal
from protocols.payloads import Pieces
from protocols.round.exchange import part_sizes
from tests.swarm.crowd import (
    PART,
    SCOPE,
    SETTING,
    VALUES,
    body_of,
    draw,
    first_head,
    first_state,
    identities,
    losing,
    lying,
    owners,
    run,
    settle,
    spoken,
    state,
    trains,
    turn_of,
    until,
    word,
    world,
)

if TYPE_CHECKING:
    from dht.memory import Frame
    from peer.virtual import World
    from protocols.messages import Body

SIZES = part_sizes(get_codec("float32"), VALUES, PART)
LOST = Hash(b"?" * 32)


def silent_reducer() -> PeerId:
    """Not the coordinator, with more than one part."""
    owned = Counter(owners(4))
    return next(each for each in sorted(owned) if owned[each] > 1 and each != turn_of(4, 1))


def parts_of(peer: PeerId) -> set[int]:
    """What it owns at first."""
    return {part for part, owner in enumerate(owners(4)) if owner == peer}


class Wire:
    """Loses what is to be lost, and notes what is sent, with the number of revisions before it."""

    def __init__(self, made: World, lost: Any) -> None:
        self.sent: list[tuple[int, Frame]] = []
        self._lost, self._revisions = lost, 0
        losing(made, self._note)

    def _note(self, frame: Frame) -> bool:
        body = spoken(frame)
        if isinstance(body, Roster | Freeze):
            self._revisions = max(self._revisions, body.rev)
        self.sent.append((self._revisions, frame))
        return bool(self._lost(frame))

    def pieces(self, kind: str, revision: int) -> list[tuple[PeerId, PeerId, int]]:
        """(from, to, part) of what was sent with so many revisions known."""
        out = []
        for number, frame in self.sent:
            if number == revision and frame.kind == kind:
                pieces = Pieces.decode(frame.payload, SIZES, sender="test")
                out += [(frame.sender, frame.to, each.index) for each in pieces.pieces]
        return out


def test_a_reducer_without_a_gram_is_put_out_and_only_its_parts_move() -> None:
    made, victim = world(4), silent_reducer()
    wire = Wire(made, lambda frame: word(frame) == "gram" and frame.sender == victim)
    outcome = settle(made)
    moved = parts_of(victim)
    for peer in outcome.peers:
        (sealed,) = peer.sealed
        record = sealed.record
        assert (record.view, record.void) == (1, False)
        assert record.reason == "without 1 reducers that did not serve"
        assert victim not in record.owners
        for part, owner in enumerate(owners(4)):
            assert part in moved or record.owners[part] == owner, "others' parts stay where they are"
        assert all(weight > 0 for weight in record.weights.values()), "as a contributor it did its part"
        assert all(line.parts == 6 for line in body_of(sealed).contributions)
        assert sealed.head.table.members[victim].rested > 1, "it reduces no more for a while"
    again = wire.pieces("parts", 1)
    assert {part for _, _, part in again} == moved
    assert Counter(again).most_common(1)[0][1] == 1, "each once"
    assert {(sender, part) for sender, _, part in again} == {
        (peer.peer, part)
        for peer in outcome.peers
        for part in moved
        if outcome.peers[0].sealed[0].record.owners[part] != peer.peer
    }
    first = wire.pieces("parts", 0)
    assert len(first) == len(set(first)) == 4 * 6 - 6, "everything but one's own parts, once"


def test_a_reducer_without_a_result_is_put_out_and_results_that_are_here_stay() -> None:
    made, victim = world(4), silent_reducer()
    lost = {"result", "results"}
    wire = Wire(made, lambda frame: word(frame) in lost and frame.sender == victim)
    outcome = settle(made)
    moved = parts_of(victim)
    for peer in outcome.peers:
        if peer.peer == victim:
            continue
        (sealed,) = peer.sealed
        body = body_of(sealed)
        assert (sealed.record.view, sealed.record.void) == (1, False)
        assert body.out == (victim,)
        assert sealed.record.weights == run(4).peers[0].sealed[0].record.weights, "the weights stay"
        stages = {root.peer: root.stage for root in body.results}
        heirs = {sealed.record.owners[part] for part in moved}
        assert victim not in stages
        assert {each for each, stage in ((root.peer, root.stage) for root in body.results) if stage == 1} == heirs
        lines = {line.peer: line.parts for line in body.contributions}
        assert lines == {each.peer: 6 - len(moved) * (each.peer == victim) for each in outcome.peers}
    again = wire.pieces("results", 1)
    assert {part for _, _, part in again} == moved
    assert {part for _, _, part in wire.pieces("parts", 1)} == moved


def test_without_who_was_put_out_the_others_are_scaled_up() -> None:
    """s_p: in the parts that it owned its own row is gone with it, and the rest stands for the whole."""
    made, victim = world(4), silent_reducer()
    losing(made, lambda frame: word(frame) in {"result", "results"} and frame.sender == victim)
    outcome = settle(made)
    zero = first_head(identities(4)).seal
    drifts = {each.peer: draw(each.peer, zero, VALUES).astype(np.float64) for each in outcome.peers}
    mean = np.mean(list(drifts.values()), axis=0)
    rest = np.mean([drift for each, drift in drifts.items() if each != victim], axis=0)
    for part in parts_of(victim):
        mean[part * PART : (part + 1) * PART] = rest[part * PART : (part + 1) * PART]
    peer = next(each for each in outcome.peers if each.peer != victim)
    expected = first_state(VALUES)[0] + SETTING.lr * (1 + SETTING.momentum) * mean
    assert np.allclose(peer.sealed[0].params, expected, atol=1e-6)


def test_who_has_three_thirds_against_it_is_out_in_the_next_view() -> None:
    """The coordinator makes no revision: everybody's ready for the next view names the reducer."""
    made, victim = world(4), silent_reducer()

    def lost(frame: Frame) -> bool:
        body = spoken(frame)
        mute = word(frame) == "gram" and frame.sender == victim
        return mute or (isinstance(body, Roster) and body.view == 1 and body.rev > 0)

    losing(made, lost)
    outcome = settle(made)
    for peer in outcome.peers:
        (sealed,) = peer.sealed
        assert (sealed.record.view, sealed.record.void) == (2, False)
        assert victim not in sealed.record.owners
        assert len(sealed.record.contributors) == 4


def test_nobody_votes_for_a_round_without_a_reducer_that_had_served() -> None:
    made, victim, liar = world(4), silent_reducer(), identities(4)
    turn = next(each for each in liar if each.peer == turn_of(4, 1))
    mute = True

    def bend(_to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        body = SCOPE.decode(payload, sender="test").body if kind == "statement" else None
        return [] if mute and isinstance(body, Freeze) else None

    lying(made, turn.peer, bend)
    made.begin()
    honest = [peer for name, peer in made.peers.items() if name != turn.peer]
    until(made, lambda: all(peer.machine.waiting()[0] == "exchange" for peer in honest))
    until(made, lambda: all(len(peer.machine._ctx.round.task.grams) >= 3 for peer in honest))  # type: ignore[union-attr]
    at = made.clock.now + 11
    until(made, lambda: made.clock.now > at)
    entries = [statement.body for _, statement in made.peers[turn.peer].disk.journal.entries.values()]
    unjust = replace(next(body for body in entries if isinstance(body, Roster)), rev=1, out=(victim,))
    for peer in honest:
        payload = state(unjust, turn)
        made.network.send(turn.peer, peer.peer, "statement", payload, len(payload))
    mute = False
    until(made, lambda: made.done)
    for peer in honest:
        assert (turn.peer, "put out a reducer that had served in time") in {
            (each.peer, each.text) for each in peer.troubles
        }
        (sealed,) = peer.sealed
        assert sealed.record.view > 1
        assert sealed.record.owners == owners(4), "the next coordinator takes it in again"


FACES: dict[str, tuple[type[Body], Any]] = {
    "gram": (Gram, lambda body: replace(body, root=LOST)),
    "result": (Result, lambda body: replace(body, root=LOST)),
    "roster": (Roster, lambda body: replace(body, out=(silent_reducer(),))),
    "seal": (Seal, lambda body: replace(body, state=LOST)),
}


@pytest.mark.parametrize("kind", FACES)
@pytest.mark.parametrize("fooled", [1, 2])
def test_two_faces_split_nobody(kind: str, fooled: int) -> None:
    """Some get another statement than the rest: all honest peers end on one chain with everybody's update in it."""
    type_, change = FACES[kind]
    liar = next(
        each
        for each in identities(4)
        if each.peer == (turn_of(4, 1) if kind in {"roster", "seal"} else silent_reducer())
    )
    marks = [each.peer for each in identities(4) if each != liar][:fooled]

    def bend(to: PeerId, frame: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        statement = SCOPE.decode(payload, sender="test") if frame == "statement" else None
        if statement is None or statement.peer != liar.peer or not isinstance(statement.body, type_):
            return None
        body: Body = statement.body
        return [(frame, state(change(body), liar))] if to in marks else None

    made = world(4, 2, trainer=trains(99))
    lying(made, liar.peer, bend)
    settle(made)
    honest = [peer for name, peer in made.peers.items() if name != liar.peer]
    assert made.done, made.stand()
    assert all(made.rules.descends(made.newest().seal, peer.head.seal) for peer in honest)
    assert {error.peer for refuser, _, error in made.refused if refuser != liar.peer} <= {liar.peer}
    named = {each.peer for peer in honest for each in peer.troubles if "its state is fetched" not in each.text}
    assert named <= {liar.peer}
    whole = max(honest, key=lambda peer: len(peer.sealed))
    assert not any(each.record.void for each in whole.sealed)
    for each in list(whole.sealed)[:2]:
        assert {peer.peer for peer in honest} <= set(each.record.contributors)
