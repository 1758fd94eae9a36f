"""Who reduces which parts after some reducers were put out between freeze and seal (protocol.md 5.7)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..ids import PeerId
    from .roster import Cast


@dataclass(frozen=True)
class Shares:
    """The division of a cast's parts when ``out`` were put out one after another.

    Parts go to the next in their own order, so nobody else's change, and results that are here stay good.
    """

    cast: Cast
    out: tuple[PeerId, ...]

    @cached_property
    def _stages(self) -> list[tuple[PeerId, ...]]:
        return [self.cast.owners, *(self.cast.inherit(self.out[:stage]) for stage in range(1, len(self.out) + 1))]

    @property
    def possible(self) -> bool:
        """Whether somebody is left to reduce."""
        return bool(self._stages[-1])

    @cached_property
    def holders(self) -> list[tuple[PeerId, int]]:
        """For each part, its reducer and the stage at which it got it."""
        final = self._stages[-1]
        return [
            (owner, next(stage for stage, owners in enumerate(self._stages) if owners[index] == owner))
            for index, owner in enumerate(final)
        ]

    @cached_property
    def left(self) -> list[tuple[PeerId, int]]:
        """(who, part): who held a part before it was put out. Its own row of it may have gone with it."""
        return [
            (owner, index)
            for index, (_, stage) in enumerate(self.holders)
            for owner in sorted({owners[index] for owners in self._stages[:stage]})
        ]

    @cached_property
    def parts(self) -> dict[tuple[PeerId, int], list[int]]:
        """Every share that counts, in order of peer and stage, and its parts, ascending."""
        out: dict[tuple[PeerId, int], list[int]] = {}
        for index, share in enumerate(self.holders):
            out.setdefault(share, []).append(index)
        return {share: out[share] for share in sorted(out)}

    def of(self, peer: PeerId) -> frozenset[int]:
        """All parts of one reducer."""
        return self._owned.get(peer, frozenset())

    @cached_property
    def _owned(self) -> dict[PeerId, frozenset[int]]:
        out: dict[PeerId, set[int]] = {}
        for (owner, _), parts in self.parts.items():
            out.setdefault(owner, set()).update(parts)
        return {owner: frozenset(parts) for owner, parts in out.items()}
