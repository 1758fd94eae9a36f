"""Machines over the in-memory network: every round ends with the same bits on every peer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from protocols.outer import state_root
from protocols.round.chain import check_head
from protocols.tensors import PART_VALUES
from tests.swarm.crowd import SCOPE, run, settle, world

if TYPE_CHECKING:
    from protocols.ids import PeerId
    from protocols.round.effects import Effect
    from protocols.round.machine import Machine

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


@pytest.mark.parametrize("count", [1, 3, 4, 7])
@pytest.mark.parametrize("rule", ["centered-clip", "multi-krum"])
def test_so_it_is_with_the_other_rules_and_codecs(count: int, rule: str) -> None:
    codecs = {"update_codec": "int4", "result_codec": "bf16"}
    outcome = run(count, 3, seed=count, bend=None, newcomers=0, rule=rule, **codecs)
    assert not outcome.refusals()
    assert not outcome.troubles()
    chains = outcome.chains()
    assert len(chains[0]) == 3
    assert all(chain == chains[0] for chain in chains)
    for peer in outcome.peers:
        assert [each.head.view for each in peer.sealed] == [1, 2, 3], "no view fails"
        for each in peer.sealed:
            found = each.record.weights
            assert set(found) == set(outcome.world.peers)
            assert (each.record.verdict == "accepted") == (found[peer.peer] > 0)
            assert 0.9 < sum(found.values()) <= 1 + 1e-6
            # Krum selects two thirds of the weight, the last row in part.
            assert sum(weight > 0 for weight in found.values()) >= -(-2 * count // 3)


def test_equal_seeds_give_equal_traces_and_others_do_not() -> None:
    traces = [run(4, 2, seed=seed).world.trace.digest for seed in (1, 1, 2)]
    assert traces[0] == traces[1] != traces[2]


class Reading:
    """A machine whose frames were read beforehand, as the session's threads do it."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self.ahead = machine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def payload(self, sender: PeerId, kind: str, payload: bytes, now: float) -> list[Effect]:
        """See ``Machine.payload``."""
        found = self._machine.read(sender, kind, payload)
        self.ahead += found is not payload
        return self._machine.payload(sender, kind, found, now)


def test_frames_read_beforehand_change_nothing() -> None:
    traces = []
    for ahead in (False, True):
        made = world(4, 3, seed=5, update_codec="int4", result_codec="int8")
        machines = {peer: Reading(each.machine) for peer, each in made.peers.items()}
        if ahead:
            for peer, each in made.peers.items():
                each.machine = cast("Machine", machines[peer])
        assert not settle(made).refusals()
        traces.append(made.trace.digest)
        assert all((each.ahead > 0) == ahead for each in machines.values())
    assert traces[0] == traces[1]


def test_a_round_of_four_takes_its_training_and_a_few_seconds() -> None:
    """Windows take 5 s; nothing but the training waits for a clock."""
    assert run(4, 3).world.clock.now < 3 * (5 + 2) + 15
