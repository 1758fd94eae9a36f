"""Who takes part: what a valid roster says, derived and checked (protocol.md 5.4, 5.5)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

from .. import turns
from ..errors import RemoteError
from ..ids import Hash, PeerId, digest
from ..messages import MAX_CONTRIBUTORS, Commit, Ready, Roster

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..statements import Scope, Statement
    from ..table import Table
    from .chain import Head


@dataclass(frozen=True)
class Cast:
    """The round's cast. ``rows`` are the contributors with weight in order of ids; ``owners`` one reducer a part."""

    core: Hash
    view: int
    coordinator: PeerId
    commits: Mapping[PeerId, Statement]
    rows: tuple[PeerId, ...]
    reducers: tuple[PeerId, ...]
    owners: tuple[PeerId, ...]

    def commit(self, peer: PeerId) -> Commit:
        """What a contributor committed."""
        return cast("Commit", self.commits[peer].body)

    def owned(self, peer: PeerId) -> list[int]:
        """The parts a reducer owns, ascending."""
        return self._owned.get(peer, [])

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


def required(table: Table, readys: Sequence[Statement]) -> set[Hash]:
    """Commits that more than a third of the weight among these readys has seen."""
    seen: dict[Hash, set[PeerId]] = {}
    for each in readys:
        for commit in cast("Ready", each.body).commits:
            seen.setdefault(commit, set()).add(each.peer)
    signers = {each.peer for each in readys}
    return {commit for commit, peers in seen.items() if table.is_third(peers, of=signers)}


def read_roster(statement: Statement, scope: Scope, head: Head, *, parts: int, open_: bool) -> Cast:
    """Check a roster on top of ``head`` and derive its cast; raises RemoteError naming the coordinator.

    ``parts`` of the update; ``open_``: whether strangers may enter.
    """
    body = cast("Roster", statement.body)
    sender = statement.peer
    if sender != turns.coordinator(head.table, scope, body.view):
        raise RemoteError(sender, f"view {body.view} is not its turn")
    commits = _members(body.commits, scope, sender, Commit)
    readys = _members(body.readys, scope, sender, Ready)
    if any(cast("Commit", each.body).parent != head.seal for each in commits.values()):
        raise RemoteError(sender, "roster holds a commit for another parent")
    if any(each.body != _as_ready(each, body.view, head.seal) for each in readys.values()):
        raise RemoteError(sender, "roster holds a ready for another view or head")
    if not head.table.is_quorum(readys):
        raise RemoteError(sender, "roster without a quorum of readys")
    if not required(head.table, list(readys.values())) <= {each.hash for each in commits.values()}:
        raise RemoteError(sender, "roster leaves out a commit that a third has seen")
    if not open_ and any(each not in head.table.members for each in commits):
        raise RemoteError(sender, "roster holds a stranger's commit, and the run is closed")
    return derive(statement, head, scope, commits, parts)


def derive(statement: Statement, head: Head, scope: Scope, commits: Mapping[PeerId, Statement], parts: int) -> Cast:
    """The cast that follows from checked commits: rows, reducers and the owner of every part."""
    table = head.table
    rows = tuple(each for each in commits if table.stands(each))
    if not rows or len(rows) > MAX_CONTRIBUTORS:
        raise RemoteError(statement.peer, f"roster with {len(rows)} contributors, 1 to {MAX_CONTRIBUTORS} are possible")
    if len(commits) - len(rows) > newcomers_room(table):
        raise RemoteError(statement.peer, "roster with more newcomers than there is room for")
    claims = {each: cast("Commit", commit.body) for each, commit in commits.items()}
    reducers = turns.reducers(table, scope, head.round + 1, {each: claims[each].direct for each in commits})
    lots = turns.tickets({each: claims[each].up if each in claims else 0 for each in reducers})
    hashes = [each.hash for each in commits.values()]
    return Cast(
        core=digest(b"roster", head.seal, *hashes),
        view=cast("Roster", statement.body).view,
        coordinator=statement.peer,
        commits=commits,
        rows=rows,
        reducers=tuple(reducers),
        owners=tuple(turns.owners(head.seal, hashes, lots, parts)),
    )


def _members(
    encoded: Sequence[bytes], scope: Scope, sender: PeerId, kind: type[Commit] | type[Ready]
) -> dict[PeerId, Statement]:
    """Decode attached statements of one kind, which must stand in strictly ascending order of their signers."""
    out: dict[PeerId, Statement] = {}
    last = ""
    for raw in encoded:
        statement = scope.decode(raw, sender=sender)
        if not isinstance(statement.body, kind) or statement.peer <= last:
            raise RemoteError(sender, f"roster's {kind.kind}s are mixed, doubled or out of order")
        last = statement.peer
        out[statement.peer] = statement
    return out


def _as_ready(statement: Statement, view: int, head: Hash) -> Ready:
    return Ready(view, head, cast("Ready", statement.body).commits)
