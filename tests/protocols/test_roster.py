"""Which rosters are refused, and what the readys in one demand (protocol.md 5.4), statement by statement."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.ids import Hash, digest
from protocols.messages import Ready, Vote
from protocols.round.roster import fits, kept, required, unserved
from protocols.statements import Statement
from protocols.table import AWAY, LOST, NEW, Member, Table
from tests.protocols.rosters import (
    OLD,
    STATE,
    VIEW,
    commit,
    good,
    head,
    keys,
    late,
    names,
    ordered,
    read,
    ready,
    refused,
    say,
    turn,
    with_rows,
)

# --- a good one ------------------------------------------------------------------------------------


def test_a_good_roster_casts_the_round() -> None:
    of, commits, readys = good()
    cast_ = read(of, commits, readys)
    assert cast_.rows == cast_.reducers == names(0, 4)
    assert sorted(index for each in cast_.working for index in cast_.owned(each)) == list(range(len(cast_.owners)))
    assert (cast_.coordinator, cast_.view, cast_.rev) == (turn(of, VIEW + 1).peer, VIEW + 1, 0)
    assert (cast_.out, cast_.lost, cast_.void) == ((), (), False)
    assert [cast_.commit(each) for each in cast_.rows] == [each.body for each in commits]


def test_base_and_core_name_parent_and_commits_but_not_the_view() -> None:
    of, commits, readys = good()
    first = read(of, commits, readys)
    silent = [ready(each, of, VIEW + 2) for each in keys()[:4]]
    later = read(of, commits, silent, view=VIEW + 2)
    assert (first.base, first.core, first.owners) == (later.base, later.core, later.owners)
    assert first.base == digest(b"roster", of.seal, *(each.hash for each in commits))
    other = [commit(keys()[0], of.seal, root=Hash(b"x" * 32)), *commits[1:]]
    assert read(of, other, silent, view=VIEW + 2).core != first.core
    assert read(of, commits[1:], silent, view=VIEW + 2).core != first.core


def test_those_put_out_change_the_core_but_not_the_base() -> None:
    of, commits, readys = good()
    first = read(of, commits, readys)
    second = read(of, commits, readys, rev=1, out=(names(0, 4)[2],))
    third = read(of, commits, readys, rev=2, out=names(0, 4)[2:])
    assert first.base == second.base == third.base
    assert len({first.core, second.core, third.core}) == 3
    assert second.reducers == (*names(0, 2), names(0, 4)[3])
    assert second.rows == first.rows, "its update counts all the same"
    gone = names(0, 4)[2]
    for before, after in zip(first.owners, second.owners, strict=True):
        assert after != gone
        assert before in (after, gone), "only its own parts go to others"
    assert first.inherit((gone,)) == second.owners
    assert second.inherit(names(3, 4)) == third.owners


# --- whose turn, whose word ------------------------------------------------------------------------


def test_only_who_has_the_turn_may_propose() -> None:
    of, commits, readys = good()
    for each in keys():
        if each != turn(of, VIEW + 1):
            refused(of, commits, readys, "not its turn", by=each)


@pytest.mark.parametrize("view", [0, VIEW - 1, VIEW])
def test_a_view_that_is_over_has_no_roster(view: int) -> None:
    """Readys of those with an older head were honest once: they must not serve a second roster of their view."""
    of = head(4)
    commits = [commit(each, of.seal) for each in keys()[:4]]
    stale = [say(each, Ready(view, OLD, 0, (), b"", 0, ())) for each in keys()[:4]]
    refused(of, commits, stale, "a view that is over", view=view)
    refused(of, [], stale, "a view that is over", view=view)


def test_another_parent_is_refused_even_without_commits() -> None:
    of, commits, readys = good()
    refused(of, commits, readys, "another parent", parent=OLD)
    silent = [ready(each, of, VIEW + 3) for each in keys()[:4]]
    refused(of, [], silent, "another parent", parent=OLD, view=VIEW + 3)


@pytest.mark.parametrize(("count", "enough"), [(1, 1), (2, 2), (3, 3), (4, 3), (6, 5), (7, 5), (9, 7)])
def test_readys_of_more_than_two_thirds_are_needed(count: int, enough: int) -> None:
    of, commits, readys = good(count)
    read(of, commits, readys[:enough])
    refused(of, commits, readys[: enough - 1], "quorum of readys")


@pytest.mark.parametrize("state", [NEW, AWAY, LOST, ""])
def test_only_voters_readys_may_stand_in_it(state: str) -> None:
    of, commits, readys = good()
    who = keys()[5]
    if state:
        row = Member(who.peer, 1.0, state, True, OLD, 3)
        of = replace(of, table=Table({**of.table.members, who.peer: row}))
    refused(of, commits, ordered(*readys[:3], ready(who, of)), "ready for another view")


def test_readys_are_of_its_view_and_of_no_later_head() -> None:
    of, commits, readys = good()
    me = keys()[3]
    wrongs = (
        ready(me, of, VIEW + 2),
        ready(me, of, VIEW),
        ready(me, of, head=Hash(b"n" * 32), head_view=VIEW + 1),
        ready(me, of, head=of.seal, head_view=VIEW + 1),
        ready(me, of, head=OLD, head_view=VIEW),
    )
    for wrong in wrongs:
        assert not fits(wrong, VIEW + 1, of)
        refused(of, commits, [*readys[:3], wrong], "ready for another view, or for a later head")
    assert fits(late(me), VIEW + 1, of)
    assert len(read(of, commits, [*readys[:3], late(me)]).rows) == 4


def test_commits_are_for_this_parent() -> None:
    of, commits, readys = good()
    refused(of, [*commits[:3], commit(keys()[3], OLD)], readys, "commit for another parent")


def test_commits_and_readys_stand_once_and_in_order() -> None:
    of, commits, readys = good()
    for wrong in (
        commits[::-1],
        [*commits, commits[-1]],
        [commits[0], *commits],
        [commits[1], commits[0], *commits[2:]],
    ):
        refused(of, wrong, readys, "commits are mixed, doubled or out of order")
    second = commit(keys()[3], of.seal, root=Hash(b"x" * 32))
    refused(of, [*commits, second], readys, "doubled")
    for wrong in (readys[::-1], [*readys, readys[-1]], [*readys[:3], ready(keys()[2], of)]):
        refused(of, commits, wrong, "readys are mixed, doubled or out of order")
    vote = say(keys()[3], Vote(VIEW + 1, STATE))
    refused(of, [*commits[:3], vote], readys, "mixed")
    refused(of, commits, [*readys[:3], vote], "mixed")
    refused(of, readys, commits, "mixed")


def test_signatures_inside_are_checked_and_the_coordinator_blamed() -> None:
    of, commits, readys = good()
    refused(of, [*commits[:3], replace(commits[3], signature=commits[2].signature)], readys, "wrong signature")
    refused(of, commits, [*readys[:3], replace(readys[3], peer=keys()[4].peer)], "wrong signature")
    refused(of, [*commits[:3], replace(commits[3], raw=b"\xc0")], readys, "malformed")


# --- which commits ---------------------------------------------------------------------------------


def test_a_commit_that_more_than_a_third_saw_may_not_be_left_out() -> None:
    of, commits, _ = good()
    seen = tuple(each.hash for each in commits)
    for witnesses, right in ((1, True), (2, False), (3, False)):
        readys = [
            ready(each, of, commits=seen if place < witnesses else seen[:3]) for place, each in enumerate(keys()[:4])
        ]
        if right:
            assert read(of, commits[:3], readys).rows == names(0, 3)
        else:
            refused(of, commits[:3], readys, "leaves out a commit that a third has seen")
        read(of, commits, readys)


def test_exactly_a_third_is_not_more_than_a_third() -> None:
    of, commits, _ = good(3)
    seen = tuple(each.hash for each in commits)
    readys = [ready(each, of, commits=seen if place < 1 else seen[:2]) for place, each in enumerate(keys()[:3])]
    assert required(of, readys) == set(seen[:2])
    read(of, commits[:2], readys)


def test_naming_a_commit_twice_counts_once() -> None:
    of, commits, _ = good()
    readys = [ready(keys()[0], of, commits=(commits[3].hash,) * 9), *(ready(each, of) for each in keys()[1:4])]
    assert required(of, readys) == set()


def test_a_commit_that_nobody_named_may_come_along() -> None:
    of, commits, _ = good()
    assert len(read(of, commits, [ready(each, of) for each in keys()[:4]]).rows) == 4


def test_what_was_seen_under_an_older_head_binds_nobody() -> None:
    """Else a third that missed one certificate would make every roster of the view impossible."""
    of, commits, _ = good()
    phantom = Hash(b"q" * 32)
    behind = [
        late(each, commits=(phantom,), kept=bytes(phantom), kept_view=VIEW, unserved=names(0, 2)) for each in keys()[:2]
    ]
    readys = [*behind, *(ready(each, of) for each in keys()[2:4])]
    assert (required(of, readys), kept(of, readys), unserved(of, readys)) == (set(), None, ())
    assert read(of, commits, readys).reducers == names(0, 4)


def test_those_with_an_older_head_count_in_the_whole() -> None:
    """Else one liar among many laggards could alone name a commit that does not exist."""
    of = head(4)
    phantom = Hash(b"q" * 32)
    readys = [ready(keys()[0], of, commits=(phantom,)), *(late(each) for each in keys()[1:4])]
    assert required(of, readys) == set()


def test_work_that_a_third_has_kept_may_not_be_dropped() -> None:
    of, commits, _ = good()
    base = read(of, commits[:3], [ready(each, of) for each in keys()[:4]]).base
    seen = tuple(each.hash for each in commits)
    view = VIEW + 2

    def readys(count: int, **fields: Any) -> list[Statement]:
        keep = {"kept": bytes(base), "kept_view": VIEW + 1, **fields}
        kept_by = [ready(each, of, view, commits=seen, **keep) for each in keys()[:count]]
        return [*kept_by, *(ready(each, of, view, commits=seen) for each in keys()[count:4])]

    assert read(of, commits[:3], readys(2), view=view).base == base, "the fourth commit came later"
    refused(of, commits, readys(2), "drops the work", view=view)
    refused(of, commits[:2], readys(2), "drops the work", view=view)
    read(of, commits, readys(1), view=view)
    refused(of, commits[:3], readys(1), "leaves out", view=view)


def test_one_roster_kept_in_two_views_is_one() -> None:
    """Three of four: one heard it in the first view only, one in the second as well, one never."""
    of = head(4)
    base, other = bytes(range(32)), b"\xff" * 32
    readys = [
        ready(keys()[0], of, VIEW + 3, kept=base, kept_view=VIEW + 1),
        ready(keys()[1], of, VIEW + 3, kept=base, kept_view=VIEW + 2),
        ready(keys()[2], of, VIEW + 3, kept=other, kept_view=VIEW + 2),
    ]
    assert kept(of, readys) == base


def test_of_two_kept_rosters_the_later_then_the_smaller_counts() -> None:
    of = head(4)
    small, large = b"\x01" * 32, b"\x02" * 32

    def two(small_view: int, large_view: int) -> list[Statement]:
        sides = [(small, small_view)] * 2 + [(large, large_view)] * 2
        return [
            ready(each, of, VIEW + 4, kept=base, kept_view=view)
            for each, (base, view) in zip(keys()[:4], sides, strict=True)
        ]

    assert kept(of, two(VIEW + 1, VIEW + 1)) == small
    assert kept(of, two(VIEW + 2, VIEW + 1)) == small
    assert kept(of, two(VIEW + 1, VIEW + 2)) == large
    assert kept(of, two(VIEW + 1, VIEW + 2)[:3]) == small, "one of three is no third"


def test_reducers_that_a_third_names_unserved_must_be_out() -> None:
    of, commits, _ = good()
    gone = names(0, 4)[1]
    for count, needed in ((1, False), (2, True)):
        readys = [ready(each, of, unserved=(gone,) if place < count else ()) for place, each in enumerate(keys()[:4])]
        assert unserved(of, readys) == ((gone,) if needed else ())
        if needed:
            refused(of, commits, readys, "keeps a reducer that a third")
        assert gone not in read(of, commits, readys, out=(gone,)).reducers
        refused(of, commits, readys, "keeps a reducer", out=(gone, gone))
    silent = [ready(each, of) for each in keys()[:4]]
    refused(of, commits, silent, "leaves nobody to reduce", out=names(0, 4))


bodies = st.builds(
    Ready,
    st.just(VIEW + 1), st.sampled_from([STATE, STATE, OLD]), st.just(VIEW),
    st.lists(st.sampled_from([Hash(bytes([each]) * 32) for each in range(4)]), max_size=5).map(tuple),
    st.sampled_from([b"", b"\x01" * 32, b"\x02" * 32]), st.integers(0, 3),
    st.lists(st.sampled_from(names(0, 4)), max_size=4).map(tuple),
)  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.tuples(bodies, st.sampled_from([0.1, 0.2, 0.3, 1.0]), st.booleans()), min_size=1, max_size=7))
def test_required_kept_and_unserved_are_what_a_third_of_the_weight_says(rows: list[tuple[Ready, float, bool]]) -> None:
    of = replace(head(7), seal=STATE)
    for each, (_, weight, _) in zip(keys(), rows, strict=False):
        of = with_rows(of, [each.peer], weight=weight)
    said = [(who.peer, body, Fraction(weight)) for who, (body, weight, some) in zip(keys(), rows, strict=False) if some]
    whole = sum((weight for _, _, weight in said), Fraction(0))
    mine = [(body, weight) for _, body, weight in said if body.head == STATE]

    def third(names_it: Any) -> bool:
        return 3 * sum(weight for body, weight in mine if names_it(body)) > whole

    readys = [Statement(peer, body, b"", b"") for peer, body, _ in said]
    every = [Hash(bytes([each]) * 32) for each in range(4)]
    assert required(of, readys) == {each for each in every if third(lambda body, it=each: it in body.commits)}
    assert list(unserved(of, readys)) == [
        each for each in names(0, 4) if third(lambda body, it=each: it in body.unserved)
    ]
    bases = [base for base in (b"\x01" * 32, b"\x02" * 32) if third(lambda body, it=base: body.kept == it)]
    bases.sort(key=lambda base: -max(body.kept_view for body, _ in mine if body.kept == base))  # stable: smaller first
    assert kept(of, readys) == (bases[0] if bases else None)
