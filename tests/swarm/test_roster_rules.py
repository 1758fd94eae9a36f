"""What a roster must be on top of a head (protocol.md 5.4), statement by statement."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from peer.identity import Identity
from protocols import turns
from protocols.errors import RemoteError
from protocols.ids import Hash
from protocols.messages import Commit, Leg, Ready, Roster, Vote
from protocols.round.chain import Head, seal_zero
from protocols.round.roster import Cast, newcomers_room, read_roster, required
from tests.swarm.crowd import SCOPE, identities

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocols.messages import Body
    from protocols.statements import Statement

LOST = Hash(b"?" * 32)
PARTS = 12


@cache
def keys(count: int = 12) -> list[Identity]:
    """Founders first, then strangers; ascending ids."""
    return sorted(identities(count), key=lambda each: each.peer)


def head(count: int) -> Head:
    return seal_zero(SCOPE, [each.peer for each in keys()[:count]], LOST)


def say(who: Identity, body: Body) -> Statement:
    return SCOPE.state(who.peer, body, who.sign)


def commit(who: Identity, parent: Hash, *, root: Hash = LOST, direct: bool = True) -> Statement:
    return say(who, Commit(parent, root, (Leg(parent, 1, 1),), 0, direct))


def coordinator(of: Head, view: int = 1) -> Identity:
    return next(each for each in keys() if each.peer == turns.coordinator(of.table, SCOPE, view))


def read(  # noqa: PLR0913 - one argument for each thing that may be wrong
    of: Head,
    commits: Sequence[Statement],
    readys: Sequence[Statement],
    *,
    view: int = 1,
    by: Identity | None = None,
    open_: bool = True,
) -> Cast:
    """The roster of these statements, read as everybody does."""
    body = Roster(view, of.seal, tuple(each.encode() for each in commits), tuple(each.encode() for each in readys))
    return read_roster(say(by or coordinator(of, view), body), SCOPE, of, parts=PARTS, open_=open_)


def refused(of: Head, commits: Sequence[Statement], readys: Sequence[Statement], match: str, *, view: int = 1) -> None:
    with pytest.raises(RemoteError, match=match) as caught:
        read(of, commits, readys, view=view)
    assert caught.value.peer == coordinator(of, view).peer, "the coordinator is the one to blame"


def good(count: int = 4, view: int = 1) -> tuple[Head, list[Statement], list[Statement]]:
    """A head, everybody's commits, and readys that have seen them all."""
    of = head(count)
    commits = [commit(each, of.seal) for each in keys()[:count]]
    seen = tuple(each.hash for each in commits)
    return of, commits, [say(each, Ready(view, of.seal, seen)) for each in keys()[:count]]


def test_a_good_roster_casts_the_round() -> None:
    of, commits, readys = good()
    cast_ = read(of, commits, readys)
    names = tuple(each.peer for each in keys()[:4])
    assert cast_.rows == cast_.reducers == names
    assert set(cast_.owners) <= set(names)
    assert len(cast_.owners) == PARTS
    assert sorted(index for each in cast_.working for index in cast_.owned(each)) == list(range(PARTS))
    assert cast_.coordinator == coordinator(of).peer


def test_the_core_names_parent_and_commits_but_not_the_view() -> None:
    of, commits, readys = good()
    later = [say(each, Ready(2, of.seal, ())) for each in keys()[:4]]
    assert read(of, commits, readys).core == read(of, commits, later, view=2).core
    other = [commit(keys()[0], of.seal, root=Hash(b"x" * 32)), *commits[1:]]
    assert read(of, other, later, view=2).core != read(of, commits, readys).core
    assert read(of, commits[1:], later[1:], view=2).core != read(of, commits, readys).core


def test_only_who_has_the_turn_may_propose() -> None:
    of, commits, readys = good()
    for each in keys():
        if each != coordinator(of):
            with pytest.raises(RemoteError, match="not its turn") as caught:
                read(of, commits, readys, by=each)
            assert caught.value.peer == each.peer


@pytest.mark.parametrize(("count", "enough"), [(1, 1), (2, 2), (3, 3), (4, 3), (6, 5), (7, 5), (9, 7)])
def test_readys_of_more_than_two_thirds_are_needed(count: int, enough: int) -> None:
    of, commits, readys = good(count)
    read(of, commits, readys[:enough])
    refused(of, commits, readys[: enough - 1], "quorum of readys")
    strangers = [say(each, Ready(1, of.seal, ())) for each in keys()[count:]]
    refused(of, commits, [*readys[: enough - 1], *strangers], "quorum of readys")


def test_a_commit_that_more_than_a_third_saw_may_not_be_left_out() -> None:
    of, commits, _ = good()
    seen = [each.hash for each in commits]
    for witnesses, fits in ((1, True), (2, False), (3, False)):
        readys = [
            say(each, Ready(1, of.seal, tuple(seen if place < witnesses else seen[:3])))
            for place, each in enumerate(keys()[:4])
        ]
        if fits:
            assert read(of, commits[:3], readys).rows == tuple(each.peer for each in keys()[:3])
        else:
            refused(of, commits[:3], readys, "leaves out a commit that a third has seen")
        read(of, commits, readys)


def test_exactly_a_third_is_not_more_than_a_third() -> None:
    of, commits, _ = good(3)
    seen = [each.hash for each in commits]
    readys = [
        say(each, Ready(1, of.seal, tuple(seen if place < 1 else seen[:2]))) for place, each in enumerate(keys()[:3])
    ]
    assert required(of.table, readys) == set(seen[:2])
    read(of, commits[:2], readys)


def test_naming_a_commit_twice_counts_once() -> None:
    of, commits, _ = good()
    readys = [
        say(each, Ready(1, of.seal, (commits[3].hash,) * 9 if place == 0 else ()))
        for place, each in enumerate(keys()[:4])
    ]
    assert required(of.table, readys) == set()


def test_a_commit_that_nobody_named_may_come_along() -> None:
    of, commits, _ = good()
    silent = [say(each, Ready(1, of.seal, ())) for each in keys()[:4]]
    assert len(read(of, commits, silent).rows) == 4


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
    for wrong in (readys[::-1], [*readys, readys[-1]]):
        refused(of, commits, wrong, "readys are mixed, doubled or out of order")
    vote = say(keys()[3], Vote(1, LOST))
    refused(of, [*commits[:3], vote], readys, "mixed")
    refused(of, commits, [*readys[:3], vote], "mixed")
    refused(of, readys, commits, "mixed")


def test_everything_in_it_must_belong_to_this_head_and_view() -> None:
    of, commits, readys = good()
    refused(of, [*commits[:3], commit(keys()[3], LOST)], readys, "commit for another parent")
    refused(of, commits, [*readys[:3], say(keys()[3], Ready(2, of.seal, ()))], "ready for another view or head")
    refused(of, commits, [*readys[:3], say(keys()[3], Ready(1, LOST, ()))], "ready for another view or head")


def test_signatures_inside_are_checked_and_the_coordinator_blamed() -> None:
    of, commits, readys = good()
    refused(of, [*commits[:3], replace(commits[3], signature=commits[2].signature)], readys, "wrong signature")
    refused(of, commits, [*readys[:3], replace(readys[3], peer=keys()[4].peer)], "wrong signature")
    refused(of, [*commits[:3], replace(commits[3], raw=b"\xc0")], readys, "malformed")


def test_newcomers_have_little_room_and_no_row() -> None:
    of, commits, readys = good()
    new = [commit(each, of.seal) for each in keys()[4:8]]
    assert newcomers_room(of.table) == 2
    some = sorted([*commits, *new[:2]], key=lambda each: each.peer)
    cast_ = read(of, some, readys)
    assert cast_.rows == cast_.reducers == tuple(each.peer for each in keys()[:4])
    assert len(cast_.commits) == 6
    refused(of, sorted([*commits, *new[:3]], key=lambda each: each.peer), readys, "more newcomers")
    refused(of, new[:2], [say(each, Ready(1, of.seal, ())) for each in keys()[:4]], "0 contributors")
    refused(of, [], [say(each, Ready(1, of.seal, ())) for each in keys()[:4]], "0 contributors")


def test_a_closed_run_has_no_strangers_in_its_rosters() -> None:
    of, commits, readys = good()
    with_stranger = sorted([*commits, commit(keys()[5], of.seal)], key=lambda each: each.peer)
    assert len(read(of, commits, readys, open_=False).rows) == 4
    assert len(read(of, with_stranger, readys).commits) == 5
    with pytest.raises(RemoteError, match="the run is closed"):
        read(of, with_stranger, readys, open_=False)


def test_at_most_64_rows() -> None:
    many = sorted((Identity.from_seed(bytes([1, number]) * 16) for number in range(65)), key=lambda each: each.peer)
    of = seal_zero(SCOPE, [each.peer for each in many], LOST)
    turn = next(each for each in many if each.peer == turns.coordinator(of.table, SCOPE, 1))
    commits = [commit(each, of.seal) for each in many]
    readys = [say(each, Ready(1, of.seal, ())) for each in many]
    assert len(read(of, commits[:64], readys, by=turn).rows) == 64
    assert len(read(of, commits[:64], readys, by=turn).reducers) == 16
    with pytest.raises(RemoteError, match="65 contributors"):
        read(of, commits, readys, by=turn)


def test_reducers_are_those_who_say_they_can_be_dialled() -> None:
    of, commits, readys = good()
    mixed = [commit(each, of.seal, direct=place % 2 == 0) for place, each in enumerate(keys()[:4])]
    silent = [say(each, Ready(1, of.seal, ())) for each in keys()[:4]]
    assert read(of, mixed, silent).reducers == (keys()[0].peer, keys()[2].peer)
    assert read(of, commits, readys).reducers == tuple(each.peer for each in keys()[:4])
