"""Who is a row, who reduces, and when a round is given up or members are (protocol.md 5.4, 5.5, 5.10)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from peer.identity import Identity
from protocols import turns
from protocols.errors import RemoteError
from protocols.round.chain import Head, seal_zero
from protocols.round.roster import Cast, newcomers_room
from protocols.table import AWAY, LOST, NEW, Member, Table
from tests.protocols.rosters import (
    OLD,
    SCOPE,
    STATE,
    VIEW,
    commit,
    good,
    head,
    keys,
    names,
    ordered,
    read,
    ready,
    refused,
    with_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocols.statements import Statement

# --- newcomers, rows, reducers ---------------------------------------------------------------------


def test_newcomers_have_little_room_and_no_row() -> None:
    of, commits, readys = good()
    new = [commit(each, of.seal) for each in keys()[4:8]]
    assert newcomers_room(of.table) == 2
    cast_ = read(of, ordered(*commits, *new[:2]), readys)
    assert cast_.rows == cast_.reducers == names(0, 4)
    assert len(cast_.commits) == 6
    refused(of, ordered(*commits, *new[:3]), readys, "more newcomers")
    silent = [ready(each, of) for each in keys()[:4]]
    refused(of, new[:2], silent, "without a contributor that has weight")


@pytest.mark.parametrize(("voters", "room"), [(1, 2), (16, 2), (23, 2), (24, 3), (64, 8), (96, 12)])
def test_there_is_room_for_two_newcomers_or_an_eighth(voters: int, room: int) -> None:
    many = [Identity.from_seed(bytes([7, each]) * 16).peer for each in range(voters)]
    assert newcomers_room(seal_zero(SCOPE, many, STATE).table) == room


def test_a_row_that_is_new_takes_a_newcomers_room() -> None:
    of, commits, readys = good()
    rows = {each: Member(each, 0.0, NEW, True, OLD, 1) for each in names(4, 7)}
    of = replace(of, table=Table({**of.table.members, **rows}))
    new = [commit(each, of.seal) for each in keys()[4:7]]
    assert read(of, ordered(*commits, *new[:2]), readys).rows == names(0, 4)
    refused(of, ordered(*commits, *new), readys, "more newcomers")


@pytest.mark.parametrize("state", [AWAY, LOST])
def test_members_on_their_way_back_are_rows_but_reduce_nothing(state: str) -> None:
    """5.6: row weight = table weight (standing, away or lost); else their drift is dropped before they vote."""
    of = with_rows(head(7), names(4, 7), state=state)
    commits = [commit(each, of.seal) for each in keys()[:7]]
    cast_ = read(of, commits, [ready(each, of) for each in keys()[:4]])
    assert cast_.rows == names(0, 7)
    assert cast_.reducers == names(0, 4)
    strangers = [commit(each, of.seal) for each in keys()[7:9]]
    assert len(read(of, ordered(*commits, *strangers), [ready(each, of) for each in keys()[:4]]).commits) == 9


def test_a_closed_run_has_no_strangers_in_its_rosters() -> None:
    of, commits, readys = good()
    with_stranger = ordered(*commits, commit(keys()[5], of.seal))
    assert len(read(of, commits, readys, open_=False).rows) == 4
    assert len(read(of, with_stranger, readys).commits) == 5
    refused(of, with_stranger, readys, "the run is closed", open_=False)


def test_above_64_the_seats_decide_who_is_a_row_and_above_16_who_reduces() -> None:
    many = sorted((Identity.from_seed(bytes([1, each]) * 16) for each in range(70)), key=lambda each: each.peer)
    of = replace(seal_zero(SCOPE, [each.peer for each in many], STATE), round=8)
    by = next(each for each in many if each.peer == turns.coordinator(of.table, SCOPE, 1))
    commits = [commit(each, of.seal) for each in many]
    readys = [ready(each, of, 1) for each in many[:47]]
    cast_ = read(of, commits, readys, by=by, view=1)
    ranked = turns.seats(of.table, SCOPE, 9, [each.peer for each in many])
    assert cast_.rows == tuple(sorted(ranked[:64]))
    assert cast_.reducers == tuple(sorted(ranked[:16]))
    assert len(cast_.commits) == 70, "those without a seat are in the roster all the same: they are not away"
    out = read(of, commits, readys, by=by, view=1, rev=1, out=tuple(ranked[:2]))
    assert out.reducers == tuple(sorted(ranked[2:16])), "nobody moves up: else others' parts would change hands"


def test_reducers_are_those_who_say_they_can_be_dialled() -> None:
    of, commits, readys = good()
    mixed = [commit(each, of.seal, direct=place % 2 == 0) for place, each in enumerate(keys()[:4])]
    silent = [ready(each, of) for each in keys()[:4]]
    assert read(of, mixed, silent).reducers == (names(0, 4)[0], names(0, 4)[2])
    none = [commit(each, of.seal, direct=False) for each in keys()[:4]]
    assert read(of, none, silent).reducers == names(0, 4)
    assert read(of, commits, readys).reducers == names(0, 4)


# --- void and shrink -------------------------------------------------------------------------------


def test_a_round_is_given_up_if_no_commit_reached_a_third_or_from_the_third_view_on() -> None:
    of, commits, _ = good()
    seen = (commits[0].hash,)
    for view in range(VIEW + 1, VIEW + 6):
        few = [ready(each, of, view, commits=seen if place < 1 else ()) for place, each in enumerate(keys()[:4])]
        many = [ready(each, of, view, commits=seen if place < 2 else ()) for place, each in enumerate(keys()[:4])]
        given_up = read(of, [], few, view=view)
        assert given_up.void
        assert (given_up.rows, given_up.reducers, given_up.owners, given_up.lost) == ((), (), (), ())
        if view < VIEW + 3:
            refused(of, [], many, "gives up a round", view=view)
        else:
            assert read(of, [], many, view=view).core == given_up.core, "no view in it"
        refused(of, [], few[:2], "quorum of readys", view=view)


def shrink(
    of: Head, count: int, view: int, *, by: Identity | None = None, commits: Sequence[Statement] = (), **fields: Any
) -> Cast:
    """A shrink of the first ``count``, by default announced by whose turn it is among them."""
    first = turns.first_turn(of.table, SCOPE, view, [each.peer for each in keys()[:count]])
    who = by or next(each for each in keys() if each.peer == first)
    return read(
        of, commits, [ready(each, of, view) for each in keys()[:count]], view=view, by=who, shrink=True, **fields
    )


@pytest.mark.parametrize(
    ("voters", "left", "first"),
    [
        (6, 5, 0), (6, 4, 4), (6, 3, 4), (6, 2, 7), (6, 1, 7), (2, 1, 4),
        (3, 2, 4), (3, 1, 7), (4, 2, 4), (4, 3, 0), (1, 1, 0),
    ],
)  # fmt: skip
def test_half_go_on_alone_after_three_views_and_any_after_six(voters: int, left: int, first: int) -> None:
    """``first``: the earliest view after the parent's in which those left may shrink; 0 = never, they are a quorum."""
    of = head(voters)
    for view in range(VIEW + 1, VIEW + 10):
        if first and view >= VIEW + first:
            cast_ = shrink(of, left, view)
            assert cast_.void
            assert cast_.lost == names(left, voters)
        else:
            with pytest.raises(RemoteError, match="too early, or without need"):
                shrink(of, left, view)


def test_a_shrink_is_announced_by_the_first_of_those_left_and_holds_nothing_else() -> None:
    of, view = head(6), VIEW + 4
    good_one = shrink(of, 3, view)
    for each in keys()[:6]:
        if each.peer != good_one.coordinator:
            with pytest.raises(RemoteError, match="not its turn to say so") as caught:
                shrink(of, 3, view, by=each)
            assert caught.value.peer == each.peer
    with pytest.raises(RemoteError, match="without need"):
        shrink(of, 3, view, commits=[commit(keys()[0], of.seal)])
    with pytest.raises(RemoteError, match="without need"):
        shrink(of, 3, view, out=names(0, 1))
    assert shrink(of, 3, view + 1).core == good_one.core != shrink(of, 4, view).core


def test_shares_of_the_weight_count_not_heads() -> None:
    of = with_rows(head(6), names(0, 2), weight=2.0)
    assert shrink(of, 2, VIEW + 4).lost == names(2, 6), "4 of 8"
    of = with_rows(head(6), names(0, 2), weight=1.9)
    with pytest.raises(RemoteError, match="too early"):
        shrink(of, 2, VIEW + 4)


def test_nobody_goes_on_without_everybody() -> None:
    of = head(3)
    for by in keys()[:3]:
        refused(of, [], [], "not its turn to say so", view=VIEW + 7, by=by, shrink=True)
