"""Whom a newcomer believes: the manifest's founders or an invitation's seal, whatever its neighbours show."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from protocols.chain_payloads import ChainReply, Link, read_link
from protocols.errors import LocalError
from protocols.ids import Hash, digest, peer_id
from protocols.round import opinions
from protocols.round.links import Image
from protocols.table import STANDING, Member, Table
from tests.protocols import chains
from tests.protocols.chains import FOUR, PEERS, child, grown, readys, zero
from tests.swarm.town import Town, ideal

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.ids import PeerId
    from protocols.round.chain import Head
    from protocols.statements import Statement
    from tests.swarm.judge import IdealScope

HONEST, LIAR, THIRD, FOURTH = PEERS[10:14]
SYBILS = sorted(peer_id(digest(b"sybil", number.to_bytes(2, "big"))) for number in range(200))
SIX_SECONDS = 6.0
"""A stranger is asked for its chain after four."""


@pytest.fixture
def scope(monkeypatch: pytest.MonkeyPatch) -> IdealScope:
    return ideal(monkeypatch)


def shown_final(head: Head, voters: list[PeerId] = FOUR) -> tuple[Hash, tuple[Statement, ...]]:
    return head.seal, readys(head, voters)


def crowd(size: int = len(SYBILS)) -> Table:
    """Free identities, each of them in standing."""
    return Table({each: Member(each, 1.0, STANDING, True, Hash(bytes(32)), 9) for each in SYBILS[:size]})


def sybil_chain(start: Head, length: int) -> list[Head]:
    """Seals that only free identities voted for; 96 votes fit into one."""
    heads = [start]
    for _ in range(length):
        heads.append(child(heads[-1], SYBILS[:96], table=crowd(96)))
    return heads[1:]


def fork_of(start: Head, length: int, salt: bytes = b"fork", voters: list[PeerId] = FOUR) -> list[Head]:
    return grown(start, length, voters, salt)


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


def other_table(link: Link) -> Link:
    return replace(link, table=link.table.without(FOUR[:1]))


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


@pytest.mark.parametrize("lie", ["silent", "nothing", "garbage", "huge"])
def test_all_but_one_of_the_neighbours_are_the_attackers(scope: IdealScope, lie: str) -> None:
    start = zero()
    true = grown(start, 40)

    def bend(raw: bytes) -> bytes | None:
        if lie == "silent":
            return None
        if lie == "nothing":
            return ChainReply(None, ()).encode()
        return raw[:100] if lie == "garbage" else raw[:40] + (1 << 31).to_bytes(4, "little") + bytes(1 << 20)

    town = Town(scope, start)
    for peer in (LIAR, THIRD, FOURTH, *PEERS[14:18]):
        town.beside(peer, true, bend=bend)
    town.beside(HONEST, true)
    town.run(90.0)
    assert town.me.head.seal == true[-1].seal
    assert {error.peer for error in town.refused} <= {LIAR, THIRD, FOURTH, *PEERS[14:18]}


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


# --- anchors -----------------------------------------------------------------------------------------


def test_with_an_invitation_the_chain_begins_at_its_seal(scope: IdealScope) -> None:
    start = zero()
    true = grown(start, 40)
    town = Town(scope, start, anchor=(true[23].seal, 24))
    assert not town.trained, "nothing is made of seal 0"
    town.beside(HONEST, true, shown_final(true[38]))
    town.run(SIX_SECONDS)
    assert town.me.head.seal == true[-1].seal
    assert town.me.chain.heads[0].seal == true[23].seal
    assert town.me._ctx.chain.final is not None
    assert town.me.anchor == (true[31].seal, 32), "the newest milestone that is final"


def test_whoever_knows_the_old_founders_keys_is_refused_with_an_invitation(scope: IdealScope) -> None:
    """They were everybody once, and sold their keys: a history of its own from round 4 on, final and firm."""
    start = zero()
    true = grown(start, 40)
    sold = [*true[:4], *fork_of(true[3], 90)]
    town = Town(scope, start, anchor=(true[23].seal, 24))
    town.beside(LIAR, sold, shown_final(sold[-2]))
    town.run(3 * SIX_SECONDS)
    assert town.me.head == start
    assert "nobody here can show seal" in town.notices[0].text
    assert "newer invitation" in town.notices[0].remedy
    assert not town.trained
    town.beside(HONEST, true, shown_final(true[38]))
    town.run(SIX_SECONDS)
    assert town.me.head.seal == true[-1].seal
    assert town.notices[-1].text == "", "the warning is over"


def test_without_an_invitation_both_histories_are_shown_and_nothing_is_trained(scope: IdealScope) -> None:
    start = zero()
    true = grown(start, 40)
    sold = [*true[:4], *fork_of(true[3], 90)]
    town = Town(scope, start)
    town.beside(LIAR, sold, shown_final(sold[-2]))
    town.beside(HONEST, true, shown_final(true[-2]))
    town.trained.clear()
    town.run(3 * SIX_SECONDS)
    assert town.me.head == start
    assert not town.trained
    shown = town.histories[-1].branches
    assert {(each.head, each.round) for each in shown} == {(sold[-1].seal, 94), (true[-1].seal, 40)}
    assert all(each.weight == 1.0 and not each.own for each in shown)
    with pytest.raises(LocalError, match="none of the histories shown"):
        town.follow(true[20].seal)
    town.follow(true[-1].seal)
    assert [each.seal for each in town.followed] == [true[-1].seal]
    assert town.histories[-1].branches == ()
    more = [*true, *grown(true[-1], 2)]
    town.leave(HONEST)
    town.beside(HONEST, more)
    town.run(8 * SIX_SECONDS)
    assert town.me.head.seal == more[-1].seal


def shown_anchor(change: Callable[[Link], Link]) -> Callable[[bytes], bytes]:
    """What a liar makes of an invitation's seal."""

    def bend(raw: bytes) -> bytes:
        reply = ChainReply.decode(raw, chains.SCOPE, sender="test")
        link = read_link(reply.anchor, chains.SCOPE, sender="test")
        return replace(reply, anchor=change(link).encode()).encode()

    return bend


def test_a_seal_that_is_not_the_invitations_is_refused(scope: IdealScope) -> None:
    start = zero()
    true = grown(start, 20)
    anchor = (true[7].seal, 8)
    assert true[8].proposal

    def other(link: Link) -> Link:
        assert true[8].proposal
        return replace(link, proposal=true[8].proposal)

    for change, words in ((other_table, "with another table"), (other, "shows something else")):
        town = Town(scope, start, anchor=anchor)
        town.beside(LIAR, true, bend=shown_anchor(change))
        town.run(SIX_SECONDS)
        assert words in town.refused[0].text
        assert town.me.head == start


def test_an_invitation_stays_good_for_512_rounds_and_some_for_4096(scope: IdealScope) -> None:
    start = zero()
    true = grown(start, 1200)
    for number, good in ((1200 - 400, True), (1200 - 520, False), (640, True), (1200 - 401, False)):
        town = Town(scope, start, anchor=(true[number - 1].seal, number))
        town.beside(HONEST, true)
        town.run(SIX_SECONDS)
        assert (town.me.head.seal == true[-1].seal) == good, number


# --- members -----------------------------------------------------------------------------------------


def test_a_member_stays_on_its_own_history_and_says_that_there_is_another(scope: IdealScope) -> None:
    start = zero()
    ours, theirs = grown(start, 10), fork_of(start, 12)
    past = Image((start, *ours), (), *shown_final(ours[7]))
    town = Town(scope, start, head=ours[-1], past=past)
    town.beside(LIAR, theirs, shown_final(theirs[9]))
    town.run(30.0)
    assert town.me.head.seal == ours[-1].seal
    own, other = town.histories[-1].branches
    assert (own.head, own.own, own.fork, own.since) == (ours[-1].seal, True, start.seal, 0)
    assert (other.head, other.own, other.round) == (theirs[-1].seal, False, 12)
    town.follow(theirs[-1].seal)
    more = [*theirs, *grown(theirs[-1], 2, salt=b"fork")]
    town.leave(LIAR)
    town.beside(LIAR, more, shown_final(more[-2]))
    town.run(60.0)
    assert town.me.head.seal == more[-1].seal, "against its own final seal"
    town.leave(LIAR)
    town.beside(HONEST, ours, shown_final(ours[7]))
    town.run(60.0)
    assert town.me.head.seal == more[-1].seal, "and it does not go back"


def test_the_choice_outlives_a_restart(scope: IdealScope) -> None:
    start = zero()
    ours, theirs = grown(start, 10), fork_of(start, 12)
    past = Image((start, *ours), (), *shown_final(ours[7]))
    chosen = replace(theirs[8], votes=(), parent_table=None)
    town = Town(scope, start, head=ours[-1], past=past, followed=chosen)
    town.beside(HONEST, ours)
    town.beside(LIAR, theirs, shown_final(theirs[9]))
    town.run(30.0)
    assert town.me.head.seal == theirs[-1].seal
    again = Town(scope, start, head=theirs[-1], past=town.me.chain, followed=chosen)
    assert again.me._ctx.trust.anchor is None, "it is there already"


def test_one_that_is_only_ahead_is_no_other_history(scope: IdealScope) -> None:
    """A liar denies what it knows: its own jumps lead over this peer's final seal."""
    start = zero()
    true = grown(start, 200)
    past = Image((start, *true[:10]), (), *shown_final(true[7]))
    town = Town(scope, start, head=true[9], past=past)

    def denies(raw: bytes) -> bytes:
        reply = ChainReply.decode(raw, chains.SCOPE, sender="test")
        return replace(reply, start=start.seal, links=reply.links[-2:]).encode()

    town.beside(LIAR, true, shown_final(true[198]), bend=denies)
    town.run(40.0)
    assert not any(each.branches for each in town.histories)


# --- serving others ----------------------------------------------------------------------------------


def test_who_came_by_an_invitation_fills_in_what_lies_below_and_serves_newcomers(scope: IdealScope) -> None:
    start = zero()
    true = grown(start, 200)
    town = Town(scope, start, anchor=(true[159].seal, 160))
    town.beside(HONEST, true, shown_final(true[198]))
    town.run(SIX_SECONDS)
    assert town.me.chain.heads[0].seal == true[159].seal
    town.run(60.0)
    assert town.me.chain.heads[0].seal == start.seal
    other = Town(scope, start)
    other.beside(THIRD, town.me.chain.heads[1:])
    other.run(2 * SIX_SECONDS)
    assert other.me.head.seal == true[-1].seal
    assert not other.refused
