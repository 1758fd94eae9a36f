"""Checking a chain that somebody shows: from a trusted seal, link by link, to a branch of certified seals.

A link is a child of the seal before it, or a *jump*: a later seal whose voters hold more than 2/3 of the last verified
table's weight (protocol.md 6). Whoever trusts the table trusts the seal, without those in between. A shrink seal is
certified by fewer, so it can only be reached from its parent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import RemoteError
from ..messages import Ready, Seal, Vote
from .chain import Head, certifies, seal_hash
from .roster import shrink_due

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ..chain_payloads import Link
    from ..ids import Hash, PeerId
    from ..statements import Scope, Statement

MAX_STEP = 1 << 20
"""Views for each round that is shown: years of failed ones. A key that goes on alone (5.10) must not lead whoever
follows it to the end of all views, below which it would never vote again."""

LONGEST = 1024
"""Seals of a branch: a chain keeps fewer, but on top of a shrink seal one key could go on for ever."""
LONGEST_BYTES = 32 << 20
"""The same in bytes that came in."""


@dataclass(frozen=True)
class Branch:
    """Seals above a common ancestor, in order, and the newest one shown final with the readys that show it."""

    heads: tuple[Head, ...]
    final: Hash | None = None
    proof: tuple[Statement, ...] = ()

    @property
    def shrinks(self) -> bool:
        """Whether it goes on without members: to follow it on sight is wrong while one's own quorum works (5.10)."""
        return any(each.shrinks for each in self.heads)

    def firmly_final(self, heads: Sequence[Head], fork: Head) -> bool:
        """Whether ``final`` is among these of its ``heads`` on top of ``fork`` and firm, so that it counts for others.

        Each firm seal was voted for by more than 2/3 of the voters and lost of the firm one before, ``fork`` the first.
        """
        firm = fork
        for head in heads:
            if firm.table.holds(head.signers, firm.round):
                firm = head
            if head.seal == self.final:
                return firm is head or firm.table.holds({each.peer for each in self.proof}, firm.round)
        return False

    def upto(self, seal: Hash) -> Branch:
        """This branch as far as one of its seals."""
        place = next(index for index, each in enumerate(self.heads) if each.seal == seal)
        heads = self.heads[: place + 1]
        shown = any(each.seal == self.final for each in heads)
        return Branch(heads, self.final, self.proof) if shown else Branch(heads)

    def shows(self, seal: Hash) -> bool:
        """Whether this is one of its seals."""
        return any(each.seal == seal for each in self.heads)

    def then(self, more: Branch) -> Branch:
        """This branch with what was shown on top of it."""
        newest = more if more.final else self
        return Branch(self.heads + more.heads, newest.final, newest.proof)


def walk(scope: Scope, start: Head, links: Iterable[Link], *, sender: str) -> Branch:
    """Check the links that ``sender`` showed on top of ``start``, one after another; raises RemoteError naming it.

    The heads of jumps have no ``parent_table``.
    """
    here, heads, final = start, [], Branch(())
    for link in links:
        here = _step(scope, here, link, sender)
        heads.append(here)
        if link.final and not is_final(here, link.final):
            raise RemoteError(sender, f"shows seal {here.seal.hex()[:12]} as final, and it is not")
        if link.final:
            final = Branch((), here.seal, link.final)
    return Branch(tuple(heads), final.final, final.proof)


def open_seal(scope: Scope, seal: Hash, link: Link, *, sender: str) -> Head:
    """The seal of that hash, and its table, out of what ``sender`` showed; raises RemoteError naming it.

    Nothing else of it is looked at: whoever names the hash trusts it.
    """
    body = link.proposal.body
    if not isinstance(body, Seal) or seal_hash(scope, body) != seal:
        raise RemoteError(sender, f"shows something else as seal {seal.hex()[:12]}")
    if body.table != link.table.root:
        raise RemoteError(sender, f"shows seal {seal.hex()[:12]} with another table")
    return Head(seal, body.view, body.round, link.table, link.proposal, ())


def is_final(head: Head, readys: Iterable[Statement]) -> bool:
    """Whether these readys make a seal final: for the very next view, with it as head, by voters and lost (5.9).

    A later view would not do: its signer may have voted for another child of the parent before it knew this seal.
    """
    agreed = {each.peer for each in readys if _names(each, head)}
    return head.table.holds(agreed, head.round)


def certified(parent: Head, body: Seal, voters: Collection[PeerId]) -> bool:
    """Whether votes of ``voters`` certify a child of ``parent``; for a shrink seal, also whether it was due (5.10)."""
    if body.lost:
        left = [each for each in parent.table.voters if each not in body.lost]
        named = all(parent.table.stands(each) for each in body.lost)
        due = shrink_due(parent, body.view, left) and not parent.table.is_quorum(left)
        if not (body.void and named and due):
            return False
    return certifies(parent.table, body.lost, voters)


def _step(scope: Scope, parent: Head, link: Link, sender: str) -> Head:
    body = link.proposal.body
    if not isinstance(body, Seal):
        raise RemoteError(sender, "chain with a link that is no seal")
    name = seal_hash(scope, body)
    child = body.parent == parent.seal
    what = f"seal {name.hex()[:12]} of round {body.round}"
    rounds = body.round - parent.round
    if (rounds != 1 if child else rounds < 2) or not 0 < body.view - parent.view <= rounds * MAX_STEP:
        raise RemoteError(sender, f"{what} does not follow round {parent.round}")
    if body.table != link.table.root:
        raise RemoteError(sender, f"{what} comes with another table")
    voters = {each.peer for each in link.votes}
    if len(voters) != len(link.votes) or any(each.body != Vote(body.view, name) for each in link.votes):
        raise RemoteError(sender, f"{what} comes with votes for something else, or twice")
    if child and not all(parent.table.stands(each) for each in voters):
        raise RemoteError(sender, f"{what} comes with votes of strangers")
    if body.lost and not child:
        raise RemoteError(sender, f"{what} goes on without members, and its parent is not shown")
    if not certified(parent, body, voters):
        raise RemoteError(sender, f"{what} lacks a quorum of votes")
    known = parent.table if child else None
    return Head(name, body.view, body.round, link.table, link.proposal, link.votes, known)


def _names(statement: Statement, head: Head) -> bool:
    body = statement.body
    return isinstance(body, Ready) and (body.view, body.head, body.head_view) == (head.view + 1, head.seal, head.view)
