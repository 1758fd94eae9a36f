"""Readys or votes by view and signer, a bounded number of each signer's (protocol.md 5.2: one for each view)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..ids import PeerId
    from ..statements import Statement
    from ..table import Table

VIEWS_KEPT = 8
"""Of one signer those of its highest views are kept."""
_NONE: Mapping[PeerId, Statement] = {}


class Ballots:
    """One statement of each signer for each view."""

    def __init__(self) -> None:
        self._views: dict[int, dict[PeerId, Statement]] = {}
        self._signers: dict[PeerId, list[int]] = {}
        self._needed: set[tuple[int, PeerId]] = set()

    def __len__(self) -> int:
        return sum(map(len, self._views.values()))

    def __iter__(self) -> Iterator[Statement]:
        for view in sorted(self._views):
            yield from self._views[view].values()

    def in_view(self, view: int) -> Mapping[PeerId, Statement]:
        """By signer; not to be changed."""
        return self._views.get(view, _NONE)

    def has_room(self, view: int, peer: PeerId, *, needed: bool = False) -> bool:
        """Whether one more of this signer would be kept; one that is ``needed`` now is kept in any case."""
        spare = self._spare(peer)
        return needed or len(self._signers.get(peer, [])) < VIEWS_KEPT or bool(spare and view > spare[0])

    def add(self, view: int, statement: Statement, *, needed: bool = False) -> Statement | None:
        """Keep a signer's first one for a view, which has room; returns another one of it that had to go.

        It is that of the lowest view. But whoever is far behind ``needs`` low views, and hears of high ones all the
        time: what is needed pushes out what is highest, and stays.
        """
        own, gone = self._signers.get(statement.peer, []), None
        if len(own) >= VIEWS_KEPT:
            spare = self._spare(statement.peer) or own
            gone = self._remove(spare[-1 if needed else 0], statement.peer)
        self._signers[statement.peer] = sorted([*self._signers.get(statement.peer, []), view])
        self._views.setdefault(view, {})[statement.peer] = statement
        if needed:
            self._needed.add((view, statement.peer))
        return gone

    def _spare(self, peer: PeerId) -> list[int]:
        return [view for view in self._signers.get(peer, []) if (view, peer) not in self._needed]

    def forget(self, view: int, table: Table) -> None:
        """Drop what is not above ``view``, and of whoever does not vote any more."""
        for peer, own in list(self._signers.items()):
            for each in [each for each in own if each <= view or not table.stands(peer)]:
                self._remove(each, peer)

    def _remove(self, view: int, peer: PeerId) -> Statement:
        own = self._signers[peer]
        own.remove(view)
        self._needed.discard((view, peer))
        if not own:
            del self._signers[peer]
        found = self._views[view].pop(peer)
        if not self._views[view]:
            del self._views[view]
        return found
