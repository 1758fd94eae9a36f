"""In any order of delivery every peer ends every round with the same bits: those of a plain re-implementation."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from protocols.outer import state_root
from protocols.round.chain import check_head
from protocols.rules import weights as rule_weights
from tests.swarm.crowd import (
    SCOPE,
    Outcome,
    Vector,
    draw,
    first_head,
    first_state,
    identities,
    run,
    settle,
    world,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocols.ids import PeerId
    from protocols.round.effects import Sealed

PART = 64
SMALL = 3 * PART + 20


def good(outcome: Outcome, rounds: int) -> list[Sealed]:
    """All peers adopted the same certified chain without a complaint; returns the first peer's seals."""
    assert not outcome.refusals()
    assert not outcome.troubles()
    chains = outcome.chains()
    assert len(chains[0]) == rounds
    assert all(chain == chains[0] for chain in chains)
    for peer in outcome.peers:
        assert [each.round for each in peer.final] == list(range(1, rounds + 1))
        assert peer.final[-1].seal == peer.sealed[-1].head.seal
        last = peer.sealed[-1]
        check_head(last.head, SCOPE, state_root(last.params, last.momentum))
        check_head(peer.machine.head, SCOPE, state_root(last.params, last.momentum))
        # Late votes extend the certificate until everybody's is in it.
        assert len(peer.machine.head.votes) == len(last.head.table.voters)
    return list(outcome.peers[0].sealed)


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("codec", ["float32", "int8"])
def test_any_order_gives_the_same_seals(count: int, codec: str) -> None:
    rounds = 2 if count < 5 else 1
    runs = [run(count, rounds, seed=seed, values=SMALL, update_codec=codec, result_codec=codec) for seed in (0, 1)]
    assert len({tuple(each.head.seal for each in good(outcome, rounds)) for outcome in runs}) == 1


def shuffled(seed: int, rounds: int, slowest: float, **changes: Any) -> Outcome:
    """Four peers whose frames all take up to ``slowest`` seconds and overtake each other, on one stream too."""
    made, draw_ = world(4, rounds, seed=seed, values=SMALL, **changes), Random(seed)
    made.network.courier = lambda frame: draw_.uniform(0, slowest)
    return settle(made)


def test_many_orders_of_four_peers() -> None:
    seals = {tuple(each.head.seal for each in good(shuffled(seed, 2, 1.0), 2)) for seed in range(8)}
    assert seals == {tuple(run(4, 2, values=SMALL).chains()[0])}


def test_frames_that_are_many_seconds_late_change_nothing() -> None:
    """Parts before their roster, results before their roots, votes before their seal."""
    outcome = shuffled(3, 2, 4.0)
    assert not outcome.refusals()
    assert not outcome.troubles()
    assert outcome.chains() == run(4, 2, values=SMALL).chains()


def test_statements_and_parts_that_come_three_times_change_nothing() -> None:
    alone = run(4, 2, values=SMALL)
    for seed in (1,):
        liar = identities(1)[0].peer
        outcome = run(4, 2, seed=seed, values=SMALL, bend=(liar, lambda _to, kind, payload: [(kind, payload)] * 3))
        good(outcome, 2)
        assert outcome.chains() == alone.chains()


# --- an independent implementation -----------------------------------------------------------------


def in_blocks(values: Vector, limit: int) -> Vector:
    """What a codec of codes up to ``limit`` makes of a part, from its description: blocks of 64, float16 scales."""
    padded = np.zeros(-(-len(values) // 64) * 64, dtype=np.float32)
    padded[: len(values)] = values
    blocks = padded.reshape(-1, 64)
    scales = (np.abs(blocks).max(axis=1) / np.float32(limit)).astype(np.float16).astype(np.float32)
    safe = np.where(scales == 0, np.float32(1), scales)
    codes = np.clip(np.rint(blocks / safe[:, None]), -limit, limit)
    out: Vector = (codes.astype(np.float32) * scales[:, None]).reshape(-1)[: len(values)]
    return out


def coded(values: Vector, codec: str) -> Vector:
    """Decode(encode(values)), part by part."""
    if codec == "float32":
        return values.copy()
    limit = {"int8": 127, "int4": 7}[codec]
    out: Vector = np.concatenate([in_blocks(values[at : at + PART], limit) for at in range(0, len(values), PART)])
    return out


def reference(peers: list[PeerId], parents: list[bytes], outcome: Outcome) -> Iterator[tuple[Vector, Vector]]:
    """Parameters and drifts (rows by id) after every round, computed with nothing but NumPy and the rule."""
    setting = outcome.setting
    params, momentum = cast("tuple[Any, Any]", first_state(setting.values))
    drifts = {each: np.zeros(setting.values, dtype=np.float32) for each in peers}
    for parent in parents:
        sent = {}
        for each in sorted(peers):
            drifts[each] = drifts[each] + draw(each, parent, setting.values)
            sent[each] = coded(-drifts[each], setting.update_codec)
            drifts[each] = drifts[each] + sent[each]
        rows = np.stack([sent[each] for each in sorted(peers)])
        if setting.rule == "mean":
            found = [1.0 / len(peers)] * len(peers)
        else:
            wide = rows.astype(np.float64)
            found = list(rule_weights(wide @ wide.T, [1.0] * len(peers), rule=setting.rule, tolerated=1 / 3))
            sealed = outcome.peers[0].sealed[parents.index(parent)].record.weights
            # Gram matrices are signed, not repeated: the last bits are the reducers' own.
            assert np.allclose(found, [sealed[each] for each in sorted(peers)], rtol=1e-5)
            found = [sealed[each] for each in sorted(peers)]
        total = np.float32(found[0]) * rows[0]
        for weight, row in zip(found[1:], rows[1:], strict=True):
            total = total + np.float32(weight) * row
        update = coded(total, setting.result_codec)
        momentum = momentum * np.float32(setting.momentum) + update
        params = params - (update + momentum * np.float32(setting.momentum)) * np.float32(setting.lr)
        yield params, np.stack([drifts[each] for each in sorted(peers)])


@pytest.mark.parametrize(
    ("count", "rule", "update", "result"),
    [
        (1, "mean", "float32", "float32"),
        (3, "mean", "int8", "float32"),
        (4, "default", "float32", "int8"),
        (5, "default", "int8", "int8"),
        (6, "mean", "int8", "int8"),
        (4, "default", "int4", "int8"),
    ],
)
def test_state_and_drift_equal_a_plain_computation_in_every_bit(
    count: int, rule: str, update: str, result: str
) -> None:
    rounds = 2
    outcome = run(count, rounds, seed=1, values=SMALL, rule=rule, update_codec=update, result_codec=result)
    seals = good(outcome, rounds)
    parents = [first_head(identities(count), SMALL).seal, *(each.head.seal for each in seals[:-1])]
    peers = [each.peer for each in outcome.peers]
    order = sorted(peers)
    for number, (params, drifts) in enumerate(reference(peers, list(parents), outcome)):
        for peer in outcome.peers:
            sealed = peer.sealed[number]
            assert sealed.params.tobytes() == params.tobytes()
            # +0.0 makes -0.0 of what is left positive on both sides.
            left = drifts[order.index(peer.peer)]
            assert (sealed.drift + np.float32(0)).tobytes() == (left + np.float32(0)).tobytes()
            assert (not sealed.drift.any()) == (update == "float32")


# --- newcomers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("founders", "probation"), [(2, 0), (3, 2), (4, 0), (4, 1)])
@pytest.mark.parametrize("seed", [1])
def test_a_newcomer_is_sealed_and_comes_to_stand(founders: int, probation: int, seed: int | None) -> None:
    """Until it stands the others do not wait for it; from then on they do."""
    rounds = 5
    outcome = run(founders, rounds, seed=seed, newcomers=1, probation=probation, values=300)
    assert not outcome.refusals()
    assert not outcome.troubles()
    newcomer = outcome.peers[-1]
    chains = outcome.chains()
    assert len(chains[0]) == rounds
    assert all(chain == chains[0] for chain in chains)
    tables = [each.head.table for each in outcome.peers[0].sealed]
    sealed = [table.members[newcomer.peer].sealed if newcomer.peer in table.members else 0 for table in tables]
    stands = [table.stands(newcomer.peer) for table in tables]
    assert stands == [count > probation for count in sealed]
    assert sealed == list(range(1, rounds + 1))
    after = stands.index(True)
    rows = [newcomer.peer in each.record.contributors for each in outcome.peers[0].sealed]
    assert rows == [number > after for number in range(rounds)]
    verdicts = [each.record.verdict for each in newcomer.sealed]
    assert verdicts == ["late" if number <= after else "accepted" for number in range(rounds)]
    for peer in outcome.peers:
        assert peer.final[-1].seal == chains[0][-1]
        assert peer.sealed[-1].params.tobytes() == newcomer.sealed[-1].params.tobytes()
    # What it trained before it stood was taken by nobody and is still its drift, until three seals have left it.
    left = [bool(each.drift.any()) for each in newcomer.sealed]
    assert left == [number <= min(after, 1) for number in range(rounds)]
    assert not newcomer.sealed[-1].drift.any()


@pytest.mark.parametrize(("probation", "seed"), [(0, None), (2, 3)])
def test_more_newcomers_than_there_is_room_for(probation: int, seed: int | None) -> None:
    """Peers hear different strangers first: no honest coordinator may make a roster that others refuse."""
    rounds = 5
    outcome = run(4, rounds, seed=seed, newcomers=4, probation=probation, values=300)
    assert not outcome.refusals()
    assert not outcome.troubles()
    chains = outcome.chains()
    assert [len(chain) for chain in chains[:4]] == [rounds] * 4
    assert all(chain == [seal for seal in chains[0] if seal in chain] for chain in chains)
    assert {chain[-1] for chain in chains} == {chains[0][-1]}, "who has no room yet follows the others' state"
    for before, after in pairwise(outcome.peers[0].sealed):
        assert len(set(after.head.table.voters) - set(before.head.table.voters)) <= 1
        assert sum(not before.head.table.stands(each) for each in after.record.tokens) <= 2
    assert len(outcome.peers[0].sealed[-1].head.table.voters) > 4


def test_a_closed_run_takes_no_strangers() -> None:
    outcome = run(3, 2, newcomers=2, open=False, values=300)
    founders = outcome.peers[:3]
    assert all(len(peer.sealed) == 2 for peer in founders)
    assert all(set(peer.machine.head.table.members) == {each.peer for each in founders} for peer in founders)
