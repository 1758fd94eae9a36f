"""The chain of certified seals: what a peer keeps of it, and how another one checks it.

A *jump* leads from a seal with a known table to a later one whose voters hold more than 2/3 of that table's weight
(protocol.md 6): whoever trusts the table trusts the seal, without those in between. The chain keeps its last ``KEEP``
seals; of the older ones only those without which no chain of jumps would lead from *every* remembered seal to the head,
the newest final one, and the anchor. A shrink seal is certified by fewer and can only be reached from its parent.

On top of a shrink seal one key can certify any table it likes. So what was fetched there says nothing about who votes,
and a seal is final only if the newest *sure* table agrees: that of the last head before, or of one computed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

from ..chain_payloads import MAX_LOCATOR, Link
from ..errors import LocalError, RemoteError
from ..messages import Ready, Seal, Vote
from .chain import Head, certifies, seal_hash
from .roster import shrink_due

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ..ids import Hash, PeerId
    from ..statements import Scope, Statement

KEEP = 64
"""Newest seals that are kept with their certificates and tables."""
REMEMBERED = 4096
"""Newest seals whose hash and voters are remembered."""
MAX_STEP = 1 << 20
"""Views for each round that is shown: years of failed ones. A key that goes on alone (5.10) must not lead whoever
follows it to the end of all views, below which it would never vote again."""
_DENSE = 16
_SHRINKS = 8
"""Newest shrink seals whose parents stand in a locator: where forks begin."""


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

    def then(self, more: Branch) -> Branch:
        """This branch with what was shown on top of it."""
        newest = more if more.final else self
        return Branch(self.heads + more.heads, newest.final, newest.proof)


class Chain:
    """Certified heads from an anchor to the current head; a seal's place is its round, which counts all seals."""

    def __init__(self, anchor: Head, rest: Iterable[Head] = ()) -> None:
        """``rest``: what ``heads`` of an earlier chain gave, on top of ``anchor``; it is not checked again."""
        self._links: list[Head] = []
        self._past: dict[Hash, tuple[int, Mapping[PeerId, float]]] = {}
        self._final: Hash | None = None
        self._proof: tuple[Statement, ...] = ()
        kept = (anchor, *rest)
        for head in kept:
            self._push(head)
        self._sure = _surest(anchor, kept[1:], doubt=False)

    @property
    def head(self) -> Head:
        """The newest seal."""
        return self._links[-1]

    @property
    def anchor(self) -> Head:
        """The seal that is trusted without proof."""
        return self._links[0]

    @property
    def heads(self) -> tuple[Head, ...]:
        """Every seal kept, oldest first."""
        return tuple(self._links)

    @property
    def final(self) -> Head | None:
        """The newest seal known to be final, if any."""
        return self.find(self._final) if self._final else None

    @property
    def proof(self) -> tuple[Statement, ...]:
        """The readys that make ``final`` so."""
        return self._proof

    def append(self, head: Head) -> None:
        """Add a certified child of the current head; raises LocalError for anything else."""
        if head.parent != self.head.seal:
            raise LocalError(f"seal {head.seal.hex()[:12]} is no child of the head")
        if self.agrees(head.signers):
            self._sure = head
        self._push(head)

    def agrees(self, peers: Iterable[PeerId]) -> bool:
        """Whether the head's table is beyond doubt, or these are more than 2/3 of the newest one that is."""
        return self._sure.seal == self.head.seal or self._sure.table.holds(peers, self._sure.round)

    def grow(self, head: Head) -> None:
        """Take the head again with more votes."""
        if head.seal == self.head.seal:
            self._links[-1] = head

    def mark_final(self, seal: Hash, proof: Sequence[Statement]) -> None:
        """Note the readys that make a kept seal final; older finals are let go."""
        head, before = self.find(seal), self.final
        if head is None or (before is not None and head.round <= before.round):
            return
        self._final, self._proof = seal, tuple(proof)
        if before is not None:
            self._thin(self._links.index(before))

    def position(self, seal: Hash) -> int | None:
        """The round of a seal of this chain, while it is remembered."""
        known = self._known(seal)
        return known[0] if known else None

    def find(self, seal: Hash) -> Head | None:
        """A kept seal with its table and certificate."""
        return next((each for each in reversed(self._links) if each.seal == seal), None)

    def locator(self) -> tuple[Hash, ...]:
        """Kept seals, newest first: dense, then with doubling gaps, the newest final, where forks begin, the anchor."""
        last = len(self._links) - 1
        back = [*range(_DENSE), *(_DENSE - 2 + (2 << step) for step in range(12))]
        shrinks = [index - 1 for index, head in enumerate(self._links) if head.shrinks][-_SHRINKS:]
        finals = [index for index, head in enumerate(self._links) if head.seal == self._final]
        chosen = {0, *finals, *shrinks, *(last - each for each in back if each <= last)}
        return tuple(self._links[index].seal for index in sorted(chosen, reverse=True))[:MAX_LOCATOR]

    def since(self, locator: Iterable[Hash]) -> tuple[Hash | None, list[Link]]:
        """What an asker lacks: the newest seal of its locator on this chain, and the links from there to the head.

        They jump where they may, but never over the child of that seal, the newest final seal or the head's parent.
        """
        start = next((each for each in locator if self._known(each)), None)
        known = self._known(start) if start else None
        if start is None or known is None:
            return None, []
        number, voters = known
        above = [each for each in self._links if each.round > number]
        stops = {index for index, each in enumerate(above) if each.seal == self._final or each.parent == start}
        here, path = -1, []
        for stop in sorted(stops | set(range(len(above))[-2:])):
            while here < stop:
                # The next kept one can always be reached: ``_spare`` saw to it.
                far = (index for index in range(stop, here + 1, -1) if _jumps(voters, above[index]))
                here = next(far, here + 1)
                voters = above[here].table.voters
                path.append(self._link(above[here]))
        return start, path

    def branch(self, seal: Hash) -> Branch:
        """What this chain keeps above a remembered seal; raises LocalError for an unknown one."""
        known = self._known(seal)
        if known is None:
            raise LocalError(f"seal {seal.hex()[:12]} is not on this chain")
        heads = tuple(each for each in self._links if each.round > known[0])
        shown = any(each.seal == self._final for each in heads)
        return Branch(heads, self._final, self._proof) if shown else Branch(heads)

    def switch(self, seal: Hash, branch: Branch) -> None:
        """Go over to a verified branch on top of a kept ``seal`` and take over its final seal where it is firm.

        Raises LocalError where that would leave a final seal, or lead to no new one.
        """
        heads, final = list(branch.heads), self.final
        ancestor = self.find(seal)
        while heads and (shared := self.find(heads[0].seal)):
            ancestor = shared
            heads.pop(0)
        if ancestor is None:
            raise LocalError(f"seal {seal.hex()[:12]} is not kept")
        if not heads:
            raise LocalError(f"seal {ancestor.seal.hex()[:12]} is on this chain already")
        if final is not None and final.round > ancestor.round:
            raise LocalError(f"seal {final.seal.hex()[:12]} is final and is not left")
        self._links = [each for each in self._links if each.round <= ancestor.round]
        self._past = {name: entry for name, entry in self._past.items() if entry[0] <= ancestor.round}
        for head in heads:
            self._push(head)
        doubt = ancestor.round > self._sure.round
        sure = self._sure if doubt else ancestor
        self._sure = _surest(sure, heads, doubt=doubt)
        if branch.final is not None and branch.firmly_final(heads, sure):
            self.mark_final(branch.final, branch.proof)

    def sizes(self) -> dict[str, int]:
        """How much is kept: links, remembered seals, different sets of voters among these."""
        return {
            "links": len(self._links),
            "seals": len(self._past),
            "voters": len({id(voters) for _, voters in self._past.values()}),
        }

    def _link(self, head: Head) -> Link:
        assert head.proposal is not None  # only seal 0 has none, and it is never on top of anything
        return Link(head.proposal, head.votes, head.table, self._proof if head.seal == self._final else ())

    def _known(self, seal: Hash) -> tuple[int, Mapping[PeerId, float]] | None:
        kept = None if seal in self._past else self.find(seal)
        return (kept.round, kept.table.voters) if kept else self._past.get(seal)

    def _push(self, head: Head) -> None:
        voters = head.table.voters
        if self._past:
            _, before = next(reversed(self._past.values()))
            voters = before if before == voters else voters
        self._links.append(head)
        self._past[head.seal] = (head.round, voters)
        if len(self._past) > REMEMBERED:
            del self._past[next(iter(self._past))]
        self._thin(len(self._links) - 1 - KEEP)

    def _thin(self, index: int) -> None:
        """Let an old link go if it can be spared, then those before it, which now have another successor."""
        while 0 < index < len(self._links) - KEEP and self._spare(index):
            del self._links[index]
            index -= 1

    def _spare(self, index: int) -> bool:
        """Whether every remembered seal from the link before this one on can jump to the one after it."""
        before, link, after = self._links[index - 1 : index + 2]
        if link.seal == self._final:
            return False
        between = {id(each): each for at, each in self._past.values() if before.round <= at < after.round}
        return all(_jumps(each, after) for each in (before.table.voters, *between.values()))


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


def _surest(sure: Head, heads: Iterable[Head], *, doubt: bool) -> Head:
    """The newest of heads that were fetched, on top of a ``sure`` one, whose table is beyond doubt.

    ``doubt``: there are others between. A shrink seal begins a doubt: those few may all lie about what follows.
    """
    for head in heads:
        doubt = doubt or head.shrinks
        if not doubt or sure.table.holds(head.signers, sure.round):
            sure, doubt = head, False
    return sure


def lineage(head: Head, older: Iterable[Head]) -> list[Head]:
    """``head`` and those of ``older``, both oldest first, that lead to it one by one: a disk may hold lost branches."""
    out = [head]
    for each in reversed([*older]):
        if out[0].parent == each.seal:
            out.insert(0, each)
    return out


def _jumps(voters: Mapping[PeerId, float], head: Head) -> bool:
    """Whether a jump leads from a table with these voters to a seal."""
    return not head.shrinks and _two_thirds(voters, head.signers)


def _two_thirds(whole: Mapping[PeerId, float], some: Iterable[PeerId]) -> bool:
    # Exact, as in ``Table.is_quorum``: fsum rounds once.
    part = [whole[each] for each in set(some) if each in whole]
    return fsum([*part * 3, *[-weight for weight in whole.values()] * 2]) > 0
