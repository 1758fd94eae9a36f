"""The virtual swarm: equal seeds, equal traces; faults are survived; every rule is seen to break when it is broken."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from peer import cli
from peer.virtual import Faults, Kill, Plan, Violation, World
from peer.virtual.invariants import COUNT_LIMIT, Invariants, Link, Shadow
from peer.virtual.plan import SETTING, keys
from protocols.ids import Hash, digest
from protocols.messages import Contribution, Ready, Seal
from protocols.outer import state_root
from protocols.round.chain import Head, seal_hash
from protocols.round.effects import Record, Sealed, Train, Window

if TYPE_CHECKING:
    from pathlib import Path

    from peer.virtual.peer import VirtualPeer

PLAN = Plan()
KEYS = keys(0, 4)
ME = KEYS[0]
ZERO = Hash(bytes(32))


# --- whole swarms ----------------------------------------------------------------------------------


def test_equal_seeds_give_equal_traces_and_others_do_not() -> None:
    def trace(seed: int) -> str:
        return World(seed, 6, 2, Faults(loss=0.2, deaths=1, joins=1)).run().trace

    assert trace(1) == trace(1) != trace(2)


def test_twenty_peers_with_every_fault_end_on_one_chain() -> None:
    outcome = World(1, 20, 10, Faults(loss=0.3, deaths=4, joins=4, partitions=1, frozen=1, slow=1)).run().require()
    assert len({each.head.table.root for each in outcome.peers if each.head == outcome.peers[0].head}) == 1
    assert outcome.void_share <= 0.1
    assert sum(not link.void for link in outcome.chain) >= 10


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_without_faults_no_round_is_void_and_nothing_is_refused(count: int) -> None:
    outcome = World(count, count, 3, plan=replace(PLAN, linger=12.0)).run().require()
    assert not any(link.void for link in outcome.chain)
    assert not outcome.world.refused
    assert all(each.final and not each.troubles for each in outcome.peers)


def test_who_catches_up_is_not_level_before_it_is_there() -> None:
    """Before, a seal that was only replayed counted as new, and a key was used twice for one round."""
    seen: list[tuple[int, bool, int, bool]] = []

    class Watched(World):
        def on_sealed(self, peer: VirtualPeer, effect: Sealed) -> None:
            super().on_sealed(peer, effect)
            joined = self.number(peer.peer) >= 4
            seen.append((self.newest().round - effect.head.round, peer.machine.level, effect.head.round, joined))

    Watched(5, 4, 8, Faults(join_at=(5,))).run().require()
    catching_up = [level for behind, level, _, joined in seen if joined and behind > 1]
    assert len(catching_up) >= 2 and not any(catching_up)
    assert any(level for behind, level, _, joined in seen if joined and not behind)
    settled = [level for _, level, number, joined in seen if not joined and number > 1]
    assert sum(settled) > len(settled) / 2, "those that make the rounds are level"


def test_a_kill_hits_whom_it_names() -> None:
    faults = Faults(kills=(Kill("coordinator", 2, "seal"), Kill("1", 3)), join_at=(2,))
    outcome = World(3, 6, 4, faults).run().require()
    dead = {outcome.world.number(name) for name, each in outcome.world.peers.items() if not each.alive}
    assert 1 in dead and len(dead) == 2
    assert len(outcome.peers) == 5


def test_a_swarm_that_cannot_go_on_says_where_it_stands() -> None:
    outcome = World(1, 4, 3, plan=replace(PLAN, trainer=lambda peer, effect: None)).run(limit=60.0)
    assert not outcome.ok and "0 rounds" in outcome.detail
    with pytest.raises(Violation, match="murmur swarm --virtual --peers 4 --rounds 3 --seed 1"):
        outcome.require()


def test_without_its_journal_who_restarts_signs_twice() -> None:
    """The same seeds with the journal break no rule: ``test_two_hundred_seeds_of_a_small_swarm`` restarts as well."""
    faults = Faults(loss=0.1, deaths=3, restarts=1.0, journal=False)
    for seed in range(40):
        try:
            World(seed, 5, 3, faults).run()
        except Violation as error:
            assert error.check == "no_double_signature"
            World(seed, 5, 3, replace(faults, journal=True)).run()
            return
    raise AssertionError("nobody signed twice")


@pytest.mark.real
@pytest.mark.timeout(1200)
def test_two_hundred_seeds_of_a_small_swarm() -> None:
    for seed in range(200):
        World(seed, 7, 4, Faults(loss=0.3, deaths=2, joins=1, partitions=seed % 2, frozen=1)).run().require()


@pytest.mark.real
@pytest.mark.timeout(300)
def test_fifty_peers_and_fifty_rounds() -> None:
    outcome = World(0, 50, 50, Faults(loss=0.3, deaths=10, joins=10, partitions=1)).run().require()
    assert outcome.void_share <= 0.1


# --- the command -----------------------------------------------------------------------------------


def test_the_command_writes_the_contract_s_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = vars(
        cli.parser().parse_args(
            ["swarm", "--virtual", "--peers", "5", "--rounds", "2", "--seed", "4", "--loss", "0.1", "--join-at", "2",
             "--json", str(tmp_path / "report"), "--trace", str(tmp_path / "trace")]
        )
    )  # fmt: skip
    command = arguments.pop("command")
    del arguments["version"]
    assert command(arguments) == 0
    document: dict[str, Any] = json.loads((tmp_path / "report").read_text())
    assert document["schema"] == 1 and document["ok"] and document["config"]["virtual"]
    assert {"rounds_sealed", "one_hash_per_round", "final_conflicts", "no_double_signature", "void_rounds"} <= {
        check["name"] for check in document["checks"]
    }
    assert document["rounds"][0] == {"round": 0, "cell": "model", "held_out_loss": None}
    assert len(document["rounds"]) >= 3 and len(document["peers"]) == 6
    assert len((tmp_path / "trace" / "trace.txt").read_text().splitlines()) > 50
    assert "checks hold" in capsys.readouterr().out


# --- the rules -------------------------------------------------------------------------------------


def rules() -> tuple[Invariants, Head]:
    """Rules that have seen seal 0."""
    anchor = PLAN.anchor(KEYS)
    return Invariants(anchor, state_root(*PLAN.first())), anchor


def sealed(parent: Head, view: int, contributors: tuple[Contribution, ...] = (), **changes: Any) -> Sealed:
    """A seal on top of ``parent``, unsigned by anybody that counts; without contributors a void one."""
    params, momentum = PLAN.first()
    body = Seal(
        view, parent.seal, parent.round + 1, ZERO, ZERO, (), (), contributors, (), (), parent.table.root,
        state_root(params, momentum),
    )  # fmt: skip
    name = seal_hash(PLAN.scope, body)
    head = Head(name, view, body.round, parent.table, PLAN.scope.state(ME.peer, body, ME.sign), (), parent.table)
    record = Record(body.round, view, name, ME.peer, (), {}, {}, (), body.state, (0, 0), {}, "accepted")
    made = Sealed(head, params, momentum, np.zeros_like(params), (0,) * 16, record)
    return replace(made, **changes)


def test_two_statements_of_one_slot_are_seen() -> None:
    seen, anchor = rules()
    one, other = (
        PLAN.scope.state(ME.peer, Ready(1, anchor.seal, 0, commits, b"", 0, ()), ME.sign)
        for commits in ((), (digest(b"another"),))
    )
    seen.no_double_signature(one)
    seen.no_double_signature(one)
    with pytest.raises(Violation, match="no_double_signature.*two readys"):
        seen.no_double_signature(other)


def test_conflicting_final_seals_are_seen() -> None:
    seen, anchor = rules()
    left, right = sealed(anchor, 1), sealed(anchor, 2)
    above = sealed(left.head, 3)
    for effect, before in ((left, anchor), (right, anchor), (above, left.head)):
        seen.adopted(ME.peer, before, effect)
    for effect in (left, above, left):
        seen.one_final_chain(ME.peer, effect.head.seal)
    with pytest.raises(Violation, match="final_conflicts.*round 1 view 2 and round 2 view 3"):
        seen.one_final_chain(ME.peer, right.head.seal)


def test_heads_that_fall_and_states_that_differ_are_seen() -> None:
    seen, anchor = rules()
    first = sealed(anchor, 3)
    seen.adopted(ME.peer, anchor, first)
    lower = sealed(anchor, 2)
    with pytest.raises(Violation, match="view_grows"):
        seen.adopted(ME.peer, first.head, lower)
    seen.adopted(ME.peer, first.head, replace(lower, record=replace(lower.record, synced=True)))
    with pytest.raises(Violation, match="hash_recomputed"):
        seen.adopted(ME.peer, first.head, sealed(first.head, 4, momentum=first.params))
    unknown = sealed(sealed(first.head, 5).head, 6)
    with pytest.raises(Violation, match="known_parent"):
        seen.adopted(ME.peer, first.head, unknown)


def line(parts: int) -> tuple[Contribution, ...]:
    """A seal's only contribution, mine."""
    return (Contribution(ME.peer, ZERO, 1, parts, 1.0),)


@pytest.mark.parametrize(
    ("parts", "age", "lost", "fine"),
    [(0, 0, 1, False), (0, 1, 1, False), (0, 2, 16, True), (1, 0, 1, True), (1, 0, 2, False), (16, 0, 16, True)],
)
def test_drift_that_goes_without_a_rule_is_seen(parts: int, age: int, lost: int, fine: bool) -> None:
    seen, anchor = rules()
    drift = np.ones(SETTING.values, dtype=np.float32)
    shadow = Shadow(np.zeros_like(drift), (age,) * 16)
    shadow.trained(Train(anchor.seal, 1, drift, drift), Window(drift * 2, 1, 1))
    left = drift.copy()
    left[: lost * SETTING.part] = 0
    effect = sealed(anchor, 1, line(parts) if parts else (), drift=left)
    if fine:
        seen.drift_by_rule(ME.peer, shadow, effect, SETTING.part)
        assert shadow.drift is left
    else:
        with pytest.raises(Violation, match="drift_kept"):
            seen.drift_by_rule(ME.peer, shadow, effect, SETTING.part)


def test_a_machine_that_hoards_is_seen() -> None:
    seen, _ = rules()
    seen.bounded(ME.peer, {"known": 5, "result_bytes": 1 << 20})
    with pytest.raises(Violation, match="memory_bounded.*known"):
        seen.bounded(ME.peer, {"known": COUNT_LIMIT + 1})
    assert seen.peaks["result_bytes"] == 1 << 20


def test_the_chain_leads_down_to_seal_0() -> None:
    seen, anchor = rules()
    before = anchor
    for view in (1, 2, 5):
        effect = sealed(before, view, line(1) if view == 2 else ())
        seen.adopted(ME.peer, before, effect)
        before = effect.head
    chain: list[Link] = list(seen.back(before.seal))
    assert [link.round for link in chain] == [3, 2, 1, 0] and chain[0].depth == 1
    assert seen.descends(before.seal, anchor.seal) and not seen.descends(anchor.seal, before.seal)
