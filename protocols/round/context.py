"""What one peer knows of a cell: the head, its state, and everything about the round in flight."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, cast

import numpy as np

from ..compression import get_codec
from ..outer import state_root
from ..turns import coordinator
from .ballots import Ballots
from .donating import Giving
from .effects import Effect, Flood, Phase, Push, Setting, Sign, Trouble, Vector, Window, Work
from .exchange import Encoded, Inbox, part_sizes
from .known import Known, Talk
from .loading import Joining
from .timing import stretch
from .trust import Trust

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..ids import Hash, PeerId
    from ..messages import Body, Commit, Leg, Seal
    from ..payloads import Want
    from ..statements import Scope, Statement
    from .chain import Head
    from .links import Chain
    from .loading import Sync
    from .results import Results
    from .roster import Cast
    from .task import Task

MISSED_CORES = 8
"""Cores for which bytes came too early that are remembered."""
TURNS_KEPT = 8
"""Views whose coordinator is remembered: to find it hashes every voter."""
HISTORY = 64
HISTORY_BYTES = 256 << 20
"""Rounds, and bytes of results, that are kept for peers that are behind."""
ROOTS_KEPT = 3
"""Parameters that are kept for forks, see ``Context.rooted``."""
LOST_HEADS = 8
"""Heads that are not looked at for a while."""
PARENTS_KEPT = 64
"""Seals whose late messages are recognised as late."""


@dataclass
class Round:
    """The round on top of the head; thrown away when the next seal is adopted."""

    number: int
    inbox: Inbox
    phase: str = "train"
    marks: list[tuple[str, float]] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    slots: dict[tuple[PeerId, str, bytes], Hash] = field(default_factory=dict)
    faced: set[PeerId] = field(default_factory=set)
    """Signers of two statements for one slot."""
    ready: int = 0
    """Highest view for which this peer has signed ready on this head."""
    barren: int = 0
    """Views in a row that this peer gave up without having seen a quorum of readys."""
    promised: Window | None = None
    """What the commit is made of."""
    encoded: Encoded | None = None
    carried: int = 0
    """Legs that the commit names."""
    commits: dict[PeerId, Statement] = field(default_factory=dict)
    second: dict[PeerId, Statement] = field(default_factory=dict)
    """Another commit of whoever signed two; it takes no part unless a roster that holds one alone is known."""
    pushed: set[tuple[PeerId, int]] = field(default_factory=set)
    """(to whom, part) of all that this peer has pushed: it stays good when other reducers are put out."""
    taken: float = 0.0
    """When the cast in force was taken."""
    cast: Cast | None = None
    roster: Statement | None = None
    """The statement that ``cast`` comes from."""
    tasks: dict[Hash, Task] = field(default_factory=dict)
    proposals: dict[Hash, Statement] = field(default_factory=dict)
    tally: bool = False
    """A vote, a proposal or an outcome came: votes are to be counted."""
    chases: int = 0
    chased: float = -inf
    """When bytes were last asked for again."""
    fed: dict[PeerId, float] = field(default_factory=dict)
    """When the last bytes of each peer came that were wanted."""
    behind: bool = False
    """Others had sealed this round before it began here."""
    unfair: set[int] = field(default_factory=set)
    """Views whose coordinator put out a reducer that had served."""

    @property
    def task(self) -> Task | None:
        """The work of the cast in force; None before a roster."""
        return None if self.cast is None else self.tasks.get(self.cast.core)

    def commits_of(self, base: Hash) -> Mapping[PeerId, Statement] | None:
        """The commits of a roster that is known here, by the cast's ``base``."""
        return next((task.cast.commits for task in self.tasks.values() if task.cast.base == base), None)


@dataclass(frozen=True, slots=True)
class Training:
    """A window that the trainer is at: its base, the drift it began with, when, and the round of ``parent``.

    ``stale``: this peer has jumped since, and the base is too far away.
    """

    parent: Hash
    drift: Vector
    since: float
    stale: bool = False
    round: int = 0


@dataclass(frozen=True, slots=True)
class Settled:
    """What is kept of a round for members that missed its end; ``parent`` is the seal it was made on."""

    parent: Hash
    known: Known
    results: Results | None


class Context:
    """Mutable state shared by the phases; effects gather in it until the machine hands them out."""

    def __init__(self, scope: Scope, me: PeerId, setting: Setting, chain: Chain, state: tuple[Vector, Vector]):
        """``chain``: its head is the certified seal that ``state`` (parameters, outer momentum) belongs to."""
        self.scope, self.me, self.setting = scope, me, setting
        self.chain, self.head = chain, chain.head
        self.trust = Trust(zero=self.head if self.head.proposal is None else None)
        self.params, self.momentum = state
        self.rooted: dict[Hash, Vector] = {self.head.seal: state[0]}
        """Parameters where a fork may lead back to: the last final one, and those that voters were lost on."""
        body = self.head.proposal.body if self.head.proposal else None
        self.state_root = cast("Seal", body).state if body else state_root(*state)
        self.drift: Vector = np.zeros_like(state[0])
        self.legs: list[Leg] = []
        self.training: Training | None = None
        # No window is trained any more; none for the time being; others can dial this peer, as far as is known.
        self.finishing, self.paused, self.direct = False, False, True
        self.view, self.signed_view = self.head.view + 1, 0
        self.known = Known(self.head.seal, self.head.votes)
        self.readys, self.votes = Ballots(), Ballots()
        self.highest = 0
        """The highest view that any voter was heard to be ready for."""
        self.heard: dict[PeerId, tuple[int, float]] = {}  # the same of each, and when
        self.final: Hash | None = None  # the last head that was seen to become final
        self.history: deque[Settled] = deque()
        self.parents: deque[Hash] = deque(maxlen=PARENTS_KEPT)
        self.neighbours: set[PeerId] = set()
        self.gone: dict[PeerId, float] = {}  # members whose stream closed, and since when
        self.missed: dict[Hash, set[PeerId]] = {}  # who sent bytes for a core that is not known here
        self.served: Counter[tuple[PeerId, Hash]] = Counter()  # times that each got bytes of a core
        self.talk = Talk()
        self.lost_heads: dict[Hash, float] = {}
        """Heads that lost the comparison with this chain, or whose state nobody has, and when."""
        self.lied: dict[PeerId, float] = {}
        """Donors that showed what does not hold, and when."""
        self.giving = Giving()
        self.joining = Joining(newcomer=self.head.round == 0 and not self.head.table.stands(me))
        self.sync: Sync | None = None
        self.moved = False
        """The head is another one: a new round is to be begun."""
        self.stirred = False
        """Something came that statements in the pool may have waited for."""
        self.diverged = False
        """A quorum has sealed what this peer does not compute: its state is to be fetched."""
        self.timers: dict[str, float] = {}
        self.next_tick = inf
        """No later than the earliest of them; a tick finds out."""
        self.update_codec = get_codec(setting.update_codec)
        self.part_sizes = part_sizes(self.update_codec, setting.values, setting.part)
        self.result_sizes = part_sizes(get_codec(setting.result_codec), setting.values, setting.part)
        self.ages: tuple[int, ...] = (0,) * len(self.part_sizes)
        self.round = self.new_round()
        self._turns: dict[int, PeerId] = {}
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
        if self.round.phase != phase or not self.round.marks:
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

    def work(self, key: str, about: bytes, run: Callable[[], object]) -> None:
        """Ask for a computation about a core; see ``effects.Work``."""
        self.emit(Work(key, self.head.seal, about, run))

    def push(self, to: PeerId, kind: str, payload: bytes) -> None:
        """Send a small frame to one peer."""
        self.emit(Push(to, kind, [payload]))

    def trouble(self, peer: PeerId, text: str) -> None:
        """Show a person that something is wrong."""
        self.emit(Trouble(peer, text))

    def set_timer(self, name: str, at: float, *, sooner: bool = False) -> None:
        """Ask for a tick at ``at``; with ``sooner`` an earlier one that is set already stays."""
        if not sooner or at < self.timers.get(name, inf):
            self.timers[name] = at
            self.next_tick = min(self.next_tick, at)

    def accept(self, statement: Statement, source: PeerId | None) -> None:
        """Remember a valid statement and pass it on."""
        if self.known.add(statement):
            self.emit(Flood(statement, source))

    def keep(self, store: Ballots, view: int, statement: Statement, *, needed: bool = False) -> bool:
        """Put a ready or vote into its store; False for a second one of its view, or where it has no room."""
        first = store.in_view(view).get(statement.peer)
        if first is not None and first.hash != statement.hash:
            self.shame(statement)
        if first is not None or not store.has_room(view, statement.peer, needed=needed):
            return False
        gone = store.add(view, statement, needed=needed)
        if gone is not None:
            self.known.drop(gone.hash)
        return True

    def first_in_slot(self, statement: Statement) -> bool:
        """Whether the signer said nothing else in this slot; a second face is shown, not believed."""
        slot = (statement.peer, statement.body.kind, statement.body.slot())
        first = self.round.slots.setdefault(slot, statement.hash) == statement.hash
        if not first:
            self.shame(statement)
        return first

    def shame(self, statement: Statement) -> None:
        """Note that somebody signed two statements for one slot."""
        self.round.faced.add(statement.peer)
        if self.once(f"faces {statement.peer}"):
            self.trouble(statement.peer, f"signed two {statement.body.kind}s for one slot")

    def pass_over(self, head: Hash, now: float) -> None:
        """Do not look at this head again for a while."""
        self.lost_heads[head] = now
        while len(self.lost_heads) > LOST_HEADS:
            del self.lost_heads[next(iter(self.lost_heads))]

    def miss(self, core: Hash, sender: PeerId) -> None:
        """Note that bytes came for a core that is not known here, or not yet; see ``ask_again``."""
        if sender in self.head.table.members:
            self.missed.setdefault(core, set()).add(sender)
            while len(self.missed) > MISSED_CORES:
                del self.missed[next(iter(self.missed))]

    def ask_again(self, want: Want) -> None:
        """The core is known now: whose bytes came too early is asked to send them again."""
        for sender in sorted(self.missed.pop(want.core, set())):
            self.push(sender, "want", want.encode())

    @property
    def failed(self) -> int:
        """Views that came to nothing since the head."""
        return max(0, self.view - self.head.view - 1)

    @property
    def stretch(self) -> float:
        """The factor on all allowances."""
        return stretch(self.setting.timing, self.failed)

    @property
    def deciding(self) -> bool:
        """Whether it has no chain of its own to go by: as a newcomer, or because a person chose another one."""
        return self.head.proposal is None or self.trust.anchor is not None

    @property
    def waits(self) -> bool:
        """Whether seal 0 is known not to be what it may build on: it takes no part before it has another head."""
        return self.head.proposal is None and (self.trust.anchor is not None or self.trust.halted)

    @property
    def votes_here(self) -> bool:
        """Whether this peer is a voter."""
        return self.head.table.stands(self.me)

    @property
    def own_commit(self) -> Commit | None:
        """What this peer has committed to in this round; the roster has the last word."""
        cast_ = self.round.cast
        commits = cast_.commits if cast_ is not None and not cast_.void else self.round.commits
        statement = commits.get(self.me)
        return cast("Commit", statement.body) if statement else None

    def sent_in(self, cast_: Cast) -> Encoded | None:
        """This peer's encoded update if it is what the roster holds: after a restart it may be another."""
        encoded = self.round.encoded
        here = encoded is not None and self.me in cast_.commits and cast_.commit(self.me).root == encoded.tree.root
        return encoded if here else None

    def turn(self, view: int) -> PeerId:
        """Whose turn a view is under the head's table."""
        if view not in self._turns:
            if len(self._turns) > TURNS_KEPT:
                self._turns.clear()
            self._turns[view] = coordinator(self.head.table, self.scope, view)
        return self._turns[view]

    @property
    def coordinator(self) -> PeerId:
        """Whose turn the view in flight is."""
        return self.turn(self.view)

    def root(self, seal: Hash, *, final: bool) -> None:
        """Keep the parameters of the head as of ``seal``; a final one needs no older ones."""
        if final:
            self.rooted.clear()
        elif len(self.rooted) >= ROOTS_KEPT:
            del self.rooted[[*self.rooted][1]]
        self.rooted[seal] = self.params

    def new_round(self) -> Round:
        """Nothing yet on top of the head."""
        return Round(self.head.round + 1, Inbox(self.scope, self.head.seal, self.setting))

    def move_head(self, head: Head) -> None:
        """Take another head: all that hung on the table of the one before goes."""
        self.head = head
        self._turns.clear()
        for store in (self.readys, self.votes):
            store.forget(head.view, head.table)
        # With the head's votes: late ones make the certificates equal.
        self.known = Known(head.seal, [*head.votes, *self.readys, *self.votes])
        for peer in (self.gone.keys() | self.heard.keys()) - head.table.members.keys():
            self.gone.pop(peer, None)
            self.heard.pop(peer, None)
        self.missed.clear()
        self.served.clear()
