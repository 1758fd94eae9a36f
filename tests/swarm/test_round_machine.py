"""Machines over the in-memory network: every round ends with the same bits on every peer."""

from __future__ import annotations

import pytest

from protocols.outer import state_root
from protocols.round.chain import check_head
from protocols.tensors import PART_VALUES
from tests.swarm.crowd import SCOPE, run

VALUES = 3 * PART_VALUES + 1000
PHASES = {"train", "commit", "roster", "exchange", "reduce", "apply", "seal"}


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("rule", ["mean", "default"])
def test_everybody_ends_every_round_with_the_same_seal(count: int, rule: str) -> None:
    outcome = run(count, 3, seed=count, rule=rule, result_codec="int8", values=VALUES, part=PART_VALUES)
    assert not outcome.refusals()
    assert not outcome.troubles()
    chains = outcome.chains()
    assert len(chains[0]) == 3
    assert all(chain == chains[0] for chain in chains)
    for peer in outcome.peers:
        assert [each.round for each in peer.final] == [1, 2, 3]
        assert [each.head.view for each in peer.sealed] == [1, 2, 3], "no view fails"
        last = peer.sealed[-1]
        check_head(last.head, SCOPE, state_root(last.params, last.momentum))
        for each in peer.sealed:
            record = each.record
            assert not record.void and not record.synced and record.verdict == "accepted"
            assert set(record.contributors) == set(outcome.world.peers)
            assert 0.99 if rule == "default" else 1 - 1e-6 <= sum(record.weights.values()) <= 1 + 1e-6
            assert set(record.owners) <= set(record.contributors)
            assert set(record.seconds) == PHASES


def test_equal_seeds_give_equal_traces_and_others_do_not() -> None:
    traces = [run(4, 2, seed=seed).world.trace.digest for seed in (1, 1, 2)]
    assert traces[0] == traces[1] != traces[2]


def test_a_round_of_four_takes_its_training_and_a_few_seconds() -> None:
    """Windows take 5 s; nothing but the training waits for a clock."""
    assert run(4, 3).world.clock.now < 3 * (5 + 2) + 15
