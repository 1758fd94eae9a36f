"""The chain of certified seals: what a peer keeps of it, and the way through it that it shows to others.

The chain keeps its last ``KEEP`` seals; of the older ones only those without which no chain of jumps (``walking``)
would lead from *every* remembered seal to the head, the newest final one, and the anchor. *Milestones* stay longer,
without their votes: whoever was invited with the hash of one trusts that hash, and needs only the seal and its table.

On top of a shrink seal one key can certify any table it likes. So what was fetched there says nothing about who votes,
and a seal is final only if the newest *sure* table agrees: that of the last head before, or of one computed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

from ..chain_payloads import MAX_LOCATOR, Link
from ..errors import LocalError
from .transfer import COMMON_KEPT, is_common
from .walking import Branch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..ids import Hash, PeerId
    from ..statements import Statement
    from .chain import Head

KEEP = 64
"""Newest seals that are kept with their certificates and tables."""
REMEMBERED = 4096
"""Newest seals whose hash and voters are remembered."""
MILESTONES = ((8, 512), (64, 4096))
"""(every so manieth round, for so many rounds): how long an invitation stays good."""
_DENSE = 16
_SHRINKS = 8
"""Newest shrink seals whose parents stand in a locator: where forks begin."""


@dataclass(frozen=True, slots=True)
class Milestone:
    """An old seal for whoever trusts its hash: proposal and table as ``Link.encode`` writes them, without votes."""

    seal: Hash
    round: int
    voters: Mapping[PeerId, float]
    link: bytes


@dataclass(frozen=True, slots=True)
class Image:
    """What a chain keeps, as it is written to a disk: heads and milestones, both oldest first, and the final seal."""

    heads: tuple[Head, ...]
    milestones: tuple[Milestone, ...] = ()
    final: Hash | None = None
    proof: tuple[Statement, ...] = ()
    zero: Hash | None = None
    """Seal 0, where it is known."""


class Chain:
    """Certified heads from an anchor to the current head; a seal's place is its round, which counts all seals."""

    def __init__(self, anchor: Head, rest: Iterable[Head] = (), milestones: Iterable[Milestone] = ()) -> None:
        """``rest``, ``milestones``: what an earlier chain on top of ``anchor`` kept; they are not checked again."""
        self._links: list[Head] = []
        self._milestones = {each.seal: each for each in milestones}
        self._past: dict[Hash, tuple[int, Mapping[PeerId, float]]] = {}
        for each in self._milestones.values():
            self._past[each.seal] = (each.round, self._same(each.voters))
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
    def image(self) -> Image:
        """All that is kept, to be written to a disk."""
        return Image(self.heads, tuple(self._milestones.values()), self._final, self._proof)

    @property
    def invited(self) -> tuple[Hash, int] | None:
        """The newest milestone that is final, and its round: what an invitation names; None in a young run."""
        final = self.final
        known = [each for each in self._milestones.values() if final is not None and each.round <= final.round]
        newest = max(known, key=lambda each: each.round, default=None)
        return (newest.seal, newest.round) if newest else None

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

    def at(self, round_number: int) -> Hash | None:
        """The seal of a round, while it is remembered."""
        return next((seal for seal, (number, _) in self._past.items() if number == round_number), None)

    def shown(self, seal: Hash) -> bytes | None:
        """A kept seal and its table for whoever knows its hash, as ``Link.encode`` writes them."""
        milestone = self._milestones.get(seal)
        if milestone is not None:
            return milestone.link
        head = self.find(seal)
        return _unvoted(head) if head is not None and head.proposal is not None else None

    def since(self, locator: Iterable[Hash]) -> tuple[Hash | None, list[Link]]:
        """What an asker lacks: the newest seal of its locator on this chain, and the links from there to the head.

        They jump where they may, but never over the child of that seal, the newest final seal, the head's parent,
        the last seals whose states everybody keeps and their parents.
        """
        start = next((each for each in locator if self._known(each)), None)
        known = self._known(start) if start else None
        if start is None or known is None:
            return None, []
        number, voters = known
        above = [each for each in self._links if each.round > number]
        stops = {index for index, each in enumerate(above) if each.seal == self._final or each.parent == start}
        lately = self.head.round - COMMON_KEPT
        common = {index for index, each in enumerate(above) if is_common(each) and each.round >= lately}
        stops |= {max(0, index - 1) for index in common} | common
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
        self._milestones = {name: each for name, each in self._milestones.items() if each.round <= ancestor.round}
        for head in heads:
            self._push(head)
        doubt = ancestor.round > self._sure.round
        sure = self._sure if doubt else ancestor
        self._sure = _surest(sure, heads, doubt=doubt)
        if branch.final is not None and branch.firmly_final(heads, sure):
            self.mark_final(branch.final, branch.proof)

    def fill(self, zero: Head, heads: Sequence[Head]) -> bool:
        """Put verified ``heads`` on top of seal 0 below what is kept; False where they do not lead here.

        Where it cannot be reached from what lies below, the oldest of what is kept goes.
        """
        place = next((place for place, each in enumerate(heads) if self._known(each.seal)), None)
        own = [each for each in self._links if each.votes]
        if place is None or not own:
            return False
        low = [each for each in heads[: place + 1] if each.round < own[0].round]
        top = low[-1] if low else zero
        reached = (at for at, each in enumerate(own) if each.parent == top.seal or _jumps(top.table.voters, each))
        at = next(reached, None)
        if at is None:
            low, at = list(heads[: place + 1]), sum(each.round <= heads[place].round for each in own)
        if self._final is not None and all(each.seal != self._final for each in own[at:]):
            return False
        self._links = [zero, *low, *own[at:]]
        below = {each.seal: (each.round, self._same(each.table.voters)) for each in (zero, *low)}
        self._past = {**below, **{seal: each for seal, each in self._past.items() if seal not in below}}
        return True

    def sizes(self) -> dict[str, int]:
        """How much is kept: links, remembered seals, different sets of voters among these."""
        return {
            "links": len(self._links),
            "seals": len(self._past),
            "voters": len({id(voters) for _, voters in self._past.values()}),
            "milestones": len(self._milestones),
        }

    def _link(self, head: Head) -> Link:
        assert head.proposal is not None  # only seal 0 has none, and it is never on top of anything
        return Link(head.proposal, head.votes, head.table, self._proof if head.seal == self._final else ())

    def _known(self, seal: Hash) -> tuple[int, Mapping[PeerId, float]] | None:
        kept = None if seal in self._past else self.find(seal)
        return (kept.round, kept.table.voters) if kept else self._past.get(seal)

    def _push(self, head: Head) -> None:
        voters = self._same(head.table.voters)
        self._links.append(head)
        self._past.pop(head.seal, None)  # a milestone of an earlier start: it counts by its place among the links
        self._past[head.seal] = (head.round, voters)
        if len(self._past) > REMEMBERED:
            del self._past[next(iter(self._past))]
        if head.proposal is not None and head.round % MILESTONES[0][0] == 0:
            self._milestones[head.seal] = Milestone(head.seal, head.round, voters, _unvoted(head))
            self._milestones = {
                name: each for name, each in self._milestones.items() if _lasts(each.round, head.round - each.round)
            }
        self._thin(len(self._links) - 1 - KEEP)

    def _same(self, voters: Mapping[PeerId, float]) -> Mapping[PeerId, float]:
        """These voters; as one object with those remembered last where nothing has changed."""
        before = next(reversed(self._past.values()))[1] if self._past else None
        return before if before is not None and before == voters else voters

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


def restored(head: Head, older: Iterable[Head] = (), saved: Image | None = None) -> Chain:
    """The chain that leads to ``head``, from what a disk held: its ``saved`` image, or else the ``older`` heads.

    The image may lack the head, or the checkpoint be of a round before its newest; of another branch nothing is taken.
    """
    known = saved.heads if saved else ()
    below = [each for each in known if each.round < head.round]
    if (
        saved is None
        or not below
        or not (head.parent == below[-1].seal or any(each.seal == head.seal for each in known))
    ):
        heads = lineage(head, [*known, *older])
        return Chain(heads[0], heads[1:])
    kept = [*below, head]
    chain = Chain(kept[0], kept[1:], [each for each in saved.milestones if _led_on(each, kept)])
    if saved.final is not None:
        chain.mark_final(saved.final, saved.proof)
    return chain


def _led_on(milestone: Milestone, heads: Sequence[Head]) -> bool:
    """Whether a way leads from it to the seal above it: what a disk held may have lost some."""
    above = next((each for each in heads if each.round > milestone.round), None)
    return above is not None and (above.parent == milestone.seal or _jumps(milestone.voters, above))


def _lasts(round_number: int, age: int) -> bool:
    return any(round_number % every == 0 and age < span for every, span in MILESTONES)


def _unvoted(head: Head) -> bytes:
    assert head.proposal is not None
    return Link(head.proposal, (), head.table).encode()


def _jumps(voters: Mapping[PeerId, float], head: Head) -> bool:
    """Whether a jump leads from a table with these voters to a seal."""
    return not head.shrinks and _two_thirds(voters, head.signers)


def _two_thirds(whole: Mapping[PeerId, float], some: Iterable[PeerId]) -> bool:
    # Exact, as in ``Table.is_quorum``: fsum rounds once.
    part = [whole[each] for each in set(some) if each in whole]
    return fsum([*part * 3, *[-weight for weight in whole.values()] * 2]) > 0
