"""Whom a newcomer believes: the manifest's founders or an invitation's seal, whatever its neighbours show."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from protocols.chain_payloads import AskChain, ChainReply, Link
from protocols.errors import RemoteError
from protocols.ids import Hash, digest, peer_id
from protocols.round import opinions
from protocols.round.dispatch import EARLY
from protocols.round.effects import Push
from protocols.round.links import Image
from protocols.round.machine import Machine
from protocols.state_payloads import WantState
from protocols.table import STANDING, Member, Table
from tests.protocols import chains
from tests.protocols.chains import FOUR, PEERS, child, grown, zero
from tests.swarm.town import (
    FOURTH,
    HONEST,
    LIAR,
    SETTING,
    SIX_SECONDS,
    STATE,
    THIRD,
    Town,
    fork_of,
    ideal,
    other_table,
    shown_final,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.round.chain import Head
    from tests.swarm.judge import IdealScope

SYBILS = sorted(peer_id(digest(b"sybil", number.to_bytes(2, "big"))) for number in range(200))


@pytest.fixture
def scope(monkeypatch: pytest.MonkeyPatch) -> IdealScope:
    return ideal(monkeypatch)


def crowd(size: int = len(SYBILS)) -> Table:
    """Free identities, each of them in standing."""
    return Table({each: Member(each, 1.0, STANDING, True, Hash(bytes(32)), 9) for each in SYBILS[:size]})


def sybil_chain(start: Head, length: int) -> list[Head]:
    """Seals that only free identities voted for; 96 votes fit into one."""
    heads = [start]
    for _ in range(length):
        heads.append(child(heads[-1], SYBILS[:96], table=crowd(96)))
    return heads[1:]


# --- free identities ---------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [0, 5])
def test_seals_of_free_identities_are_refused_whatever_their_number(scope: IdealScope, prefix: int) -> None:
    """200 keys and 500 seals of their own: on top of the manifest, and on top of a true early chain."""
    start = zero()
    true = grown(start, 20)
    forged = [*true[:prefix], *sybil_chain(([start, *true])[prefix], 500)]
    town = Town(scope, start)
    town.beside(LIAR, forged)
    town.run(2 * SIX_SECONDS)
    assert [error.peer for error in town.refused] == [LIAR]
    assert "strangers" in town.refused[0].text or "quorum" in town.refused[0].text
    assert town.me.head == start
    town.beside(HONEST, true)
    town.run(4 * SIX_SECONDS)
    assert town.me.head.seal == true[-1].seal


def test_a_jump_needs_weight_and_not_heads(scope: IdealScope) -> None:
    """Three of four voters are 2/3 by count; the fourth has most of the weight."""
    start = zero()
    rows = {each: Member(each, 10.0 if each == FOUR[3] else 1.0, STANDING, True, start.seal, 0) for each in FOUR}
    first = child(start, FOUR, table=Table(rows))
    rest = grown(first, 3, FOUR)
    forged = child(rest[-1], FOUR[:3], salt=b"forged")
    town = Town(scope, start)
    town.beside(LIAR, [first, *rest, forged])
    town.run(2 * SIX_SECONDS)
    assert "lacks a quorum" in town.refused[0].text
    assert town.me.head == start


def bent(change: Callable[[Link], Link]) -> Callable[[bytes], bytes]:
    """What a liar makes of the last link of each reply."""

    def bend(raw: bytes) -> bytes:
        reply = ChainReply.decode(raw, chains.SCOPE, sender="test")
        return replace(reply, links=(*reply.links[:-1], change(reply.links[-1]))).encode() if reply.links else raw

    return bend


def fewer_votes(link: Link) -> Link:
    return replace(link, votes=link.votes[:2])


@pytest.mark.parametrize(("change", "words"), [(other_table, "another table"), (fewer_votes, "lacks a quorum")])
def test_a_liar_among_three_costs_itself_only(scope: IdealScope, change: Callable[[Link], Link], words: str) -> None:
    start = zero()
    true = grown(start, 12)
    town = Town(scope, start)
    town.beside(LIAR, true, bend=bent(change))
    town.beside(HONEST, true)
    town.beside(THIRD, true)
    town.run(3 * SIX_SECONDS)
    assert town.me.head.seal == true[-1].seal
    assert [(error.peer, words in error.text) for error in town.refused] == [(LIAR, True)]


def test_a_shrink_seal_shown_without_its_parent_is_refused(scope: IdealScope) -> None:
    start = zero()
    true = grown(start, 3)
    alone = child(true[-1], FOUR[:1], lost=tuple(FOUR[1:]))
    town = Town(scope, start)

    def jump(raw: bytes) -> bytes:
        reply = ChainReply.decode(raw, chains.SCOPE, sender="test")
        return replace(reply, links=reply.links[-1:]).encode()

    town.beside(LIAR, [*true, alone], bend=jump)
    town.run(2 * SIX_SECONDS)
    assert "its parent is not shown" in town.refused[0].text


# --- several opinions --------------------------------------------------------------------------------


def test_an_old_true_chain_loses_against_its_continuation(scope: IdealScope) -> None:
    """Shown by jumps the two have no seal in common but the first, and both show a final one."""
    start = zero()
    true = grown(start, 300)
    town = Town(scope, start)
    town.beside(LIAR, true[:150], shown_final(true[148]))
    town.beside(HONEST, true, shown_final(true[298]))
    town.run(3 * SIX_SECONDS)
    assert town.me.head.seal == true[-1].seal
    assert not town.histories, "no person was asked"
    assert town.sealed[0].record.round > 150, "the old state was not even loaded"


@pytest.mark.parametrize("lie", ["silent", "nothing", "garbage", "huge", "old"])
def test_all_but_one_of_the_neighbours_are_the_attackers(scope: IdealScope, lie: str) -> None:
    start = zero()
    true = grown(start, 40)

    def bend(raw: bytes) -> bytes | None:
        if lie == "silent":
            return None
        if lie == "old":
            return raw
        if lie == "nothing":
            return ChainReply(None, ()).encode()
        return raw[:100] if lie == "garbage" else raw[:40] + (1 << 31).to_bytes(4, "little") + bytes(1 << 20)

    town = Town(scope, start)
    for peer in (LIAR, THIRD, FOURTH, *PEERS[14:18]):
        town.beside(peer, true[:20] if lie == "old" else true, bend=bend)
    town.beside(HONEST, true)
    town.run(90.0)
    assert town.me.head.seal == true[-1].seal
    assert {error.peer for error in town.refused} <= {LIAR, THIRD, FOURTH, *PEERS[14:18]}


def test_nobody_is_asked_again_before_everybody_was(scope: IdealScope) -> None:
    """Forty silent neighbours, three at a time; whoever was asked in vain may be asked again after 30 s."""
    start = zero()
    true = grown(start, 10)
    town = Town(scope, start)
    for peer in SYBILS[:40]:
        town.beside(peer, true, bend=lambda raw: None)
    town.beside(HONEST, true)
    town.run(200.0)
    assert town.me.head.seal in {true[7].seal, true[9].seal}, "the head, or the seal whose state everybody keeps"


def test_the_slower_ones_are_waited_for_ten_seconds(scope: IdealScope) -> None:
    start = zero()
    true = grown(start, 30)
    town = Town(scope, start)
    town.beside(LIAR, true[:20])
    town.beside(HONEST, true, bend=lambda raw: None)
    town.run(8.0)
    assert town.me.head == start, "somebody has not answered yet"
    town.run(8.0)
    assert town.me.head.round >= 16, "and does not answer"


def test_a_chain_without_end_costs_its_sender_only(scope: IdealScope, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opinions, "LONGEST", 40)
    start = zero()
    tables = [Table({each: Member(each, 1.0, STANDING, True, start.seal, n) for each in FOUR}) for n in range(200)]
    heads = [child(start, FOUR[:1], lost=tuple(FOUR[1:]))]
    for table in tables:
        heads.append(child(heads[-1], FOUR[:1], table=replace(table, members={FOUR[0]: table.members[FOUR[0]]})))

    def endless(raw: bytes) -> bytes:
        reply = ChainReply.decode(raw, chains.SCOPE, sender="test")
        at = next((place for place, each in enumerate([start, *heads]) if each.seal == reply.start), 0)
        some = tuple(Link(each.proposal, each.votes, each.table) for each in heads[at : at + 16] if each.proposal)
        return ChainReply(reply.start, some, more=True).encode()

    town = Town(scope, start)
    town.beside(LIAR, heads, bend=endless)
    town.run(30.0)
    assert "more than 40 seals" in town.refused[0].text
    assert not town.me._ctx.trust.opinions, "nothing of it is held"


def test_a_chain_whose_state_nobody_serves_makes_room_for_the_next_best(
    scope: IdealScope, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = zero()
    true = grown(start, 10)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(chains, "ZERO", Hash(b"x" * 32))
        unserved = fork_of(true[6], 6)
    town = Town(scope, start)
    town.beside(LIAR, [*true[:7], *unserved])
    town.beside(HONEST, true)
    town.run(20.0)
    assert town.me.head == start
    assert town.me._ctx.trust.chosen == unserved[-1].seal, "the longer one"
    town.run(40.0)
    assert town.me.head.seal == true[-1].seal


# --- questions that come before there is a stream for the answer --------------------------------------


def test_whoever_asks_before_a_stream_to_it_is_open_is_answered_once_it_is(scope: IdealScope) -> None:
    """Each end opens a stream of its own: the first question of a newcomer comes before the donor's is open."""
    start = zero()
    true = grown(start, 12)
    donor = Machine(scope, HONEST, SETTING, true[-1], STATE, past=Image((start, *true), ()))
    donor.start(0.0)
    asked = AskChain((start.seal,)).encode()
    assert not donor.payload(LIAR, "ask-chain", asked, 0.0), "it would be lost"
    answers = [each for each in donor.welcome(LIAR, 0.5) if isinstance(each, Push) and each.kind == "chain"]
    assert [each.to for each in answers] == [LIAR]
    assert ChainReply.decode(b"".join(answers[0].payload), scope, sender="test").links[-1].proposal == true[-1].proposal
    donor.left(LIAR, 1.0)
    assert not [each for each in donor.welcome(LIAR, 2.0) if isinstance(each, Push) and each.kind == "chain"], "once"


def test_questions_that_wait_for_a_stream_are_checked_and_bounded(scope: IdealScope) -> None:
    start = zero()
    donor = Machine(scope, HONEST, SETTING, start, STATE)
    donor.start(0.0)
    with pytest.raises(RemoteError, match="malformed want-state"):
        donor.payload(LIAR, "want-state", b"garbage", 0.0)
    for peer in SYBILS:
        donor.payload(peer, "want-state", WantState(start.seal, (0,)).encode(), 0.0)
    assert list(donor._ctx.talk.early) == SYBILS[-EARLY:], "the newest ones"
