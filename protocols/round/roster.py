"""Who takes part: what a valid roster says, derived and checked (protocol.md 5.4, 5.5, 5.10)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, cast

from .. import turns
from ..errors import RemoteError
from ..ids import Hash, PeerId, digest
from ..messages import FACES, MAX_CONTRIBUTORS, Commit, Ready, Roster

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ..statements import Scope, Statement
    from ..table import Table
    from .chain import Head

T = TypeVar("T")
VOID_FROM = 3
"""From this view after the parent's on, a round may be given up (5.10)."""
SHRINK_AFTER = 3
"""Views without a quorum of readys after which at least half of the weight may go on without the rest."""
SHRINK_ANY_AFTER = 6
"""The same for any number."""


@dataclass(frozen=True)
class Cast:
    """The round's cast. ``rows`` are the contributors with weight in order of ids; ``owners`` one reducer a part.

    ``base`` names parent and commits, ``core`` these and ``out``, neither names the view: later views keep the work.
    Without rows it is the announcement of a void seal, which goes on without ``lost``.
    """

    base: Hash
    core: Hash
    view: int
    rev: int
    coordinator: PeerId
    commits: Mapping[PeerId, Statement]
    rows: tuple[PeerId, ...]
    reducers: tuple[PeerId, ...]
    owners: tuple[PeerId, ...]
    out: tuple[PeerId, ...]
    lost: tuple[PeerId, ...]
    inherit: Callable[[tuple[PeerId, ...]], tuple[PeerId, ...]]
    """The owner of every part when these reducers are put out as well."""

    def commit(self, peer: PeerId) -> Commit:
        """What a contributor committed."""
        return cast("Commit", self.commits[peer].body)

    @cached_property
    def roots(self) -> tuple[Hash, ...]:
        """What the rows committed to."""
        return tuple(self.commit(each).root for each in self.rows)

    def owned(self, peer: PeerId) -> list[int]:
        """The parts a reducer owns, ascending."""
        return self._owned.get(peer, [])

    @property
    def void(self) -> bool:
        """Whether no round is made."""
        return not self.rows

    @cached_property
    def working(self) -> tuple[PeerId, ...]:
        """Reducers that own at least one part, in order of ids."""
        return tuple(each for each in self.reducers if each in self._owned)

    @cached_property
    def _owned(self) -> dict[PeerId, list[int]]:
        out: dict[PeerId, list[int]] = {}
        for index, owner in enumerate(self.owners):
            out.setdefault(owner, []).append(index)
        return out


def newcomers_room(table: Table) -> int:
    """Commits of peers without weight that a roster may hold (5.4)."""
    return max(2, len(table.voters) // 8)


def required(head: Head, readys: Sequence[Statement]) -> set[Hash]:
    """Commits for ``head`` that more than a third of the weight among these readys has seen."""
    return set(_named(head, readys, lambda ready: ready.commits))


def unserved(head: Head, readys: Sequence[Statement]) -> tuple[PeerId, ...]:
    """Reducers that more than a third of the weight among these readys got nothing from, in order of ids."""
    return tuple(sorted(_named(head, readys, lambda ready: ready.unserved)))


def kept(head: Head, readys: Sequence[Statement]) -> Hash | None:
    """The ``base`` that more than a third of the weight has work for: highest view named, then smallest hash."""
    named = _named(head, readys, lambda ready: [Hash(ready.kept)] if ready.kept else [])
    bodies = [body for body in (cast("Ready", each.body) for each in readys) if body.head == head.seal]

    def rank(base: Hash) -> tuple[int, Hash]:
        return -max(body.kept_view for body in bodies if body.kept == base), base

    return min(named, key=rank) if named else None


def _named(head: Head, readys: Sequence[Statement], what: Callable[[Ready], Sequence[T]]) -> list[T]:
    """What more than a third of the weight among these readys names.

    Whoever has an older head counts in the whole and names nothing: what it saw was about another parent, and no
    roster on top of this one could hold it.
    """
    alike: dict[tuple[T, ...], list[PeerId]] = {}  # most name the same
    for each in readys:
        body = cast("Ready", each.body)
        if body.head == head.seal:
            alike.setdefault(tuple(what(body)), []).append(each.peer)
    by: dict[T, frozenset[PeerId]] = {}
    for items, peers in alike.items():
        for item in items:
            by[item] = by.get(item, frozenset()).union(peers)
    signers = {each.peer for each in readys}
    third = {peers: head.table.is_third(peers, of=signers) for peers in set(by.values())}
    return [item for item, peers in by.items() if third[peers]]


def base_of(parent: Hash, commits: Mapping[PeerId, Statement]) -> Hash:
    """Names the commits of a round."""
    return digest(b"roster", parent, *(each.hash for each in commits.values()))


def read_roster(
    statement: Statement,
    scope: Scope,
    head: Head,
    *,
    parts: int,
    open_: bool,
    allowed: Collection[PeerId] = (),
) -> Cast:
    """Check a roster on top of ``head`` and derive its cast; raises RemoteError naming the coordinator.

    ``parts`` of the update; ``open_``: whether strangers may enter, else only those ``allowed``. Whether a shrink is
    called for, each peer decides by what it saw itself.
    """
    body, table = cast("Roster", statement.body), head.table
    sender = statement.peer
    if body.parent != head.seal or body.view <= head.view:
        raise RemoteError(sender, "roster for another parent, or of a view that is over")
    if not body.shrink and sender != turns.coordinator(table, scope, body.view):  # before all those signatures
        raise RemoteError(sender, f"view {body.view} is not its turn")
    faces = _commits(body.commits, scope, sender)
    readys = _readys(body.readys, scope, sender)
    if any(cast("Commit", each.body).parent != head.seal for both in faces.values() for each in both):
        raise RemoteError(sender, "roster holds a commit for another parent")
    if not all(fits(each, body.view, head) for each in readys.values()):
        raise RemoteError(sender, "roster holds a ready for another view, or for a later head")
    if body.shrink:
        _check_shrink(statement, scope, head, readys)
        return _void(statement, head, tuple(each for each in table.voters if each not in readys))
    if not table.is_quorum(readys):
        raise RemoteError(sender, "roster without a quorum of readys")
    if not faces:
        if body.view < head.view + VOID_FROM and required(head, list(readys.values())):
            raise RemoteError(sender, "gives up a round whose commits a third has seen")
        return _void(statement, head, ())
    commits = {each: both[0] for each, both in faces.items() if len(both) == 1}
    listed = {each.hash for both in faces.values() for each in both}
    if not open_ and any(each not in table.members and each not in allowed for each in faces):
        raise RemoteError(sender, "roster holds a stranger's commit, and the run is closed")
    _check_commits(statement, head, commits, listed, list(readys.values()))
    return derive(statement, head, scope, commits, parts)


def fits(ready: Statement, view: int, head: Head) -> bool:
    """Whether a ready of ``view`` may stand under a roster on top of ``head``: its signer knew of no later seal."""
    body = cast("Ready", ready.body)
    same = body.head == head.seal if body.head_view == head.view else body.head_view < head.view
    return body.view == view and same and head.table.stands(ready.peer)


def shrink_due(head: Head, view: int, left: Iterable[PeerId]) -> bool:
    """Whether enough views have failed before ``view`` for those who are ``left`` to go on without the rest (5.10)."""
    failed = view - head.view - 1
    return failed >= SHRINK_ANY_AFTER or (failed >= SHRINK_AFTER and head.table.is_half(left))


def _check_shrink(statement: Statement, scope: Scope, head: Head, readys: Mapping[PeerId, Statement]) -> None:
    body, table, sender = cast("Roster", statement.body), head.table, statement.peer
    if body.commits or body.out or not shrink_due(head, body.view, readys) or table.is_quorum(readys):
        raise RemoteError(sender, "goes on without members too early, or without need")
    if sender not in readys or sender != turns.first_turn(table, scope, body.view, readys):
        raise RemoteError(sender, "goes on without members, and it is not its turn to say so")


def _check_commits(
    statement: Statement, head: Head, commits: Mapping[PeerId, Statement], listed: set[Hash], readys: list[Statement]
) -> None:
    body, sender = cast("Roster", statement.body), statement.peer
    keep = kept(head, readys)
    if keep is not None:
        if base_of(head.seal, commits) != keep:
            raise RemoteError(sender, "roster drops the work that a third of the weight has kept")
    elif not required(head, readys) <= listed:
        raise RemoteError(sender, "roster leaves out a commit that a third has seen")
    if len(set(body.out)) != len(body.out) or not set(unserved(head, readys)) <= set(body.out):
        raise RemoteError(sender, "roster keeps a reducer that a third of the weight got nothing from")


def _void(statement: Statement, head: Head, lost: tuple[PeerId, ...]) -> Cast:
    body = cast("Roster", statement.body)
    core = digest(b"void", head.seal, *(each.encode() for each in lost))
    none: tuple[PeerId, ...] = ()
    return Cast(core, core, body.view, body.rev, statement.peer, {}, (), (), (), (), lost, lambda out: none)


def derive(statement: Statement, head: Head, scope: Scope, commits: Mapping[PeerId, Statement], parts: int) -> Cast:
    """The cast that follows from checked commits: rows, reducers and the owner of every part."""
    body, table = cast("Roster", statement.body), head.table
    # Who is away or lost is a row as well (5.6): its progress counts before its vote does.
    weighty = [each for each in commits if each in table.members and table.members[each].weight > 0]
    if not weighty:
        raise RemoteError(statement.peer, "roster without a contributor that has weight")
    if len(commits) - len(weighty) > newcomers_room(table):
        raise RemoteError(statement.peer, "roster with more newcomers than there is room for")
    rows = tuple(sorted(turns.seats(table, scope, head.round + 1, weighty)[:MAX_CONTRIBUTORS]))
    claims = {each: cast("Commit", commit.body) for each, commit in commits.items()}
    able = turns.reducers(table, scope, head.round + 1, {each: claims[each].direct for each in rows})
    reducers = tuple(each for each in able if each not in body.out)
    if not reducers:
        raise RemoteError(statement.peer, "roster that leaves nobody to reduce")
    lots = turns.tickets({each: claims[each].up if each in claims else 0 for each in able})
    hashes = [each.hash for each in commits.values()]

    def inherit(out: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        left = {each: lots[each] for each in reducers if each not in out}
        return tuple(turns.owners(head.seal, hashes, left, parts)) if left else ()

    base = base_of(head.seal, commits)
    return Cast(
        base=base,
        core=digest(b"roster out", base, *(each.encode() for each in body.out)) if body.out else base,
        view=body.view,
        rev=body.rev,
        coordinator=statement.peer,
        commits=commits,
        rows=rows,
        reducers=reducers,
        owners=inherit(()),
        out=body.out,
        lost=(),
        inherit=inherit,
    )


def _commits(encoded: Sequence[bytes], scope: Scope, sender: PeerId) -> dict[PeerId, list[Statement]]:
    """Decode attached commits, in strictly ascending order of signers, then hashes.

    Two of one signer show that it signed twice for one parent: both stand in the list, it takes no part.
    """
    out: dict[PeerId, list[Statement]] = {}
    last = ("", b"")
    for raw in encoded:
        statement = scope.decode(raw, sender=sender)
        here = (statement.peer, statement.hash)
        both = out.setdefault(statement.peer, [])
        if not isinstance(statement.body, Commit) or here <= last or len(both) == FACES:
            raise RemoteError(sender, "roster's commits are mixed, doubled or out of order")
        last = here
        both.append(statement)
    return out


def _readys(encoded: Sequence[bytes], scope: Scope, sender: PeerId) -> dict[PeerId, Statement]:
    """Decode attached readys, which must stand in strictly ascending order of their signers."""
    out: dict[PeerId, Statement] = {}
    last = ""
    for raw in encoded:
        statement = scope.decode(raw, sender=sender)
        if not isinstance(statement.body, Ready) or statement.peer <= last:
            raise RemoteError(sender, "roster's readys are mixed, doubled or out of order")
        last = statement.peer
        out[statement.peer] = statement
    return out
