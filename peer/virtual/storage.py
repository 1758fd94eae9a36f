"""What of a virtual peer outlives its process: its key, its signing journal, its checkpoints."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocols.ids import Hash, digest
from protocols.messages import Body, Ready

if TYPE_CHECKING:
    from protocols.round.effects import Sealed, Window
    from protocols.round.links import Image
    from protocols.state_payloads import StateChunk
    from protocols.statements import Scope, Statement

    from ..identity import Identity

CHECKPOINTS = 2
ROUNDS_KEPT = 8
"""Rounds whose signed statements stay; a machine never goes back further."""


@dataclass
class Journal:
    """Signs for one key: what a slot already holds is never signed anew (protocol.md 5.2)."""

    signed_view: int = 0
    """Highest view for which a ready was signed."""
    entries: dict[bytes, tuple[int, Statement]] = field(default_factory=dict)

    def sign(self, scope: Scope, identity: Identity, body: Body, round_number: int) -> Statement:
        """The statement for ``body``, or the older one that its slot holds."""
        key = digest(body.kind.encode(), body.slot())
        held = self.entries.get(key)
        if held is None:
            held = self.entries[key] = round_number, scope.state(identity.peer, body, identity.sign)
            if isinstance(body, Ready):
                self.signed_view = max(self.signed_view, body.view)
        return held[1]

    def forget_before(self, round_number: int) -> None:
        """Drop what was signed in rounds long over."""
        for key, (number, _) in list(self.entries.items()):
            if number >= round_number - ROUNDS_KEPT:
                break
            del self.entries[key]


@dataclass
class Disk:
    """The home of one key."""

    identity: Identity
    journal: Journal = field(default_factory=Journal)
    checkpoints: deque[Sealed] = field(default_factory=lambda: deque(maxlen=CHECKPOINTS))
    pending: dict[Hash, Window] = field(default_factory=dict)
    """Windows that were committed, by the commit's parent: taken up again after a restart."""

    part: list[StateChunk] = field(default_factory=list)
    """Chunks of the state that is being loaded."""

    chain: Image | None = None
    """What the chain kept when the last checkpoint was written."""

    def save_pending(self, parent: Hash, window: Window) -> None:
        """What a commit promises is on the disk before the promise."""
        self.pending[parent] = window
        while len(self.pending) > CHECKPOINTS:
            del self.pending[next(iter(self.pending))]

    def save(self, sealed: Sealed) -> None:
        """A checkpoint."""
        self.checkpoints.append(sealed)
        self.journal.forget_before(sealed.head.round)
