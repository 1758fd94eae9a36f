"""What one peer knows of a cell: the head, its state, and everything about the round in flight."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from ..compression import get_codec
from ..turns import coordinator
from .effects import Effect, Flood, Phase, Push, Setting, Sign, Trouble, Vector, Window, Work
from .exchange import Encoded, Inbox, part_sizes

if TYPE_CHECKING:
    from ..ids import Hash, PeerId
    from ..messages import Body, Commit, Freeze, Seal
    from ..payloads import Want
    from ..statements import Scope, Statement
    from ..table import Table
    from .chain import Head
    from .reduction import Applied, Frozen, Reduced, Results
    from .roster import Cast

MISSED_CORES = 8
"""Cores for which bytes came too early that are remembered."""
PAST_SEALS = 64
"""Seals whose late messages are recognised as late."""


@dataclass
class Round:
    """The round in flight, filled in phase by phase; thrown away when its seal is adopted."""

    number: int
    view: int
    phase: str = "train"
    marks: list[tuple[str, float]] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    known: dict[Hash, Statement] = field(default_factory=dict)
    slots: dict[tuple[PeerId, str, bytes], Hash] = field(default_factory=dict)
    window: Window | None = None
    encoded: Encoded | None = None
    commits: dict[PeerId, Statement] = field(default_factory=dict)
    readys: dict[PeerId, Statement] = field(default_factory=dict)
    final: bool = False
    cast: Cast | None = None
    inbox: Inbox | None = None
    grams: dict[PeerId, Statement] = field(default_factory=dict)
    freeze: Hash | None = None
    frozen_short: Freeze | None = None
    """The freeze, if it came while parts were missing here: this peer restarted after it had signed its Gram."""
    results: Results | None = None
    roots: dict[PeerId, Hash] = field(default_factory=dict)
    frozen: Frozen | None = None
    reduced: Reduced | None = None
    applied: Applied | None = None
    left: Vector | None = None
    table: Table | None = None
    seal: Seal | None = None
    proposals: dict[Hash, Statement] = field(default_factory=dict)
    votes: dict[Hash, dict[PeerId, Statement]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settled:
    """What is kept of the round before, for a member that missed its end: statements in order, result bytes."""

    known: tuple[Statement, ...]
    results: Results


class Context:
    """Mutable state shared by the phases; effects gather in it until the machine hands them out."""

    def __init__(self, scope: Scope, me: PeerId, setting: Setting, head: Head, state: tuple[Vector, Vector]) -> None:
        self.scope, self.me, self.setting = scope, me, setting
        self.head = head
        self.params, self.momentum = state
        self.drift: Vector = np.zeros_like(state[0])
        self.before: Settled | None = None
        self.missed: dict[Hash, set[PeerId]] = {}
        self.served: Counter[tuple[PeerId, Hash]] = Counter()
        self.past: deque[Hash] = deque(maxlen=PAST_SEALS)
        self.round = Round(head.round + 1, head.view + 1)
        self.update_codec = get_codec(setting.update_codec)
        self.result_codec = get_codec(setting.result_codec)
        self.part_sizes = part_sizes(self.update_codec, setting.values)
        self.result_sizes = part_sizes(self.result_codec, setting.values)
        self._effects: list[Effect] = []

    def emit(self, effect: Effect) -> None:
        """Queue an effect for the caller of the machine."""
        self._effects.append(effect)

    def take(self) -> list[Effect]:
        """The queued effects, in order; the queue is empty afterwards."""
        effects, self._effects = self._effects, []
        return effects

    def enter(self, phase: str, now: float) -> None:
        """The round moves on to ``phase`` at ``now``."""
        self.round.phase = phase
        self.round.marks.append((phase, now))
        self.emit(Phase(self.round.number, phase))

    def once(self, what: str) -> bool:
        """True the first time it is asked in this round."""
        first = what not in self.round.asked
        self.round.asked.add(what)
        return first

    def sign(self, body: Body) -> None:
        """Ask for a signature under the journal."""
        self.emit(Sign(body))

    def work(self, effect: Work) -> None:
        """Ask for a computation."""
        self.emit(effect)

    def trouble(self, peer: PeerId, text: str) -> None:
        """Show a person that something is wrong."""
        self.emit(Trouble(peer, text))

    def accept(self, statement: Statement, source: PeerId | None) -> None:
        """Remember a valid statement and pass it on."""
        self.round.known[statement.hash] = statement
        self.emit(Flood(statement, source))

    def miss(self, core: Hash, sender: PeerId) -> None:
        """Note that bytes came for a core that is not known here, or not yet; see ``ask_again``."""
        if sender in self.head.table.members:
            self.missed.setdefault(core, set()).add(sender)
            while len(self.missed) > MISSED_CORES:
                del self.missed[next(iter(self.missed))]

    def ask_again(self, want: Want) -> None:
        """The core is known now: whose bytes came too early is asked to send them again."""
        for sender in sorted(self.missed.pop(want.core, set())):
            self.emit(Push(sender, "want", [want.encode()]))

    def first_in_slot(self, statement: Statement) -> bool:
        """Whether the signer said nothing else in this slot; a second face is shown, not believed."""
        slot = (statement.peer, statement.body.kind, statement.body.slot())
        first = self.round.slots.setdefault(slot, statement.hash)
        if first != statement.hash and self.once(f"faces {statement.peer}"):
            self.trouble(statement.peer, f"signed two {statement.body.kind}s for one slot")
        return first == statement.hash

    @property
    def own_commit(self) -> Commit | None:
        """What this peer has committed to in this round; the roster has the last word."""
        commits = self.round.cast.commits if self.round.cast else self.round.commits
        statement = commits.get(self.me)
        return cast("Commit", statement.body) if statement else None

    @property
    def sent(self) -> Encoded | None:
        """This peer's encoded update if it is what it committed to: after a restart it may be another."""
        encoded, commit = self.round.encoded, self.own_commit
        return encoded if encoded and commit and commit.root == encoded.tree.root else None

    @property
    def coordinator(self) -> PeerId:
        """Whose turn the view in flight is."""
        return coordinator(self.head.table, self.scope, self.round.view)

    @property
    def coordinates(self) -> bool:
        """Whether it is this peer's turn."""
        return self.coordinator == self.me
