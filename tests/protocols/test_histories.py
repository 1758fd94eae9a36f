"""Branches as whoever is on neither sees them: which one wins, and which two no rule ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.round import links
from protocols.round.forks import outranks, part, prefer, unranked
from protocols.round.links import Chain, restored
from protocols.round.walking import Branch, walk
from tests.protocols.chains import FOUR, SCOPE, SIX, child, grown, link, readys, table_of, zero
from tests.protocols.test_fork_choice import forks

if TYPE_CHECKING:
    from protocols.round.chain import Head


def final(heads: list[Head], place: int) -> Branch:
    return Branch(tuple(heads), heads[place].seal, readys(heads[place], SIX))


def test_two_that_each_show_a_firm_final_seal_are_not_ranked() -> None:
    start = zero(SIX)
    shared = grown(start, 3, SIX)
    one, other = grown(shared[-1], 4, SIX, b"a"), grown(shared[-1], 9, SIX, b"b")
    both = final([*shared, *one], 5), final([*shared, *other], 6)
    assert unranked(both[0], both[1], start) == unranked(both[1], both[0], start) == shared[-1]
    early = final([*shared, *other], 2)
    assert unranked(both[0], early, start) is None, "a final seal that both have decides nothing"
    assert outranks(both[0], early, start) and not outranks(early, both[0], start)
    assert part(both[0].heads, both[1].heads, start) == (shared[-1], tuple(one), tuple(other))


def test_a_final_seal_that_one_key_made_alone_stands_in_nobodys_way() -> None:
    start = zero(SIX)
    alone = child(start, SIX[:1], lost=tuple(SIX[1:]))
    king = child(alone, SIX[:1], table=table_of({SIX[0]: 1.0}))
    forged = Branch((alone, king, child(king, SIX[:1])), king.seal, readys(king, SIX[:1]))
    true = final(grown(start, 3, SIX), 1)
    assert unranked(forged, true, start) is None
    assert outranks(true, forged, start) and not outranks(forged, true, start)


@settings(max_examples=80)
@given(forks())
def test_for_whoever_is_on_neither_one_of_two_wins(fork: tuple[Head, list[Branch]]) -> None:
    start, branches = fork
    for one in branches:
        for other in branches:
            if one is other or unranked(one, other, start) is not None:
                continue
            won = outranks(one, other, start), outranks(other, one, start)
            assert won != (True, True)
            assert any(won) or (not one.heads and not other.heads)
            if one.final is None and other.final is None and one.heads:
                assert won[1] == prefer(one, other, start), "as for a member"


def test_milestones_outlive_the_links_and_get_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "KEEP", 4)
    monkeypatch.setattr(links, "MILESTONES", ((2, 10), (8, 40)))
    heads = grown(zero(), 60)
    chain = Chain(zero(), heads)
    assert [each.round for each in chain.image.milestones] == [24, 32, 40, 48, 52, 54, 56, 58, 60]
    assert chain.invited is None, "nothing is final"
    chain.mark_final(heads[56].seal, readys(heads[56], FOUR))
    assert chain.invited == (heads[55].seal, 56)
    assert chain.shown(heads[39].seal) is not None
    assert chain.shown(heads[40].seal) is None
    assert chain.at(30) == heads[29].seal
    assert chain.since([heads[39].seal])[0] == heads[39].seal
    chain.switch(heads[57].seal, Branch(tuple(grown(heads[57], 3, salt=b"fork"))))
    assert [each.round for each in chain.image.milestones][-3:] == [56, 58, 60]
    assert chain.shown(heads[59].seal) is None, "it was of the branch that was left"


@settings(max_examples=40)
@given(st.integers(2, 40), st.integers(1, 40), st.integers(2, 6))
def test_what_lies_below_is_put_under_a_chain(length: int, begin: int, keep: int) -> None:
    """And then whoever knows seal 0 gets to the head, as does whoever knows a seal of before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links, "KEEP", keep)
        heads = grown(zero(), length + begin)
        donor = Chain(zero(), heads)
        mine = Chain(replace(heads[begin - 1], votes=(), parent_table=None), heads[begin:])
        before = mine.locator()
        shown = walk(SCOPE, zero(), donor.since([zero().seal])[1], sender="")
        assert mine.fill(zero(), shown.heads)
        assert mine.anchor == zero()
        for known in (zero().seal, *before):
            seal, path = mine.since([known])
            assert seal == known
            start = next(each for each in (zero(), *heads) if each.seal == known)
            end = walk(SCOPE, start, path, sender="").heads
            assert (end[-1].seal if end else known) == heads[-1].seal


def test_another_chain_is_not_put_under_ones_own() -> None:
    heads = grown(zero(), 20)
    mine = Chain(heads[9], heads[10:])
    assert not mine.fill(zero(), grown(zero(), 30, salt=b"other"))
    assert mine.anchor == heads[9]


def test_an_image_of_another_branch_is_left_aside() -> None:
    heads = grown(zero(), 10)
    image = Chain(zero(), heads).image
    elsewhere = grown(heads[7], 2, salt=b"b")
    back = restored(elsewhere[-1], [elsewhere[0]], image)
    assert [each.seal for each in back.heads] == [each.seal for each in (zero(), *heads[:8], *elsewhere)]
    lone = restored(grown(elsewhere[-1], 1)[-1], [], image)
    assert len(lone.heads) == 1, "what is between is not there"
    assert [link(each) for each in restored(heads[4], [], image).heads[1:]] == [link(each) for each in heads[:5]]
