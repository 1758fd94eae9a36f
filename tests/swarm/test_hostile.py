"""One member says whatever it likes, whenever it likes: rounds go on, nothing breaks, nobody else is blamed."""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from peer.identity import Identity
from protocols.ids import Hash, PeerId
from protocols.messages import (
    MAX_CONTRIBUTORS,
    Commit,
    Freeze,
    Ready,
    Roster,
    Seal,
    Vote,
)
from protocols.payloads import Want
from protocols.round import known
from protocols.round.chain import seal_hash
from protocols.round.effects import Flood, Sign
from protocols.round.machine import Machine
from protocols.round.sealing import outcome
from protocols.round.timing import Timing, reduce_time
from protocols.round.views import MAX_LEAD
from protocols.statements import Statement
from protocols.table import AWAY, Member, Table
from protocols.turns import coordinator, first_turn
from tests.swarm.crowd import (
    SCOPE,
    SETTING,
    VALUES,
    first_head,
    first_state,
    identities,
    lying,
    stand_in,
    state,
    turn_of,
    world,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from peer.virtual import World
    from protocols.messages import Body
    from protocols.round.effects import Effect

NOWHERE = Hash(b"?" * 32)
FAR = 1 << 40
Frames = list[tuple[str, bytes]]


def statement(body: Body, who: Identity) -> Statement:
    return SCOPE.state(who.peer, body, who.sign)


def signs(effects: list[Effect]) -> list[Body]:
    return [each.body for each in effects if isinstance(each, Sign)]


def turns(who: PeerId, start: int, count: int) -> list[int]:
    """The first views from ``start`` on that one of four coordinates."""
    table = first_head(identities(4)).table
    out: list[int] = []
    while len(out) < count:
        out += [start] if coordinator(table, SCOPE, start) == who else []
        start += 1
    return out


def attack(who: Identity, more: Callable[[Statement], Frames], rounds: int = 1) -> World:
    """Four make rounds while one of them sends more beside what it should; it must be the only one that is blamed."""
    made = world(4, rounds)

    def bend(_to: PeerId, kind: str, payload: bytes) -> Frames:
        return [(kind, payload), *(more(SCOPE.decode(payload, sender="test")) if kind == "statement" else [])]

    lying(made, who.peer, bend)
    made.run(300.0)
    assert {error.peer for peer, _, error in made.refused if peer != who.peer} <= {who.peer}
    assert {each.peer for peer in made.peers.values() if peer.peer != who.peer for each in peer.troubles} <= {who.peer}
    return made


def one_of_four(*, in_turn: bool) -> Identity:
    """The coordinator of view 1, or another one."""
    return next(each for each in identities(4) if (each.peer == turn_of(4, 1)) == in_turn)


# --- what is said of views far ahead -----------------------------------------------------------------


def far_seal(view: int, roster: Hash = NOWHERE, lost: tuple[PeerId, ...] = ()) -> Seal:
    parent = first_head(identities(4)).seal
    return Seal(view, parent, 1, roster, b"", (), (), (), (), lost, NOWHERE, NOWHERE)


def test_proposals_for_turns_far_ahead_do_not_push_out_those_of_others() -> None:
    who = one_of_four(in_turn=False)
    seals = [state(far_seal(view), who) for view in turns(who.peer, 100, 40)]
    made = attack(who, lambda said: [("statement", each) for each in seals] if isinstance(said.body, Commit) else [])
    assert made.done
    assert {link.view for link in made.outcome().chain} == {1}


def test_a_seal_without_the_others_for_a_view_far_ahead_is_not_certified_by_its_own_vote() -> None:
    """It names the roster of its turn, which goes on without nobody."""
    who = one_of_four(in_turn=True)
    rest = tuple(each.peer for each in identities(4) if each is not who and each.peer != who.peer)

    def more(said: Statement) -> Frames:
        if not isinstance(said.body, Commit) or said.peer != who.peer:
            return []
        return [(kind, data) for view in (1, FAR) for kind, data in alone(view, said)]

    def alone(view: int, said: Statement) -> Frames:
        bodies = [far_seal(view, Hash(core), rest) for core in cores]
        return [
            ("statement", state(body, who)) for seal in bodies for body in (seal, Vote(view, seal_hash(SCOPE, seal)))
        ]

    cores = {task.cast.core for task in _tasks(who)}
    assert cores
    assert attack(who, more).done


def _tasks(who: Identity) -> list[Any]:
    """The work of the first round as ``who`` called for it."""
    made = world(4)
    made.begin()
    while not (tasks := list(made.peers[who.peer].machine._ctx.round.tasks.values())):
        assert made.clock.step()
    return tasks


def test_a_freeze_of_a_turn_to_come_waits_for_it() -> None:
    """Taken at once it would outrank every freeze before that turn, and put out whom it likes."""
    who = one_of_four(in_turn=False)
    rest = tuple(each.peer for each in identities(4) if each.peer != who.peer)
    view = turns(who.peer, 100, 1)[0]

    def more(said: Statement) -> Frames:
        if not isinstance(said.body, Freeze):
            return []
        return [("statement", state(replace(said.body, view=view, out=rest), who))]

    made = attack(who, more)
    assert made.done
    assert all(record.view == 1 and len(set(record.owners)) > 1 for record in _records(made, who))


def _records(made: World, but: Identity) -> list[Any]:
    return [each.record for peer in made.peers.values() if peer.peer != but.peer for each in peer.sealed]


def test_a_single_neighbour_leads_nobody_to_the_end_of_all_views() -> None:
    """With nobody else there it weighs more than a third of those who are here."""
    keys = identities(4)
    machine, head = stand_in(4), first_head(keys)
    machine.start(0.0)
    machine.welcome(keys[1].peer, 0.0)
    for view, reached in ((5, 5), (MAX_LEAD, MAX_LEAD), (MAX_LEAD + 1, MAX_LEAD), (FAR, MAX_LEAD)):
        machine.receive(statement(Ready(view, head.seal, 0, (), b"", 0, ()), keys[1]), keys[1].peer, 1.0)
        assert machine.view == reached


# --- going on without others -------------------------------------------------------------------------


def shrink(view: int, ready: list[Identity], who: Identity) -> Statement:
    head = first_head(identities(4))
    readys = (state(Ready(view, head.seal, 0, (), b"", 0, ()), each) for each in sorted(ready, key=lambda e: e.peer))
    return statement(Roster(view, 0, head.seal, (), tuple(readys), (), shrink=True), who)


def test_a_newcomer_does_not_go_on_with_a_single_member() -> None:
    """Six views have failed if that member's number of the view is believed."""
    keys = identities(5)
    machine = Machine(SCOPE, keys[4].peer, SETTING, first_head(keys[:4]), first_state(VALUES))
    machine.start(0.0)
    machine.receive(shrink(9, keys[:1], keys[0]), keys[0].peer, 1.0)
    assert machine.cast is None
    assert machine.view == 1


def test_the_same_few_may_go_on_in_a_later_view_when_another_one_calls() -> None:
    """The work is the same, so it is kept; whose turn it is to propose is not."""
    keys = identities(4)
    head, (one, other) = first_head(keys), keys[:2]
    by = {view: first_turn(head.table, SCOPE, view, [one.peer, other.peer]) for view in range(8, 60)}
    first = next(view for view in by if by[view] == one.peer)
    later = next(view for view in by if view > first and by[view] == other.peer)
    machine = stand_in(4)
    machine.start(0.0)
    machine._ctx.round.barren = 6
    machine.receive(shrink(first, [one, other], one), None, 1.0)
    machine.receive(shrink(later, [one, other], other), other.peer, 2.0)
    task = machine._ctx.round.task
    assert task is not None
    body, _ = outcome(head, task, later, SCOPE, 0)
    assert [each.kind for each in signs(machine.receive(statement(body, other), other.peer, 3.0))] == ["vote"]


# --- sizes -------------------------------------------------------------------------------------------


def test_what_a_full_table_commits_fits_into_readys() -> None:
    """96 voters and 40 that were away and are back: a ready that named all would be refused by everybody."""
    keys = [Identity.from_seed(number.to_bytes(32, "big")) for number in range(1, 137)]
    head = first_head(keys[:96])
    back = {each.peer: Member(each.peer, 1.0, AWAY, direct=True, admitted=NOWHERE, sealed=5) for each in keys[96:]}
    head = replace(head, table=Table({**head.table.members, **back}))
    machine = Machine(SCOPE, keys[0].peer, SETTING, head, first_state(VALUES))
    machine.start(0.0)
    for each in keys[1:]:
        machine.receive(statement(Commit(head.seal, NOWHERE, (), 0, direct=True), each), each.peer, 1.0)
    (ready,) = [body for body in signs(machine.tick(1000.0)) if isinstance(body, Ready)]
    assert 95 < len(ready.commits) <= 2 * MAX_CONTRIBUTORS
    assert SCOPE.decode(state(ready, keys[0]), sender="test").body == ready


def test_reducers_that_did_not_commit_take_the_nominal_time() -> None:
    """Where only members that were away commit, all voters reduce, and none has named its uplink."""
    assert reduce_time(Timing(), 10**9, 3, [], 10**6) == reduce_time(Timing(), 10**9, 3, [0], 10**6)


def test_a_chain_that_nobody_asked_for_is_not_read() -> None:
    """It may hold thousands of signatures."""
    machine = stand_in(4)
    machine.start(0.0)
    assert machine.payload(identities(4)[1].peer, "chain", b"?", 1.0) == []


def test_two_statements_of_one_print_are_not_passed_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever signs both can find such a pair: eight bytes take an hour."""
    monkeypatch.setattr(known, "PRINT_BYTES", 0)
    keys, machine = identities(4), stand_in(4)
    head = first_head(keys)
    machine.start(0.0)
    said = [statement(Commit(head.seal, NOWHERE, (), 0, direct=True), each) for each in keys[1:3]]
    floods = [each for one in said * 3 for each in machine.receive(one, one.peer, 1.0) if isinstance(each, Flood)]
    assert len(floods) == 1


# --- anything at all ---------------------------------------------------------------------------------


class Babble:
    """What a liar says: things it has seen, with other values in some places, properly signed, or bytes turned over."""

    def __init__(self, seed: int, who: Identity) -> None:
        self.draw, self.who = Random(seed), who
        self.hashes: list[bytes] = [first_head(identities(4)).seal, NOWHERE]
        self.peers = [each.peer for each in identities(6)]
        self.bodies: list[Body] = []
        self.frames: Frames = []

    def hear(self, kind: str, payload: bytes) -> None:
        """Remember."""
        if kind != "statement":
            self.frames = [*self.frames[-99:], (kind, payload)]
            return
        said = SCOPE.decode(payload, sender="test")
        values = [getattr(said.body, name) for name in said.body.checks]
        self.hashes = [*self.hashes[-200:], said.hash, *(each for each in values if type(each) is bytes and each)]
        self.bodies = [*self.bodies[-99:], said.body]

    def speak(self) -> Frames:
        """One frame, or nothing where what came out has no form."""
        chance = self.draw.random()
        if chance < 0.7 and self.bodies:
            try:
                return [("statement", state(self.bent(self.draw.choice(self.bodies)), self.who))]
            except (ValueError, OverflowError, TypeError):
                return []
        if chance < 0.9 and self.frames:
            kind, payload = self.draw.choice(self.frames)
            return [(kind, self.turned(payload))]
        return [("want", Want(Hash(self.draw.choice(self.hashes)), (0, 3, 5)).encode())]

    def bent(self, body: Any) -> Any:
        """Other values in one to three fields."""
        names = [field.name for field in fields(body)]
        chosen = self.draw.sample(names, min(len(names), self.draw.choice((1, 1, 2, 3))))
        return replace(body, **{name: self.value(getattr(body, name)) for name in chosen})

    def value(self, value: Any) -> Any:
        """Another one of its type."""
        draw = self.draw
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return max(0, draw.choice((value - 1, value + 1, draw.randrange(9), 1 << 20, FAR, 1 << 48)))
        if isinstance(value, float):
            return draw.choice((0.0, -0.0, 1.0, -1.0, 1e308, 5e-324, 2.0**190, value * (1 + 1e-9)))
        if isinstance(value, bytes):
            return draw.choice(self.hashes) if len(value) == 32 else draw.choice((b"", value[:-1], value + b"\0"))
        if isinstance(value, str):
            return draw.choice(self.peers)
        if isinstance(value, tuple):
            return self.several(list(value))
        return self.bent(value)

    def several(self, values: list[Any]) -> tuple[Any, ...]:
        """A list with one left out, twice, in another place, changed, or none."""
        place = self.draw.randrange(len(values)) if values else 0
        if not values:
            return (self.draw.choice(self.peers),)
        how = self.draw.randrange(5)
        if how == 0:
            del values[place]
        elif how == 1:
            values.append(values[place])
        elif how == 2:
            self.draw.shuffle(values)
        else:
            values[place] = self.value(values[place])
        return tuple(values)

    def turned(self, payload: bytes) -> bytes:
        """Some bytes changed, or the end cut off."""
        out = bytearray(payload)
        for _ in range(self.draw.choice((1, 2, 4))):
            if out:
                out[self.draw.randrange(len(out))] = self.draw.randrange(256)
        return bytes(out[: self.draw.randrange(len(out) + 1)] if self.draw.random() < 0.2 else out)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_one_of_four_says_nothing_breaks_and_nobody_else_is_blamed(seed: int) -> None:
    """Any error but RemoteError would end the run here, and the daemon there."""
    who = identities(4)[seed % 4]
    codecs: dict[str, Any] = {"update_codec": "int8", "result_codec": "int8", "rule": "default"} if seed % 2 else {}
    made, babble = world(4, 2, newcomers=seed % 3 == 2, **codecs), Babble(seed, who)
    liar = made.peers[who.peer]
    hears = liar.on_frame

    def on_frame(sender: PeerId, kind: str, payload: Any) -> None:
        babble.hear(kind, payload.encode() if isinstance(payload, Statement) else bytes(payload))
        hears(sender, kind, payload)

    def bend(_to: PeerId, kind: str, payload: bytes) -> Frames:
        babble.hear(kind, payload)
        own = [(kind, payload)] if babble.draw.random() < 0.9 else []
        return own + [frame for _ in range(3) for frame in babble.speak()]

    liar.on_frame = on_frame  # type: ignore[method-assign]
    lying(made, who.peer, bend)
    made.run(900.0)
    assert made.done, made.stand()
    refused = [(peer, sender, error) for peer, sender, error in made.refused if peer != who.peer]
    assert refused
    assert {sender for _, sender, error in refused if sender == error.peer} <= {who.peer}
    others = [peer for peer in made.peers.values() if peer is not liar]
    assert {each.peer for peer in others for each in peer.troubles if each.peer != peer.peer} <= {who.peer}
