"""Restarts in every phase, a journal that remembers something else, windows that come late."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from protocols.errors import LocalError
from protocols.ids import Hash, digest
from protocols.messages import Commit
from protocols.payloads import Want
from protocols.round.effects import Push, Sign, Train, Trouble, Window, Work
from protocols.round.serving import REPLAY_S, REPLAYERS
from tests.swarm.crowd import (
    SCOPE,
    Outcome,
    draw,
    first_head,
    identities,
    lying,
    run,
    settle,
    stand_in,
    until,
    world,
)

if TYPE_CHECKING:
    from peer.virtual import VirtualPeer, World
    from protocols.ids import PeerId

LOST = Hash(b"?" * 32)
TOKENS = 25 * 1024
PHASES = ("train", "commit", "roster", "exchange", "reduce", "apply", "seal")


def restarted(made: World, victim: PeerId, phase: str, number: int, seconds: float) -> None:
    """Kill a peer as it enters a phase, and start it again from its disk so many seconds later."""
    made.begin()
    peer = made.peers[victim]

    def there() -> bool:
        return peer.machine.head.round == number - 1 and peer.machine.waiting()[0] == phase

    until(made, there)
    made.kill(peer)
    made.injector.open += 1  # the swarm does not end before it is back

    def back() -> None:
        made.restart(peer)
        made.injector.open -= 1

    made.clock.at(made.clock.now + seconds, back)


def ended(made: World, rounds: int) -> list[VirtualPeer]:
    """Everybody after these rounds: one chain, nothing refused, nothing signed twice (the world sees to that)."""
    until(made, lambda: made.done)
    peers = list(made.peers.values())
    assert not made.refused
    assert len({peer.machine.head.seal for peer in peers}) == 1
    assert all(peer.depth == rounds for peer in peers)
    return peers


def sealed_tokens(peers: list[VirtualPeer], who: PeerId) -> int:
    """Tokens of one peer in all seals, as whoever saw all of them counts."""
    whole = max(peers, key=lambda peer: len(peer.sealed))
    return sum(each.record.tokens.get(who, 0) for each in whole.sealed)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("role", ["coordinator", "another"])
def test_a_peer_that_restarts_in_any_phase_loses_no_update(phase: str, role: str) -> None:
    """It is back within the grace: nobody's window is missing at the end, its own included."""
    made = world(4, 3)
    turn = run(4, 3).peers[0].sealed[1].record.coordinator
    victim = turn if role == "coordinator" else next(each for each in made.peers if each != turn)
    restarted(made, victim, phase, 2, 2.0)
    peers = ended(made, 3)
    assert not any(each.record.void for peer in peers for each in peer.sealed)
    for each in made.peers:
        assert sealed_tokens(peers, each) == 3 * TOKENS


@pytest.mark.parametrize("phase", PHASES)
def test_what_the_codec_rounded_away_survives_a_restart(phase: str) -> None:
    """Every bit of everybody's state and drift is as if nobody had been away."""
    codecs: dict[str, Any] = {"update_codec": "int4", "result_codec": "int8", "rule": "default"}
    clean = {each.peer: each.sealed[-1] for each in run(4, 4, **codecs).peers}
    made = world(4, 4, **codecs)
    restarted(made, min(made.peers), phase, 3, 2.0)
    for peer in ended(made, 4):
        last, other = peer.sealed[-1], clean[peer.peer]
        assert last.params.tobytes() == other.params.tobytes()
        assert last.drift.tobytes() == other.drift.tobytes()
        assert last.drift.any()


@pytest.mark.parametrize("phase", PHASES)
def test_a_peer_that_is_away_for_longer_is_waited_for_no_longer_than_needed(phase: str) -> None:
    made = world(4, 3)
    turn = run(4, 3).peers[0].sealed[1].record.coordinator
    restarted(made, turn, phase, 2, 100.0)
    others = [peer for name, peer in made.peers.items() if name != turn]
    until(made, lambda: all(peer.depth >= 2 for peer in others))
    assert made.clock.now < 60
    peers = ended(made, 3)
    whole = max(peers, key=lambda peer: len(peer.sealed))
    assert not any(each.record.void for each in whole.sealed)
    kept = phase not in {"train", "commit"}
    assert (turn in whole.sealed[1].record.tokens) == kept, "a commit that a third has seen is not dropped"


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("phase", PHASES)
def test_a_few_wait_for_who_is_back_soon(count: int, phase: str) -> None:
    """With two or three everybody's vote is needed, and parts must reach a reducer a second time."""
    made = world(count, 2)
    victim = run(count, 2).peers[0].sealed[0].record.coordinator
    restarted(made, victim, phase, 1, 2.0)
    ended(made, 2)


def test_who_comes_back_without_its_disk_is_a_newcomer_and_its_old_key_is_away() -> None:
    made = world(4, 8)
    made.begin()
    until(made, lambda: made.newest().round == 1)
    victim = made.living()[0]
    made.kill(victim)
    made.clock.at(made.clock.now + 10, made.join)
    until(made, lambda: made.done)
    table = made.newest().table
    fresh = list(made.peers)[-1]
    assert fresh not in {each.peer for each in identities(4)}
    assert table.stands(fresh)
    assert victim.peer in table.members and not table.stands(victim.peer)
    rows = [each.record.contributors for each in made.living()[0].sealed]
    assert fresh in rows[-1]


def test_a_journal_with_an_older_commit_is_said_and_other_bytes_are_not_sent() -> None:
    made = world(4)
    who = identities(4)[0]
    older = SCOPE.state(who.peer, Commit(first_head(identities(4)).seal, LOST, (), 0, True), who.sign)
    peer = made.peers[who.peer]
    peer.disk.journal.entries[digest(b"commit", older.body.slot())] = (1, older)
    sent: list[str] = []

    def watch(_to: PeerId, kind: str, _payload: bytes) -> None:
        sent.append(kind)

    lying(made, who.peer, watch)
    outcome = settle(made)
    assert [(each.peer, each.text) for each in peer.troubles] == [
        (who.peer, "committed other bytes for this round before a restart; its update waits for the next")
    ]
    assert "statement" in sent
    assert "parts" not in sent
    assert not outcome.refusals()
    for each in outcome.peers[1:]:
        record = each.sealed[0].record
        assert record.view == 1 and record.weights[who.peer] == 0.0
    assert peer.sealed[0].drift.any(), "it waits for the next round"


def test_statements_of_the_next_round_that_come_early_are_used() -> None:
    """No vote reaches one peer until everybody else has committed to the next round."""
    clean = run(4)
    made = world(4)
    victim = identities(4)[0].peer

    def courier(frame: object) -> float | None:
        return None if getattr(frame, "to", "") == victim and _is_vote(frame) else 0.1

    made.network.courier = courier
    made.begin()
    others = [peer for name, peer in made.peers.items() if name != victim]
    until(made, lambda: all(peer.sealed and peer.machine.view == 2 for peer in others))
    until(made, lambda: made.clock.now > 12)
    assert not made.peers[victim].sealed
    made.network.courier = None
    for frame in list(made.network.withheld):
        made.network.release(frame)
    until(made, lambda: made.done)
    outcome = Outcome(list(made.peers.values()), made)
    assert outcome.chains() == clean.chains()
    # Their readys for the next view had come before the votes: they make the seal final here too.
    assert [each.round for each in made.peers[victim].final] == [1]
    assert not outcome.refusals()
    assert not outcome.troubles()


def _is_vote(frame: object) -> bool:
    body = getattr(getattr(frame, "payload", None), "body", None)
    return getattr(body, "kind", "") == "vote"


def test_results_are_served_to_members_and_to_some_strangers_and_not_without_end() -> None:
    made = run(4).world
    machine = next(iter(made.peers.values())).machine
    core = machine._ctx.history[-1].results.core  # type: ignore[union-attr]
    asker, stranger = identities(9)[1].peer, identities(9)[8].peer
    want = Want(core, (0, 1)).encode()

    def served(peer: PeerId, times: int) -> list[int]:
        answers = [machine.payload(peer, "want", want, 100.0) for _ in range(times)]
        member = peer != stranger
        assert all(isinstance(each, Push) and each.bulk != member for answer in answers for each in answer)
        return [len(answer) for answer in answers]

    once = served(asker, 20)
    assert once[0] > 0
    assert once == [once[0]] * 12 + [0] * 8
    assert served(stranger, 8) == [once[0]] * 6 + [0] * 2
    others = [each.peer for each in identities(9 + 2 * REPLAYERS)[9:]]
    assert sum(bool(machine.payload(each, "want", want, 101.0)) for each in others) == REPLAYERS - 1
    assert machine.payload(others[-1], "want", want, 101.0 + 2 * REPLAY_S), "when others have not asked for long"
    unknown = Want(LOST, (0, 1)).encode()
    assert machine.payload(asker, "want", unknown, 100.0) == []


# --- windows -----------------------------------------------------------------------------------------


def window(value: float) -> Window:
    return Window(np.full(300, value, dtype=np.float32), 1, 1)


def test_a_window_that_ends_after_its_round_does_not_replace_the_one_committed() -> None:
    who = identities(1)[0]
    one = stand_in(1, values=300)
    parent = one.head.seal
    one.start(0.0)
    drift = draw(who.peer, parent, 300)
    effects = one.trained(parent, Window(drift, 1, 1), 5.0)
    work = next(each for each in effects if isinstance(each, Work))
    assert any(isinstance(each, Sign) for each in one.done(work, work.run(), 5.0))
    assert one.trained(parent, window(1.0), 6.0) == []
    assert one.window is not None
    assert one.window.drift is drift


def test_a_window_that_nobody_asked_for_is_dropped() -> None:
    one = stand_in(1, values=300)
    one.start(0.0)
    assert one.trained(LOST, window(1.0), 5.0) == []
    assert one.window is None


def test_a_window_that_is_not_finite_is_said_and_thrown_away() -> None:
    one = stand_in(1, values=300)
    one.start(0.0)
    effects = one.trained(one.head.seal, window(np.nan), 5.0)
    assert any(isinstance(each, Trouble) for each in effects)
    assert one.window is not None
    assert not one.window.drift.any()
    assert (one.window.steps, one.window.tokens) == (0, 0)


def test_a_window_on_top_of_drift_from_before_a_restart_holds_both() -> None:
    one = stand_in(1, values=300)
    effects = one.start(0.0, np.full(300, 2.0, dtype=np.float32))
    asked = next(each for each in effects if isinstance(each, Train))
    assert (asked.drift == 2.0).all()
    one.trained(one.head.seal, replace(window(0.0), drift=asked.drift + np.float32(1)), 5.0)
    assert one.window is not None
    assert (one.window.drift == 3.0).all()


def test_finish_in_the_middle_of_a_round_changes_nothing() -> None:
    who = identities(1)[0]
    one = stand_in(1, values=300)
    one.start(0.0)
    one.trained(one.head.seal, Window(draw(who.peer, one.head.seal, 300), 1, 1), 5.0)
    assert one.finish(5.0) == []


def test_work_for_another_parent_is_dropped_and_unknown_work_is_a_mistake() -> None:
    one = stand_in(1, values=300)
    one.start(0.0)
    assert one.done(Work("encode", LOST, b"", lambda: None), None, 0.0) == []
    with pytest.raises(LocalError, match="nobody asked"):
        one.done(Work("magic", one.head.seal, b"", lambda: None), None, 0.0)
