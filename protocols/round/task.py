"""The work of one roster core, from its Grams to the outcome (protocol.md 5.5 to 5.9)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from .shares import Shares

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..ids import PeerId
    from ..messages import Seal
    from ..statements import Statement
    from ..table import Table
    from .effects import Vector
    from .reduction import Applied, Frozen, Reduced
    from .results import Results, Share
    from .roster import Cast

TASKS_KEPT = 4
"""Rosters of one parent whose work is kept."""
CALLS_KEPT = 16
"""Views for which one task was called for that are remembered, the highest ones."""


@dataclass
class Task:
    """The work of one roster core. It does not name the view, so a later coordinator keeps it.

    A void round's task is done from the start: ``applied`` is the parent's state.
    """

    cast: Cast
    due: float
    """When a reducer sends its Gram whatever is missing."""
    span: float = 0.0
    """Seconds for the exchange (X of 5.5)."""
    grams: dict[PeerId, list[Statement]] = field(default_factory=dict)
    """At most two faces of each."""
    arrived: dict[PeerId, float] = field(default_factory=dict)
    """When a reducer's first Gram came."""
    delivered: Shares | None = None
    """The division by which every one of this peer's parts is pushed."""
    owing: tuple[int, list[PeerId]] | None = None
    """How many parts were here when it was last looked whose are missing, and whose."""
    summed: bool = False
    """This peer's own Gram is being made, or was."""
    froze: tuple[int, int] = (0, 0)
    """View and revision of the freeze that counts."""
    frozen: Frozen | None = None
    reduce_due: float = 0.0
    """When the results are due, from the freeze on."""
    results: Results | None = None
    served: dict[PeerId, float] = field(default_factory=dict)
    """When a reducer's last result root came."""
    reducing: set[Share] = field(default_factory=set)
    """This peer's shares that are being computed, or were."""
    reduced: dict[Share, Reduced] = field(default_factory=dict)
    applying: bool = False
    applied: Applied | None = None
    left: tuple[Vector, Vector] | None = None
    """(drift when the work began, what is left of it)."""
    seals: dict[int, tuple[Seal, Table]] = field(default_factory=dict)
    """The outcome by view of its proposal: turns that failed before it stand in the table."""
    called: dict[int, PeerId] = field(default_factory=dict)
    """Who called for it with a roster, by the roster's view."""

    @property
    def have(self) -> NDArray[np.bool_]:
        """[rows, parts] that go into the result: what the Grams call present, but no part from who kept it from others.

        A reducer that was put out after the freeze has its own row of its own parts, and perhaps nobody else has.
        """
        assert self.frozen is not None
        have = self.frozen.have.copy() if self.shares.left else self.frozen.have
        for who, part in self.shares.left:
            if who in self.cast.rows:
                have[self.cast.rows.index(who), part] = False
        return have

    def call(self, cast_: Cast) -> None:
        """A roster calls for this work, perhaps one of a later view."""
        self.called[cast_.view] = cast_.coordinator
        if len(self.called) > CALLS_KEPT:
            del self.called[min(self.called)]

    @property
    def told(self) -> tuple[object, ...]:
        """Names the results, once every root is known: freeze core, who was put out, roots."""
        results = self.results
        return () if results is None else (results.core, results.shares.out, *sorted(results.roots.items()))

    def taken(self, peer: PeerId) -> list[bool]:
        """The parts of a peer's update that go into the result."""
        rows = self.cast.rows
        return self.have[rows.index(peer)].tolist() if peer in rows else [False] * len(self.cast.owners)

    @property
    def shares(self) -> Shares:
        """Who reduces what now."""
        return self.results.shares if self.results is not None else self._first_shares

    @cached_property
    def _first_shares(self) -> Shares:
        return Shares(self.cast, ())
