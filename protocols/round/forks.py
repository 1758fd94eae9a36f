"""Fork choice: which of two branches of certified seals wins (protocol.md 5.12).

Two branches part at a common ancestor E with table T.

1. A branch that shows a final seal above E wins; who holds a final seal never leaves it. Proof: the readys for the view
   after that seal, with it as head, by ``Table.holds`` under its own table. On top of a shrink seal one key can certify
   any table it likes, so the proof counts for others only where the seal is firm (``Branch.firmly_final``).
2. A branch with a seal that more than 2/3 of T's voters, or of its voters and lost, voted for beats one without. Both:
   the one whose highest such seal has the higher view; that is the head which a quorum of readys would name. Were the
   lost always counted in the whole, an older seal with a few votes more would draw peers away from a final one.
3. More weight of T's voters and lost at the first seals above E. Who voted for both counts for both, which is for
   neither: to count it for its later vote alone could go round in circles among three branches. Then the higher view.
4. The smaller hash of the first seal.

What both show is cut off first, so that E is where they part. All but "never leaves" is one order of keys: transitive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .chain import Head
    from .walking import Branch


def prefer(ours: Branch, theirs: Branch, ancestor: Head) -> bool:
    """Whether to leave our branch for theirs, both above ``ancestor``."""
    fork, mine, other = part(ours.heads, theirs.heads, ancestor)
    if not mine or not other:
        return bool(other)
    if any(each.seal == ours.final for each in mine):
        return False
    return theirs.firmly_final(other, fork) or _rank(other, fork) > _rank(mine, fork)


def outranks(one: Branch, other: Branch, ancestor: Head) -> bool:
    """Whether ``one`` wins for whoever is on neither, both above ``ancestor``."""
    fork, mine, theirs = part(one.heads, other.heads, ancestor)
    if not mine or not theirs:
        return bool(mine)
    finals = one.firmly_final(mine, fork), other.firmly_final(theirs, fork)
    return finals[0] if finals[0] != finals[1] else _rank(mine, fork) > _rank(theirs, fork)


def unranked(one: Branch, other: Branch, ancestor: Head) -> Head | None:
    """The seal above which two branches part that each show a firm final one there: a person has to choose."""
    fork, mine, theirs = part(one.heads, other.heads, ancestor)
    both = one.firmly_final(mine, fork) and other.firmly_final(theirs, fork)
    return fork if both else None


def part(ours: Sequence[Head], theirs: Sequence[Head], ancestor: Head) -> tuple[Head, Sequence[Head], Sequence[Head]]:
    """The newest seal that both have, and what each has above it."""
    places = {each.seal: index for index, each in enumerate(ours)}
    for index in range(len(theirs) - 1, -1, -1):
        place = places.get(theirs[index].seal)
        if place is not None:
            return ours[place], ours[place + 1 :], theirs[index + 1 :]
    return ancestor, ours, theirs


def _rank(heads: Sequence[Head], fork: Head) -> tuple[int, float, int, int]:
    table, first = fork.table, heads[0]
    agreed = [each for each in heads if table.is_quorum(each.signers) or table.holds(each.signers, fork.round)]
    highest = max((each.view for each in agreed), default=-1)
    return highest, table.lasting(first.signers, fork.round), first.view, -int.from_bytes(first.seal, "big")
