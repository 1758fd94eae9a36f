"""The status document: exactly the contract's keys, events change what they should, unknown is null."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer import status as st_
from peer.histories import Histories, History
from peer.screen import screen

START = st_.Status(version="0.1.0", protocol=1, peer="12D3", since=5.0)

# Copied from contracts.md: keys are added, never renamed.
CONTRACT = json.loads("""
{"schema":1,"event":0,"version":"","protocol":1,"peer":"12D3","state":"starting","reason":{"code":"none","text":""},"since":0,
 "pause":{"since":0,"until":null},
 "run":{"id":"hex","name":"","size":"tiny","cell":"model"},
 "round":{"number":0,"phase":"train","progress":0.0,"deadline_s":0,"last_sealed":0,"void":0,"final":true},
 "model":{"parameters":0,"tokens":0,"train_loss":null,"held_out_loss":null,"state_hash":"hex"},
 "speed":{"steps_per_s":null,"tokens_per_s":null},
 "peers":{"total":0,"direct":0,"punched":0,"relayed":0},
 "reach":{"rung":"unknown","evidence":[],"addresses":[]},
 "seeds":[{"address":"","state":"ok","error":null,"retry_s":null}],
 "verdicts":[{"round":0,"verdict":"pending","code":"","text":"","weight":null,"score":null}],
 "traffic":{"sent":0,"received":0,"month":0,"cap":null},
 "processes":{"daemon":{"pid":0,"rss":0},"p2pd":{"pid":0,"rss":0,"restarts":0},"trainer":{"pid":null,"rss":null,"restarts":0}},
 "machine":{"cpu":0.0,"cores":0,"threads":0,"disk":0,"disk_free":0,"disk_cap":0},
 "limits":{},
 "warnings":[{"code":"","text":"","remedy":""}],
 "histories":[{"head":"hex","round":0,"view":0,"weight":0,"fork":"hex","since":0,"own":false}]}
""")

EVENTS: list[st_.Event] = [
    st_.StateChanged("training", 9.0),
    st_.StateChanged("seeking", 9.0, st_.Reason("no_peers", "nobody answers")),
    st_.Paused(st_.Pause(8.0, 20.0)),
    st_.RunInfo("ab", "shakespeare", "tiny", "model"),
    st_.Loaded(387_744, "ab", 2.6, 2),
    st_.PhaseEntered(3, "train", 60.0),
    st_.Progressed(0.5, 30.0),
    st_.Trained(1024, 2.5, st_.Speed(10.0, 10240.0)),
    st_.Sealed(3, "cd", 2.4),
    st_.Finalised(),
    st_.Peers(3, 3),
    st_.Reach("public", ("dialled back",), ("/ip4/127.0.0.1/tcp/1",)),
    st_.Seed("/ip4/127.0.0.1/tcp/1", "failed", "refused", 5.0),
    st_.Verdict(3, "accepted", weight=0.25),
    st_.Traffic(10, 20, 30, None),
    st_.Processes(st_.Daemon(1, 2), st_.Child(3, 4), st_.Child(5, 6, 1)),
    st_.Machine(0.9, 2, 1, 10, 20, 30),
    Histories((History("ab", 9, 12, 0.75, "cd", 3, own=True), History("ef", 8, 14, 1.0, "cd", 3, own=False))),
    st_.Warned("few", "two peers tolerate no liar", "invite two more"),
    st_.Cleared("few"),
]


def keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: keys(entry) for name, entry in value.items()}
    return [keys(value[0])] if isinstance(value, list) and value else None


def after(*events: st_.Event) -> st_.Status:
    status = START
    for event in events:
        status = st_.apply(status, event)
    return status


def test_document_has_exactly_the_keys_of_the_contract() -> None:
    full = st_.to_json(after(*EVENTS, st_.Warned("few", "again", "x")))
    expected = keys(CONTRACT)
    expected["reach"]["evidence"] = expected["reach"]["addresses"] = [None]
    assert keys(full) == expected
    assert list(full) == list(CONTRACT)


def test_unknown_is_null_never_zero() -> None:
    fresh = st_.to_json(START)
    for section in ("run", "round", "model", "speed", "traffic", "machine"):
        assert set(fresh[section].values()) == {None}
    assert fresh["processes"]["trainer"] == {"pid": None, "rss": None, "restarts": 0}


@given(st.lists(st.sampled_from(EVENTS)))
def test_every_event_counts_once_and_the_document_stays_json(events: list[st_.Event]) -> None:
    status = after(*events)
    assert status.event == len(events)
    document = st_.to_json(status)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert "\n" in screen(document)


def test_a_round_from_training_to_its_seal() -> None:
    status = after(
        st_.PhaseEntered(3, "train", 60.0), st_.Progressed(0.5, 30.0), st_.Trained(1024, 2.5), st_.Trained(1024, 2.25)
    )
    assert (status.round.number, status.round.phase, status.round.progress) == (3, "train", 0.5)
    assert (status.model.tokens, status.model.train_loss) == (2048, 2.25)
    status = st_.apply(status, st_.Sealed(3, "cd", 2.5))
    assert (status.round.last_sealed, status.model.held_out_loss, status.model.state_hash) == (3, 2.5, "cd")
    status = st_.apply(status, st_.Sealed(4, "ef"))
    assert status.model.held_out_loss == 2.5, "a seal whose loss was not measured keeps the last measured one"
    status = st_.apply(status, st_.PhaseEntered(5, "train"))
    assert (status.round.progress, status.round.deadline_s, status.round.last_sealed) == (0.0, None, 4)


def test_void_rounds_are_counted_and_only_the_last_seal_is_final_or_not() -> None:
    status = after(st_.Loaded(387_744, "ab", last_sealed=2), st_.Sealed(3, "ab", void=True), st_.Finalised())
    assert (status.round.void, status.round.final) == (1, True)
    status = st_.apply(status, st_.Sealed(4, "ab", void=True))
    status = st_.apply(status, st_.Sealed(5, "cd"))
    assert (status.round.void, status.round.final, status.round.last_sealed) == (2, False, 5)
    assert "last sealed 5 (2 void)" in screen(st_.to_json(status))


def test_a_restart_shows_where_it_goes_on() -> None:
    status = after(st_.Loaded(387_744, "ab", 2.6, 7))
    assert (status.model.parameters, status.model.state_hash, status.model.held_out_loss) == (387_744, "ab", 2.6)
    assert status.round.last_sealed == 7


def test_a_verdict_replaces_the_pending_one_of_its_round() -> None:
    status = after(st_.Verdict(2, "pending"), st_.Verdict(1, "accepted"), st_.Verdict(2, "late"))
    assert [(verdict.round, verdict.verdict) for verdict in status.verdicts] == [(1, "accepted"), (2, "late")]
    many = after(*(st_.Verdict(number, "accepted") for number in range(40)))
    assert [verdict.round for verdict in many.verdicts] == list(range(24, 40))


def test_warnings_and_seeds_are_kept_once_each() -> None:
    status = after(st_.Warned("a", "one"), st_.Warned("b", "two"), st_.Warned("a", "three"))
    assert [(warning.code, warning.text) for warning in status.warnings] == [("b", "two"), ("a", "three")]
    assert [warning.code for warning in st_.apply(status, st_.Cleared("b")).warnings] == ["a"]
    seeds = after(st_.Seed("x", "trying"), st_.Seed("y", "ok"), st_.Seed("x", "failed", "refused", 2.0)).seeds
    assert [(seed.address, seed.state) for seed in seeds] == [("y", "ok"), ("x", "failed")]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_null(loss: float) -> None:
    assert st_.to_json(after(st_.Trained(1, loss)))["model"]["train_loss"] is None


def test_the_screen_shows_what_a_person_looks_for() -> None:
    text = screen(st_.to_json(after(*EVENTS[:-1])))
    for piece in (
        ": nobody answers", "shakespeare", "train 50%", "last sealed 3 (final)", "held out 2.400",
        "10.0 steps/s", "10.2 k tokens/s", "3 connected (3 direct", "round 3: accepted, weight 0.250",
        "two peers tolerate no liar – invite two more", "trainer 5 (6 B, restarted 1×)", "failed, refused",
    ):  # fmt: skip
        assert piece in text
