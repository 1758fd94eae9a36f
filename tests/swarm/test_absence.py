"""Partial delivery: who is absent is known for each part, and the rest counts as it was promised."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from protocols.payloads import Pieces
from protocols.round.exchange import part_sizes, unpack_bits
from tests.swarm.crowd import (
    PART,
    SETTING,
    VALUES,
    body_of,
    draw,
    first_head,
    first_state,
    identities,
    losing,
    owners,
    run,
    settle,
    until,
    word,
    world,
)

if TYPE_CHECKING:
    from dht.memory import Frame
    from protocols.ids import PeerId
    from protocols.messages import Gram


def poor_and_owner() -> tuple[PeerId, PeerId]:
    """A contributor, and the reducer with fewest parts, which gets nothing from it."""
    owned = Counter(owners(4))
    owner = min(sorted(owned), key=lambda each: owned[each])
    return next(each.peer for each in identities(4) if each.peer != owner), owner


def absent(part: int, owner: PeerId) -> bool:
    return owners(4)[part] == owner


def test_absence_is_counted_for_each_part_and_the_rest_is_scaled_up() -> None:
    made = world(4)
    poor, owner = poor_and_owner()
    losing(made, lambda frame: frame.kind == "parts" and (frame.sender, frame.to) == (poor, owner))
    outcome = settle(made)
    missing = {part for part in range(6) if absent(part, owner)}
    for peer in outcome.peers:
        (sealed,) = peer.sealed
        assert (sealed.record.view, sealed.record.void) == (1, False)
        lines = {line.peer: line.parts for line in body_of(sealed).contributions}
        assert lines == {each.peer: 6 - len(missing) * (each.peer == poor) for each in outcome.peers}
        assert sealed.record.weights == dict.fromkeys(made.peers, 0.25)
    zero = first_head(identities(4)).seal
    drifts = {each: draw(each, zero, VALUES).astype(np.float64) for each in made.peers}
    total = np.mean(list(drifts.values()), axis=0)
    rest = np.mean([drift for each, drift in drifts.items() if each != poor], axis=0)
    sealed = made.peers[poor].sealed[0]
    for part in range(6):
        at = slice(part * PART, (part + 1) * PART)
        expected = (rest if part in missing else total)[at] * SETTING.lr * (1 + SETTING.momentum)
        assert np.allclose(sealed.params[at], first_state(VALUES)[0][at] + expected, atol=1e-6)
        left = drifts[poor][at].astype(np.float32) if part in missing else np.zeros_like(sealed.drift[at])
        assert (sealed.drift[at] == left).all(), "what was not taken stays drift"


def test_what_was_absent_is_taken_with_the_next_round() -> None:
    made = world(4, 2)
    poor, owner = poor_and_owner()
    losing(
        made,
        lambda frame: (
            frame.kind == "parts" and (frame.sender, frame.to) == (poor, owner) and not made.peers[poor].sealed
        ),
    )
    outcome = settle(made)
    assert made.peers[poor].sealed[0].drift.any()
    assert all(not each.sealed[1].drift.any() for each in outcome.peers)
    tokens = dict.fromkeys(made.peers, 25 * 1024)
    assert outcome.peers[0].sealed[1].record.tokens == tokens, "a window counts with the round that took most of it"


@pytest.mark.parametrize("frames", [0, 1, 2])
def test_a_contributor_that_dies_while_it_pushes_counts_with_what_arrived(frames: int) -> None:
    """Absent from half of the parts or more it has no weight; else the others' sum is scaled where it lacks."""
    made = world(4)
    poor = next(each.peer for each in identities(4) if each.peer not in owners(4))
    sent = 0

    def lost(frame: Frame) -> bool:
        nonlocal sent
        if frame.kind != "parts" or frame.sender != poor:
            return False
        sent += 1
        return sent > frames

    losing(made, lost)
    made.begin()
    until(made, lambda: sent > frames)
    made.kill(made.peers[poor])
    until(made, lambda: made.done)
    arrived = arrived_parts(made.network.withheld, poor)
    for peer in made.living():
        (sealed,) = peer.sealed
        line = next(each for each in body_of(sealed).contributions if each.peer == poor)
        assert line.parts == 6 - len(arrived)
        assert (line.weight > 0) == (2 * line.parts >= 6)
        assert sealed.record.view == 1, "a stream that closes needs no further waiting"
    assert made.clock.now < 35


def arrived_parts(withheld: list[Frame], poor: PeerId) -> set[int]:
    """The parts that did not arrive."""
    sizes = part_sizes(run(4).peers[0].machine._ctx.update_codec, VALUES, PART)
    frames = [Pieces.decode(frame.payload, sizes, sender="test") for frame in withheld if frame.sender == poor]
    return {each.index for frame in frames for each in frame.pieces}


def test_a_gram_says_who_was_there() -> None:
    made = world(4)
    poor, owner = poor_and_owner()
    grams: list[Gram] = []

    def lost(frame: Frame) -> bool:
        if word(frame) == "gram" and frame.sender == owner:
            grams.append(frame.payload.body)
        return frame.kind == "parts" and (frame.sender, frame.to) == (poor, owner)

    losing(made, lost)
    settle(made)
    owned = owners(4).count(owner)
    own = next(each for each in grams if len(each.have) == len(unpadded(owned)))
    have = unpack_bits(own.have, 4, owned)
    row = sorted(made.peers).index(poor)
    assert not have[row].any()
    assert have.sum() == 3 * owned


def unpadded(owned: int) -> bytes:
    return bytes((4 * owned + 7) // 8)
