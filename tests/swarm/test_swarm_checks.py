"""The swarm's checks on hand-made outcomes: a sound one passes them all, each fault fails its own and no other."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from peer.swarm import report
from peer.swarm.harvest import Harvest, common_rounds, newest
from peer.swarm.plan import Kill
from peer.swarm.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PEERS = ("a", "b", "c", "d")
PARTS = 12
PART_BYTES = (1000, 300)


def entry(number: int) -> dict[str, Any]:
    return {
        "schema": 1,
        "round": number,
        "unix": 0.0,
        "view": number,
        "seal": f"seal {number}",
        "state_hash": f"state {number}",
        "coordinator": "a",
        "contributors": list(PEERS),
        "weights": dict.fromkeys(PEERS, 0.25),
        "tokens": dict.fromkeys(PEERS, 100),
        "reducers": [PEERS[part % 4] for part in range(PARTS)],
        "votes": 4,
        "final": True,
        "verdict": "accepted",
        "void": False,
        "reason": None,
        "synced": False,
        "payload": [PARTS * 1000, 3000],
        "bytes_sent": 5000,
        "bytes_received": 3 * 4 * PART_BYTES[0] + PARTS * PART_BYTES[1] + report.SLACK_BYTES,
        "seconds": {"train": 1.0, "exchange": 0.5},
        "train_loss": 3.0,
    }


def outcome() -> Outcome:
    """Four peers, two rounds of twelve parts, nothing wrong, and traffic exactly at its bound."""
    peers = [
        {"id": name, "index": index, "exit_code": 0, "killed": None, "first_round": 1, "last_round": 2,
         "banned_in": None}
        for index, name in enumerate(PEERS)
    ]  # fmt: skip
    return Outcome(
        rounds_wanted=2,
        peers=peers,
        logs={name: {number: entry(number) for number in (1, 2)} for name in PEERS},
        hashes={number: dict.fromkeys(PEERS, f"state {number}") for number in (1, 2)},
        losses={0: 5.5, 1: 4.0, 2: 3.0},
        part_bytes=PART_BYTES,
    )


def failing(made: Outcome) -> list[str]:
    return [check["name"] for check in report.checks(made) if not check["ok"]]


def test_a_sound_swarm_passes_every_check_of_the_contract() -> None:
    found = report.checks(outcome())
    assert failing(outcome()) == []
    names = {check["name"] for check in found}
    assert {"rounds_sealed", "void_rounds", "one_hash_per_round", "hash_recomputed", "loss_falls", "exit_codes",
            "no_orphans", "no_honest_banned"} <= names  # fmt: skip
    assert all(set(check) == {"name", "ok", "detail"} and check["detail"] == "" for check in found)


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({}, None),
        ({"seconds": None, "contributed": None}, "peer 3: first contribution after None s"),
        ({"seconds": 121.0}, "peer 3: first contribution after 121.0 s"),
        ({"momentum": False}, "peer 3: no outer momentum"),
    ],
)
def test_who_joins_must_have_the_state_and_be_of_use(changes: dict[str, Any], detail: str | None) -> None:
    made = outcome()
    assert "joiners_contribute" not in [check["name"] for check in report.checks(made)]
    made.peers[3]["joined"] = {
        "by": "invitation", "at": 1, "contributed": 2, "seconds": 30.0, "momentum": True, **changes
    }  # fmt: skip
    (check,) = [check for check in report.checks(made) if check["name"] == "joiners_contribute"]
    assert (check["ok"], check["detail"]) == (detail is None, detail or "")


def _log(made: Outcome, peer: str, number: int) -> dict[str, Any]:
    return made.logs[peer][number]  # type: ignore[return-value]


def _one_short(made: Outcome) -> None:
    made.peers[2]["last_round"] = 1


def _never_sealed(made: Outcome) -> None:
    made.peers[2]["last_round"] = None


def _other_seal(made: Outcome) -> None:
    _log(made, "c", 1)["seal"] = "another"


def _other_state(made: Outcome) -> None:
    _log(made, "c", 1)["state_hash"] = made.hashes[1]["c"] = "another"  # type: ignore[index]


def _lied_state(made: Outcome) -> None:
    made.hashes[2]["d"] = "what the bytes say"  # type: ignore[index]


def _no_checkpoint(made: Outcome) -> None:
    made.hashes[2]["d"] = None  # type: ignore[index]


def _loss_rises(made: Outcome) -> None:
    made.losses[2] = 5.5  # type: ignore[index]


def _loss_unknown(made: Outcome) -> None:
    del made.losses[2]  # type: ignore[attr-defined]


def _loss_nan(made: Outcome) -> None:
    made.losses[2] = float("nan")  # type: ignore[index]


def _exit_1(made: Outcome) -> None:
    made.peers[1]["exit_code"] = 1


def _killed(made: Outcome) -> None:
    made.peers[1]["exit_code"] = -9


def _never_ended(made: Outcome) -> None:
    made.peers[1]["exit_code"] = None


def _void(made: Outcome) -> None:
    """Sealed by all, beside three rounds as they should be."""
    for name in PEERS:
        made.logs[name][3] = {**entry(3)}  # type: ignore[index]
        _log(made, name, 2).update({"void": True, "reason": "nobody committed", "reducers": [], "contributors": []})
        _log(made, name, 2)["bytes_received"] = 0
    made.hashes[3] = dict.fromkeys(PEERS, "state 3")  # type: ignore[index]
    made.losses[3] = 2.5  # type: ignore[index]
    for peer in made.peers:
        peer["last_round"] = 3


def _orphan(made: Outcome) -> None:
    made.orphans.append(4242)


def _banned(made: Outcome) -> None:
    made.peers[0]["banned_in"] = 2


def _two_reducers(made: Outcome) -> None:
    for name in PEERS:
        _log(made, name, 2)["reducers"] = ["a", "b"] * 6


def _one_owns_most(made: Outcome) -> None:
    for name in PEERS:
        _log(made, name, 2)["reducers"] = ["a"] * 9 + ["b", "c", "d"]
        _log(made, name, 2)["bytes_received"] = 0


def _greedy(made: Outcome) -> None:
    _log(made, "b", 2)["bytes_received"] += 1


FAULTS: list[tuple[str, Callable[[Outcome], None], str]] = [
    ("rounds_sealed", _one_short, "peer 2 ended at round 1"),
    ("rounds_sealed", _never_sealed, "peer 2 ended at round None"),
    ("one_hash_per_round", _other_seal, "round 1: 2 seals, 1 states"),
    ("one_hash_per_round", _other_state, "round 1: 1 seals, 2 states"),
    ("hash_recomputed", _lied_state, "round 2, d"),
    ("hash_recomputed", _no_checkpoint, "round 2, d"),
    ("loss_falls", _loss_rises, "from 5.5 to 5.5"),
    ("loss_falls", _loss_unknown, "from 5.5 to None"),
    ("loss_falls", _loss_nan, "from 5.5 to nan"),
    ("exit_codes", _exit_1, "peer 1: 1"),
    ("exit_codes", _killed, "peer 1: -9"),
    ("exit_codes", _never_ended, "peer 1: None"),
    ("void_rounds", _void, "round 2: nobody committed"),
    ("no_orphans", _orphan, "process 4242"),
    ("no_honest_banned", _banned, "a"),
    ("reducers_spread", _two_reducers, "round 2: [6, 6] parts"),
    ("reducers_spread", _one_owns_most, "round 2: [1, 1, 1, 9] parts"),
    ("traffic_bounded", _greedy, "round 2, b"),
]


@pytest.mark.parametrize(("name", "break_it", "detail"), FAULTS, ids=[fault[1].__name__ for fault in FAULTS])
def test_each_fault_fails_its_check_and_no_other(name: str, break_it: Callable[[Outcome], None], detail: str) -> None:
    made = copy.deepcopy(outcome())
    break_it(made)
    wrong = [check for check in report.checks(made) if not check["ok"]]
    expected = {name, "traffic_bounded"} if break_it is _two_reducers else {name}
    assert {check["name"] for check in wrong} <= expected
    assert detail in next(check["detail"] for check in wrong if check["name"] == name)


def test_nothing_at_all_is_no_success() -> None:
    empty = Outcome(rounds_wanted=2, peers=[{**outcome().peers[0], "last_round": None}], logs={"a": {}}, hashes={},
                    losses={})  # fmt: skip
    assert failing(empty) == ["rounds_sealed", "one_hash_per_round", "loss_falls"]


def test_swarms_too_small_to_spread_are_not_asked_to() -> None:
    small = outcome()
    small.peers = small.peers[:3]
    assert "reducers_spread" not in [check["name"] for check in report.checks(small)]


@pytest.mark.parametrize(
    ("last", "peers", "failing_names"),
    [
        (1.96, 4, []),
        (1.97, 4, ["below_alone"]),
        (2.2, 4, ["below_alone", "below_adamw"]),
        (9.0, 3, None),
        (None, 4, None),
    ],
)
def test_the_baselines(last: float | None, peers: int, failing_names: list[str] | None) -> None:
    found = report.baseline_checks(last, {"alone": 2.0, "adamw": 2.1}, peers)
    if failing_names is None:
        assert found == []
    else:
        assert [check["name"] for check in found] == ["below_alone", "below_adamw"]
        assert [check["name"] for check in found if not check["ok"]] == failing_names
    assert report.baseline_checks(2.0, {"alone": None, "adamw": None}, 4) == []


def test_the_rounds_of_the_report_have_the_contract_s_keys() -> None:
    made = outcome()
    del made.logs["d"][2]  # type: ignore[attr-defined]
    made.hashes[2].pop("d")  # type: ignore[attr-defined]
    zero, one, two = report.rounds(made)
    assert (zero["round"], zero["held_out_loss"]) == (0, 5.5)
    assert set(one) == {
        "round", "cell", "void", "reason", "final", "held_out_loss", "coordinator", "contributors", "weights",
        "tokens", "reducers", "votes", "view", "certified", "seal", "state_hashes", "bytes_sent", "bytes_received",
        "payload_bytes", "payload_values", "seconds", "verdicts",
    }  # fmt: skip
    assert set(one["seconds"]) == {*report.PHASES, "total"}
    assert (one["seconds"]["total"], one["seconds"]["check"], one["payload_values"]) == (1.5, 0.0, 12000)
    assert set(two["state_hashes"]) == {"a", "b", "c"}, "a dead peer is absent"
    json.dumps([zero, one, two], allow_nan=False)


SEAL = Kill("coordinator", 2, "seal")


def with_a_death() -> Outcome:
    """``d`` was killed in round 2, which became void; the others sealed two rounds beside it."""
    made = outcome()
    _void(made)
    del made.logs["d"][2], made.logs["d"][3]
    for number in (2, 3):
        made.hashes[number].pop("d")  # type: ignore[attr-defined]
    made.peers[3].update({"exit_code": -9, "killed": str(SEAL), "last_round": 1})
    made.kills = (SEAL,)
    return made


def test_a_death_as_planned_passes_every_check() -> None:
    made = with_a_death()
    assert failing(made) == []
    assert "killed_as_planned" in [check["name"] for check in report.checks(made)]
    zero, _, void, last = report.rounds(made)
    assert (void["void"], void["reason"], void["reducers"]) == (True, "nobody committed", {})
    assert (last["void"], last["reason"], set(last["state_hashes"])) == (False, None, {"a", "b", "c"})
    assert (zero["held_out_loss"], report.last_loss(made)) == (5.5, 2.5)


def _not_killed(made: Outcome) -> None:
    made.peers[3].update({"exit_code": 0, "killed": None, "last_round": 3})


def _too_many(made: Outcome) -> None:
    made.peers[2].update({"exit_code": -9, "killed": str(SEAL), "last_round": 1})


def _too_late(made: Outcome) -> None:
    made.peers[3]["last_round"] = 3


def _ended_itself(made: Outcome) -> None:
    made.peers[3]["exit_code"] = 0


def _two_void(made: Outcome) -> None:
    made.rounds_wanted = 1
    for name in PEERS[:3]:
        _log(made, name, 3).update({"void": True, "reason": "nobody committed", "reducers": [], "contributors": []})
        _log(made, name, 3)["bytes_received"] = 0


def _survivor_behind(made: Outcome) -> None:
    made.peers[0]["last_round"] = 2


def _dead_of_another_chain(made: Outcome) -> None:
    _log(made, "d", 1)["seal"] = "another"


@pytest.mark.parametrize(
    ("break_it", "names", "detail"),
    [
        (_not_killed, ["killed_as_planned"], "coordinator@2:seal: 0 of 1 peers"),
        (_too_many, ["killed_as_planned"], "coordinator@2:seal: 2 of 1 peers"),
        (_too_late, ["killed_as_planned"], "peer 3, coordinator@2:seal: died after round 3"),
        (_ended_itself, ["exit_codes"], "peer 3: 0"),
        (_two_void, ["rounds_sealed", "void_rounds"], "round 2: nobody committed; round 3: nobody committed"),
        (_survivor_behind, ["rounds_sealed"], "peer 0 ended at round 2"),
        (_dead_of_another_chain, ["one_hash_per_round"], "round 1: 2 seals, 1 states"),
    ],
)
def test_a_death_that_was_not_as_planned_fails(
    break_it: Callable[[Outcome], None], names: list[str], detail: str
) -> None:
    made = with_a_death()
    break_it(made)
    wrong = [check for check in report.checks(made) if not check["ok"]]
    assert set(names) <= {check["name"] for check in wrong} <= {*names, "loss_falls"}
    assert detail in [check["detail"] for check in wrong] or detail in wrong[0]["detail"]


def test_traffic_is_not_bounded_where_a_kill_or_a_state_disturbs_it() -> None:
    made = with_a_death()
    for number in (2, 3):
        _log(made, "a", number)["bytes_received"] = 10**9
    assert failing(made) == [], "the round of the kill and the next"
    made.kills = (Kill("3", 1, "seal"),)
    made.peers[3]["killed"] = str(made.kills[0])
    assert "traffic_bounded" in failing(made), "round 3 is far from it"
    late = outcome()
    del late.logs["d"][1]  # type: ignore[attr-defined]
    late.hashes[1].pop("d")  # type: ignore[attr-defined]
    _log(late, "d", 2)["bytes_received"] = 10**9
    assert failing(late) == [], "who joins fetches the state first"


def harvests(*logs: tuple[Sequence[int], str | None, int | None]) -> list[Harvest]:
    """(rounds logged, killed, joins) of each peer."""
    peers = [SimpleNamespace(killed=killed, joins=joins) for _, killed, joins in logs]
    return [
        Harvest(cast("Any", peer), {number: {} for number in log}, cast("Any", None))
        for peer, (log, _, _) in zip(peers, logs, strict=True)
    ]


@pytest.mark.parametrize(
    ("logs", "common"),
    [
        ([((1, 2, 3), None, None), ((1, 2), None, None)], [1, 2]),
        ([((1, 2, 3), None, None), ((), None, None)], []),
        ([((1, 2, 3), None, None), ((1,), "1@2:train", None)], [1, 2, 3]),
        ([((1, 2, 3), None, None), ((), None, 3)], [1, 2, 3]),
        ([((1, 2, 3, 4), None, None), ((3,), None, 3)], [1, 2, 3]),
        ([((1, 2, 3, 4), None, None), ((1, 4), None, None)], [1, 2, 3, 4]),
        ([((1,), "1@2:train", None)], []),
    ],
    ids=["slow", "begins", "killed", "joins", "joined", "resynced", "nobody"],
)
def test_which_rounds_everybody_is_past(logs: list[Any], common: list[int]) -> None:
    assert common_rounds(harvests(*logs)) == common
    assert newest(harvests(*logs)) == max(number for log in logs for number in log[0])


def test_a_round_is_told_by_one_who_was_there() -> None:
    made = outcome()
    for name in PEERS[:3]:
        _log(made, name, 2).update({"synced": True, "contributors": [], "reducers": []})
    assert failing(made) == []
    assert report.rounds(made)[2]["contributors"] == list(PEERS)
