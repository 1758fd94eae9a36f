"""Rosters for tests: signed by small keys, each part of which may be wrong."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from peer.identity import Identity
from protocols import turns
from protocols.errors import RemoteError
from protocols.ids import Hash, PeerId
from protocols.messages import Commit, Leg, Ready, Roster
from protocols.round.chain import Head, seal_zero
from protocols.round.roster import Cast, read_roster
from protocols.statements import Scope, Statement
from protocols.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocols.messages import Body

SCOPE = Scope(b"r" * 32, "model")
STATE = Hash(b"?" * 32)
OLD = Hash(b"o" * 32)
PARTS = 12
VIEW = 5
"""The parent's view in these tests."""


@cache
def keys(count: int = 12) -> list[Identity]:
    """Ascending ids; tests take founders from the front, strangers from behind."""
    return sorted((Identity.from_seed(bytes([each + 1]) * 32) for each in range(count)), key=lambda each: each.peer)


def names(start: int, stop: int) -> tuple[PeerId, ...]:
    """Ids of some of the keys."""
    return tuple(each.peer for each in keys()[start:stop])


def head(count: int) -> Head:
    """A head of view 5 and round 3 with the first keys as founders."""
    return replace(seal_zero(SCOPE, names(0, count), STATE), view=VIEW, round=3)


def with_rows(of: Head, who: Sequence[PeerId], **fields: Any) -> Head:
    """The head with these fields in some members' rows."""
    members = of.table.members
    return replace(of, table=Table({**members, **{each: replace(members[each], **fields) for each in who}}))


@cache
def say(who: Identity, body: Body) -> Statement:
    """A signed statement."""
    return SCOPE.state(who.peer, body, who.sign)


def commit(who: Identity, parent: Hash, *, root: Hash = STATE, direct: bool = True) -> Statement:
    """A commit for the round after ``parent``."""
    return say(who, Commit(parent, root, (Leg(parent, 1, 1),), 0, direct))


def ready(who: Identity, of: Head, view: int = VIEW + 1, **fields: Any) -> Statement:
    """A ready on top of this head that saw and kept nothing but ``fields``."""
    body = Ready(view, of.seal, of.view, commits=(), kept=b"", kept_view=0, unserved=())
    return say(who, replace(body, **fields))


def late(who: Identity, view: int = VIEW + 1, **fields: Any) -> Statement:
    """A ready of somebody who has not heard of the last seal."""
    return say(who, replace(Ready(view, OLD, VIEW - 1, (), b"", 0, ()), **fields))


def turn(of: Head, view: int) -> Identity:
    """Who coordinates the view."""
    return next(each for each in keys() if each.peer == turns.coordinator(of.table, SCOPE, view))


def read(
    of: Head,
    commits: Sequence[Statement],
    readys: Sequence[Statement],
    *,
    view: int = VIEW + 1,
    by: Identity | None = None,
    open_: bool = True,
    allowed: Sequence[str] = (),
    **fields: Any,
) -> Cast:
    """The roster of these statements, read as everybody does."""
    body = Roster(
        view, 0, of.seal, tuple(each.encode() for each in commits), tuple(each.encode() for each in readys), (), False
    )
    statement = say(by or turn(of, view), replace(body, **fields))
    admitted = [PeerId(each) for each in allowed]
    return read_roster(statement, SCOPE, of, parts=PARTS, open_=open_, allowed=admitted)


def refused(of: Head, commits: Sequence[Statement], readys: Sequence[Statement], match: str, **options: Any) -> None:
    """Read it, and it must be refused with these words in the sender's name."""
    with pytest.raises(RemoteError, match=match) as caught:
        read(of, commits, readys, **options)
    blamed = options.get("by") or turn(of, options.get("view", VIEW + 1))
    assert caught.value.peer == blamed.peer, "whoever sent the roster is the one to blame"


def good(count: int = 4, view: int = VIEW + 1) -> tuple[Head, list[Statement], list[Statement]]:
    """A head, everybody's commits, and readys that have seen them all."""
    of = head(count)
    commits = [commit(each, of.seal) for each in keys()[:count]]
    seen = tuple(each.hash for each in commits)
    return of, commits, [ready(each, of, view, commits=seen) for each in keys()[:count]]


def ordered(*statements: Statement) -> list[Statement]:
    """In order of their signers."""
    return sorted(statements, key=lambda each: each.peer)
