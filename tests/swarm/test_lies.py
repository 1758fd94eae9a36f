"""One of four lies in place of what it should say: it is the one named, and the round goes on without its word."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from protocols import merkle
from protocols.compression import get_codec
from protocols.ids import Hash, PeerId, digest
from protocols.messages import (
    Commit,
    Contribution,
    Freeze,
    Gram,
    Ready,
    Result,
    Seal,
    Vote,
)
from protocols.payloads import Piece, Pieces
from protocols.round.exchange import part_sizes
from protocols.turns import coordinator
from tests.swarm.crowd import (
    PART,
    SCOPE,
    VALUES,
    Outcome,
    first_head,
    identities,
    lying,
    run,
    signed_kinds,
    state,
    until,
    world,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from peer.identity import Identity
    from protocols.messages import Body
    from protocols.round.effects import Record

SIZES = part_sizes(get_codec("float32"), VALUES, PART)
LOST = Hash(b"?" * 32)
STRANGER = identities(9)[-1].peer
EVERYBODY = tuple(each.peer for each in identities(4))


@cache
def honest() -> Outcome:
    """The round as it is without a liar."""
    return run(4)


@cache
def liar(role: str) -> Identity:
    """The coordinator of view 1, or another peer that owns parts."""
    record = honest().peers[0].sealed[0].record
    owning = [each for each in identities(4) if each.peer in record.owners and each.peer != record.coordinator]
    return owning[0] if role == "reducer" else next(e for e in identities(4) if e.peer == record.coordinator)


def lie(role: str, change: Callable[[Any], Body | None]) -> Outcome:
    """A run in which the liar's statements are replaced by what ``change`` makes of them (None: left as they are)."""
    who = liar(role)

    def bend(_to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        statement = SCOPE.decode(payload, sender="test") if kind == "statement" else None
        if statement is None or statement.peer != who.peer:
            return None
        changed = change(statement.body)
        return None if changed is None else [(kind, state(changed, who))]

    return run(4, bend=(who.peer, bend))


def others(outcome: Outcome, role: str) -> list[Any]:
    return [peer for peer in outcome.peers if peer.peer != liar(role).peer]


def named(outcome: Outcome, role: str) -> set[str]:
    """What honest peers say; they must say it of the liar alone, and hang up on nobody else."""
    who = liar(role).peer
    honest_ones = {peer.peer for peer in others(outcome, role)}
    refused = [each for each in outcome.world.refused if each[0] in honest_ones]
    assert {(sender, error.peer) for _, sender, error in refused} <= {(who, who)}
    assert {peer for peer, _ in outcome.troubles(but=who)} <= {who}
    return {error.text for _, _, error in refused} | {text for _, text in outcome.troubles(but=who)}


def recovers(outcome: Outcome, role: str, words: str, *, view: int) -> Record:
    """All that was said contains ``words``, and every honest peer sealed everybody's update in ``view``."""
    texts = named(outcome, role)
    assert bool(texts) == bool(words)
    assert all(words in text for text in texts), texts
    seals = {tuple(each.head.seal for each in peer.sealed) for peer in others(outcome, role)}
    assert len(seals) == 1 and len(*seals) == 1
    record: Record = others(outcome, role)[0].sealed[0].record
    assert not record.void and record.view == view
    assert len(record.contributors) == 4, "the work of an earlier view is kept"
    return record


# --- Grams -----------------------------------------------------------------------------------------


def _gram(change: Callable[[Gram], Gram]) -> Callable[[Body], Body | None]:
    return lambda body: change(body) if isinstance(body, Gram) else None


def _entry(gram: Gram, place: int, value: float) -> Gram:
    return replace(gram, gram=(*gram.gram[:place], value, *gram.gram[place + 1 :]))


def _bound(gram: Gram) -> float:
    """Of the entry of rows 0 and 1."""
    return float((gram.gram[0] * gram.gram[4]) ** 0.5)


GRAMS: dict[str, tuple[str, Callable[[Gram], Gram]]] = {
    "a negative norm": ("no vectors", lambda gram: _entry(gram, 0, -1.0)),
    "closer than the same": ("no vectors", lambda gram: _entry(gram, 1, _bound(gram) * 1.001)),
    "further than opposite": ("no vectors", lambda gram: _entry(gram, 1, -_bound(gram) * 1.001)),
    "beyond any update": ("no vectors", lambda gram: _entry(gram, 0, 2.0**190)),
    "beyond all doubles when summed": ("no vectors", lambda gram: _entry(gram, 0, 1.7e308)),
    "a row too few": ("6 numbers for 4", lambda gram: replace(gram, gram=gram.gram[:6])),
    "a row too many": ("15 numbers for 4", lambda gram: replace(gram, gram=gram.gram + (0.0,) * 5)),
    "no numbers": ("0 numbers for 4", lambda gram: replace(gram, gram=())),
    "no bitmap": ("bitmap", lambda gram: replace(gram, have=b"")),
    "a longer bitmap": ("bitmap", lambda gram: replace(gram, have=gram.have + b"\x00")),
    "nobody was there": ("has nothing of", lambda gram: replace(gram, have=bytes(len(gram.have)))),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAMS)
def test_a_gram_that_no_honest_reducer_sends_is_refused(name: str) -> None:
    """Also those that would make the rule fail on every machine. Its parts go to others within the same view."""
    words, change = GRAMS[name]
    record = recovers(lie("reducer", _gram(change)), "reducer", words, view=1)
    assert liar("reducer").peer not in record.owners
    assert record.reason == "without 1 reducers that did not serve"


def test_a_reducer_that_calls_nobody_present_is_put_out() -> None:
    """A Gram that fits together, and denies everybody's parts."""
    empty = _gram(lambda gram: replace(gram, have=bytes(len(gram.have)), gram=(0.0,) * len(gram.gram)))
    record = recovers(lie("reducer", empty), "reducer", "", view=1)
    assert liar("reducer").peer not in record.owners


# --- freezes ---------------------------------------------------------------------------------------

FREEZES: dict[str, tuple[str | None, Callable[[Freeze], Freeze]]] = {
    "a gram missing": ("other than one gram", lambda freeze: replace(freeze, grams=freeze.grams[:-1])),
    "no grams": ("other than one gram", lambda freeze: replace(freeze, grams=())),
    "a gram twice": ("other than one gram", lambda freeze: replace(freeze, grams=freeze.grams[:1] + freeze.grams)),
    "another order": ("other than one gram", lambda freeze: replace(freeze, grams=freeze.grams[::-1])),
    "another roster": (None, lambda freeze: replace(freeze, roster=LOST)),
    "a foreign gram": (None, lambda freeze: replace(freeze, grams=(LOST, *freeze.grams[1:]))),
    "a later view": ("out of turn", lambda freeze: replace(freeze, view=freeze.view + 1)),
    "nobody left to reduce": ("without reducers", lambda freeze: replace(freeze, out=EVERYBODY)),
    "a stranger put out": ("put one out that there is not", lambda freeze: replace(freeze, out=(STRANGER,))),
    "one put out twice": ("put one out that there is not", lambda freeze: replace(freeze, out=EVERYBODY[:1] * 2)),
}


@pytest.mark.parametrize("name", FREEZES)
def test_a_freeze_of_anything_but_one_gram_of_each_reducer_is_refused(name: str) -> None:
    """One that may only be early (None) waits without a word. The next coordinator freezes the same Grams."""
    words, change = FREEZES[name]
    outcome = lie("coordinator", lambda body: change(body) if isinstance(body, Freeze) else None)
    record = recovers(outcome, "coordinator", words or "", view=2)
    assert record.owners == honest().peers[0].sealed[0].record.owners


# --- results ---------------------------------------------------------------------------------------


def test_results_that_are_not_what_was_signed_are_refused() -> None:
    outcome = lie("reducer", lambda body: replace(body, root=LOST) if isinstance(body, Result) else None)
    record = recovers(outcome, "reducer", "is not what", view=1)
    assert liar("reducer").peer not in record.owners


@pytest.mark.parametrize(("value", "words"), [(np.nan, "not finite"), (np.inf, "not finite"), (2.0**100, "larger")])
def test_results_that_would_spoil_the_state_are_refused(value: float, words: str) -> None:
    """Properly signed; applied, they would leave the finite numbers on every machine at once."""
    who = liar("reducer")
    signed: dict[Hash, merkle.Tree] = {}

    def bend(_to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        if kind == "results":
            frame = Pieces.decode(payload, SIZES, sender="test")
            if frame.maker != who.peer:
                return None
            tree = signed[frame.core]
            pieces = [
                Piece(each.index, _bad(each.index, value), tree.path(place)) for place, each in enumerate(frame.pieces)
            ]
            return [(kind, b"".join(bytes(each) for each in Pieces(frame.core, who.peer, tuple(pieces)).encode()))]
        statement = SCOPE.decode(payload, sender="test") if kind == "statement" else None
        if statement is None or statement.peer != who.peer or not isinstance(statement.body, Result):
            return None
        owners = honest().peers[0].sealed[0].record.owners
        owned = [index for index, owner in enumerate(owners) if owner == who.peer]
        core = statement.body.freeze
        leaves = [merkle.result_leaf(core, index, digest(_bad(index, value))) for index in owned]
        signed[core] = merkle.Tree(leaves)
        return [(kind, state(Result(core, (), signed[core].root), who))]

    record = recovers(run(4, bend=(who.peer, bend)), "reducer", words, view=1)
    assert liar("reducer").peer not in record.owners


def _bad(index: int, value: float) -> bytes:
    return np.full(SIZES[index] // 4, value, dtype="<f4").tobytes()


def test_results_of_who_reduces_nothing_are_refused() -> None:
    """There is one part and one owner; the others' results are lies."""
    clean = run(4, values=PART)
    owner = clean.peers[0].sealed[0].record.owners[0]
    who = next(each for each in identities(4) if each.peer != owner)

    def bend(_to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        body = SCOPE.decode(payload, sender="test").body if kind == "statement" else None
        if isinstance(body, Gram):
            return [(kind, payload), (kind, state(body, who))]
        return [(kind, payload), (kind, state(body, who))] if isinstance(body, Result) else None

    outcome = run(4, values=PART, bend=(who.peer, bend))
    assert outcome.chains() == clean.chains()
    assert outcome.hung_up() == {(who.peer, who.peer)}
    assert {text for _, text in outcome.refusals()} == {"gram from a peer that reduces nothing"}


# --- seals and votes -------------------------------------------------------------------------------


def _seal_changes(seal: Seal) -> dict[str, Any]:
    line = seal.contributions[0]
    return {
        "round": seal.round + 1,
        "roster": LOST,
        "freeze": LOST,
        "grams": seal.grams[::-1],
        "contributions": (replace(line, weight=line.weight * (1 + 2**-52)), *seal.contributions[1:]),
        "results": seal.results[::-1],
        "out": seal.out + (seal.contributions[0].peer,),
        "lost": (seal.contributions[0].peer,),
        "table": LOST,
        "state": LOST,
    }


@pytest.mark.parametrize("name", [field.name for field in fields(Seal) if field.name not in {"view", "parent"}])
def test_a_seal_with_any_field_changed_gets_no_vote(name: str) -> None:
    def change(body: Body) -> Body | None:
        return replace(body, **{name: _seal_changes(body)[name]}) if isinstance(body, Seal) else None

    outcome = lie("coordinator", change)
    recovers(outcome, "coordinator", f"proposes a seal that differs in {name}", view=2)
    assert outcome.world.clock.now < 60, "who proposes nothing better has the time of a certificate, no more"
    for peer in others(outcome, "coordinator"):
        assert len(peer.troubles) == 1
        assert "vote" not in signed_kinds(peer, 1)
        assert "vote" in signed_kinds(peer, 2)


@pytest.mark.parametrize(
    ("changes", "words"), [({"parent": LOST}, ""), ({"view": 2}, "proposed a seal for view 2 out of turn")]
)
def test_a_seal_for_another_place_gets_no_vote(changes: dict[str, Any], words: str) -> None:
    outcome = lie("coordinator", lambda body: replace(body, **changes) if isinstance(body, Seal) else None)
    recovers(outcome, "coordinator", words, view=2)


@pytest.mark.parametrize(
    "change",
    [
        lambda line: replace(line, tokens=line.tokens + 1),
        lambda line: replace(line, parts=line.parts - 1),
        lambda line: replace(line, commit=LOST),
        lambda line: replace(line, peer=identities(9)[-1].peer),
    ],
)
def test_a_contributors_line_is_recomputed_too(change: Callable[[Contribution], Contribution]) -> None:
    def bent(body: Body) -> Body | None:
        if not isinstance(body, Seal):
            return None
        return replace(body, contributions=(change(body.contributions[0]), *body.contributions[1:]))

    recovers(lie("coordinator", bent), "coordinator", "proposes a seal that differs in contributions", view=2)


def test_a_zero_with_a_sign_is_another_seal() -> None:
    """-0.0 == 0.0, but it hashes to another name, which nobody who voted for it could adopt."""
    who, newcomers = liar("coordinator"), 1

    def bend(_to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        statement = SCOPE.decode(payload, sender="test") if kind == "statement" else None
        if statement is None or not isinstance(statement.body, Seal) or statement.peer != who.peer:
            return None
        lines = statement.body.contributions
        assert sum(line.weight == 0.0 for line in lines) == 1
        turned = tuple(replace(line, weight=-0.0) if line.weight == 0.0 else line for line in lines)
        return [(kind, state(replace(statement.body, contributions=turned), who))]

    outcome = run(4, newcomers=newcomers, bend=(who.peer, bend))
    shown = {(peer, text) for peer, text in outcome.troubles(but=who.peer)}
    assert shown == {(who.peer, "proposes a seal that differs in contributions")}
    assert not any("vote" in signed_kinds(peer, 1) for peer in others(outcome, "coordinator"))


@pytest.mark.parametrize("role", ["reducer", "coordinator"])
def test_a_vote_for_another_seal_counts_for_nothing(role: str) -> None:
    outcome = lie(role, lambda body: Vote(body.view, LOST) if isinstance(body, Vote) else None)
    assert named(outcome, role) == set()
    for peer in others(outcome, role):
        assert [each.head.seal for each in peer.sealed] == honest().chains()[0]
        assert liar(role).peer not in {vote.peer for vote in peer.machine.head.votes}


def test_two_votes_of_four_are_no_quorum() -> None:
    """The silent two know their own vote as well, which makes three; the others give the view up."""
    silent = {each.peer for each in identities(2)}

    def bend(_to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        statement = SCOPE.decode(payload, sender="test") if kind == "statement" else None
        return [] if statement and isinstance(statement.body, Vote) and statement.peer in silent else None

    made = world(4)
    lying(made, None, bend)
    made.begin()
    until(made, lambda: sum(bool(peer.sealed) for peer in made.peers.values()) == 2)
    until(made, lambda: any(peer.machine.view == 2 for peer in made.peers.values() if peer.peer not in silent))
    assert {peer.peer for peer in made.peers.values() if peer.sealed} == silent


# --- commits and readys that would make an honest coordinator look like a liar ----------------------


class TwoCommits:
    """Frames of a liar whose second commit goes to one peer in place of the first, and whose ready names both."""

    def __init__(self, founders: int, to: int) -> None:
        self.who, self.head = liar("reducer"), first_head(identities(founders))
        rest = [each.peer for each in identities(founders) if each.peer not in (self.who.peer, self.turn())]
        self.fooled = set(rest[:to])
        self.other = Commit(self.head.seal, LOST, (), 0, True)

    def turn(self) -> PeerId:
        """Who coordinates view 1."""
        return coordinator(self.head.table, SCOPE, 1)

    def __call__(self, to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        statement = SCOPE.decode(payload, sender="test") if kind == "statement" else None
        if statement is None or statement.peer != self.who.peer:
            return None
        body = statement.body
        if isinstance(body, Commit) and to in self.fooled:
            return [(kind, state(self.other, self.who))]
        if isinstance(body, Ready):
            seen = {*body.commits, SCOPE.state(self.who.peer, self.other, self.who.sign).hash}
            return [(kind, state(replace(body, commits=tuple(sorted(seen))), self.who))]
        return None


@pytest.mark.parametrize(("count", "fooled"), [(4, 1), (7, 3)])
def test_who_signs_two_commits_takes_no_part_and_stops_nobody(count: int, fooled: int) -> None:
    """Each commit may be seen by a third, and no roster can have both as rows: it names both as proof."""
    bend = TwoCommits(count, fooled)
    outcome = run(count, bend=(bend.who.peer, bend))
    assert not outcome.refusals(), "nobody hangs up on the coordinator"
    assert set(outcome.troubles(but=bend.who.peer)) == {(bend.who.peer, "signed two commits for one slot")}
    honest_ones = [peer for peer in outcome.peers if peer is not outcome.world.peers[bend.who.peer]]
    for peer in honest_ones:
        assert [(each.record.view, each.record.void) for each in peer.sealed] == [(1, False)]
        assert set(peer.sealed[0].record.contributors) == {each.peer for each in honest_ones}
