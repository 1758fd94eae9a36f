"""The seal of an invitation, several histories of one run, and what a peer that came by an invitation serves others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from protocols.chain_payloads import ChainReply, Link, read_link
from protocols.errors import LocalError
from protocols.round.links import Image
from tests.protocols import chains
from tests.protocols.chains import FOUR, grown, zero
from tests.swarm.town import HONEST, LIAR, SIX_SECONDS, THIRD, Town, fork_of, ideal, other_table, shown_final

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.swarm.judge import IdealScope


@pytest.fixture
def scope(monkeypatch: pytest.MonkeyPatch) -> IdealScope:
    return ideal(monkeypatch)


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
    assert not town.notices, "another one may come"
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
    more = [*true, *grown(true[-1], 2)]
    town.leave(HONEST)
    town.beside(HONEST, more)
    town.run(8 * SIX_SECONDS)
    assert town.me.head.seal == more[-1].seal
    assert town.histories[-1].branches == ()


def test_a_founder_without_its_disk_signs_nothing_before_the_invitations_seal(scope: IdealScope) -> None:
    """It stands at seal 0, and might have signed anything since."""
    start = zero()
    true = grown(start, 20)
    town = Town(scope, start, me=FOUR[0], anchor=(true[7].seal, 8))
    town.beside(LIAR, true[:4])
    town.run(800.0)
    assert not town.trained
    assert town.me.held
    town.beside(HONEST, true)
    town.run(SIX_SECONDS)
    assert town.me.head.round >= 16
    assert town.trained and not town.me.held


def test_a_history_can_be_chosen_that_has_gone_on_meanwhile(scope: IdealScope) -> None:
    start = zero()
    true, sold = grown(start, 20), fork_of(start, 30)
    town = Town(scope, start)
    town.beside(LIAR, sold, shown_final(sold[-2]))
    town.beside(HONEST, true, shown_final(true[-2]))
    town.run(2 * SIX_SECONDS)
    seen = next(each.head for each in town.histories[-1].branches if each.round == 20)
    more = [*true, *grown(true[-1], 5)]
    town.leave(HONEST)
    town.beside(HONEST, more, shown_final(more[-2]))
    town.run(60.0)
    assert {each.head for each in town.histories[-1].branches} == {sold[-1].seal, more[-1].seal}
    town.follow(seen)
    town.run(30.0)
    assert town.me.head.seal == more[-1].seal


def test_a_choice_that_nobody_goes_on_from_is_told(scope: IdealScope) -> None:
    start = zero()
    true, sold = grown(start, 20), fork_of(start, 30)
    town = Town(scope, start, head=true[-1], past=Image((start, *true)), followed=replace(sold[-1], votes=()))
    town.beside(HONEST, true)
    town.run(40.0)
    assert "nobody here goes on from seal" in town.notices[0].text
    assert town.me.head.seal == true[-1].seal, "and it goes on where it was"


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
    town.follow(ours[4].seal)
    assert [(each.seal, bool(each.link)) for each in town.followed] == [(theirs[-1].seal, True), (ours[4].seal, False)]
    assert town.me._ctx.trust.anchor is None, "on second thoughts it stays"
    assert town.histories[-1].branches == ()
    town.run(60.0)
    assert town.histories[-1].branches == (), "and is not asked again"
    with pytest.raises(LocalError):
        town.follow(theirs[-1].seal)
    town.me._ctx.trust.refused.clear()
    town.run(60.0)
    town.follow(theirs[-1].seal)
    more = [*theirs, *grown(theirs[-1], 2, salt=b"fork")]
    town.leave(LIAR)
    town.beside(LIAR, more, shown_final(more[-2]))
    town.run(60.0)
    assert town.me.head.seal == more[-1].seal, "against its own final seal"
    assert not town.followed[-1].link, "nothing is left to be kept"
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
