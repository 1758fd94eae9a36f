"""The round machine: statements, bytes, windows and ticks in, effects out; no clock, no I/O, no randomness.

Protocol.md section 5. Handlers note what came, then ``_step`` goes on as far as that allows. A statement that
does not fit *yet* waits in a bounded pool and is tried again when something it may have waited for has come.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, cast

from ..errors import LocalError, RemoteError
from ..ids import Hash, PeerId
from ..messages import Commit, Gram, Ready, Vote
from . import (
    donating,
    exchanging,
    filling,
    gathering,
    gossip,
    histories,
    loading,
    opinions,
    reducing,
    rostering,
    syncing,
    views,
    voting,
)
from .context import Context
from .dispatch import HANDLERS, PATIENT, TIMERS, answer_early, on_frame, read
from .effects import Effect, History, Setting, Trouble, Vector, Window, Work
from .links import Image, restored
from .looking import LOOKED_AT
from .pool import STRANGERS, Pool
from .status import sizes, waits_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..payloads import Pieces
    from ..state_payloads import StateChunk
    from ..statements import Scope, Statement
    from .chain import Head
    from .donating import Donating
    from .exchange import Encoded
    from .roster import Cast


class Machine:
    """One peer's part in one cell. Every method returns effects to carry out in order.

    ``now`` is monotonic seconds. Calls must not overlap.
    """

    def __init__(  # noqa: PLR0913 - what a restart brings back comes by name
        self,
        scope: Scope,
        me: PeerId,
        setting: Setting,
        head: Head,
        state: tuple[Vector, Vector],
        *,
        signed_view: int = 0,
        links: Sequence[Head] = (),
        ages: Sequence[int] = (),
        part: Hash | None = None,
        past: Image | None = None,
        zero: Head | None = None,
        anchor: tuple[Hash, int] | None = None,
        followed: Head | None = None,
    ) -> None:
        """``state`` = (parameters, outer momentum), float32 [setting.values] each, as of ``head``.

        After a restart: ``signed_view``, the highest view this key has signed ready for; ``links``, older heads, oldest
        first, of which those count that lead to this one; ``ages``, for each part the seals in a row that have not
        taken its drift; ``part``, the seal of whose state the disk holds chunks (``effects.LoadPart``); ``past``, what
        the chain kept, and ``zero``, seal 0, from which newcomers will ask for it.

        ``anchor``, the seal and round of an invitation: without a state of its own this peer believes nothing below
        it. ``followed``: a seal that a person chose (``effects.Followed``), to be reached whatever is final here.
        """
        self._ctx = Context(scope, me, setting, restored(head, links, past), state)
        self._ctx.trust.start(zero, anchor if head.proposal is None else None)
        if followed is not None and self._ctx.chain.position(followed.seal) is None:
            self._ctx.trust.follow(followed)
        self._ctx.signed_view = signed_view
        if ages:
            self._ctx.ages = tuple(ages)
        self._ctx.joining.part = part
        self._pool = Pool()

    @property
    def head(self) -> Head:
        """The certified seal this peer builds on."""
        return self._ctx.head

    @property
    def me(self) -> PeerId:
        """The peer whose machine this is."""
        return self._ctx.me

    @property
    def window(self) -> Window | None:
        """What this round's commit promises: the drift, and the training in it."""
        return self._ctx.round.promised

    @property
    def view(self) -> int:
        """The view in flight."""
        return self._ctx.view

    @property
    def coordinator(self) -> PeerId:
        """Whose turn the view in flight is."""
        return self._ctx.coordinator

    @property
    def cast(self) -> Cast | None:
        """Who takes part in the round in flight, once that is fixed."""
        return self._ctx.round.cast

    @property
    def level(self) -> bool:
        """Whether most neighbours that said where they stand, and at least one, are no further than this peer."""
        told = [each for each in self._ctx.neighbours if each in self._ctx.talk.heads]
        return 2 * len(gossip.ahead(self._ctx)) < len(told)

    @property
    def all_ready(self) -> bool:
        """Whether every voter is ready on top of the head: nobody needs this peer's votes or bytes any more."""
        on_head = {each.peer for each in self._ctx.readys if cast("Ready", each.body).head == self.head.seal}
        return all(each in on_head for each in self.head.table.voters)

    def start(self, now: float, drift: Vector | None = None) -> list[Effect]:
        """Begin on the head; ``drift`` is what was trained and not sealed before a restart."""
        if drift is not None:
            self._ctx.drift = drift
        donating.keep_common(self._ctx, now)
        filling.begin(self._ctx, now)
        if self._ctx.waits:
            self._ctx.enter("train", now)
        else:
            gathering.begin(self._ctx, now)
        gossip.beat(self._ctx, now)
        return self._finish_step(now)

    def trained(self, parent: Hash, window: Window, now: float) -> list[Effect]:
        """The trainer finished the window that ``Train`` asked for on top of ``parent``: encode, then commit."""
        if self._ctx.waits:
            self._ctx.training = None
            return self._ctx.take()
        gathering.on_trained(self._ctx, parent, window, now)
        return self._finish_step(now)

    def receive(self, statement: Statement, source: PeerId | None, now: float) -> list[Effect]:
        """A decoded statement from neighbour ``source`` (None: one's own, from the journal).

        Raises RemoteError naming the peer at fault when no honest peer would have sent it.
        """
        if self._ctx.waits or statement.hash in self._ctx.known or self._pool.holds(statement):
            return self._ctx.take()
        if self._place(statement, source, now):
            return self._finish_step(now, step=self._moves(statement, now))
        return self._ctx.take()

    def _moves(self, statement: Statement, now: float) -> bool:
        """Whether this peer may go on by it. Votes are only counted, others' readys are the coordinator's affair."""
        ctx = self._ctx
        if isinstance(statement.body, Ready) and statement.peer != ctx.me:
            return ctx.coordinator == ctx.me or views.is_gone(ctx, ctx.coordinator, now)
        return not isinstance(statement.body, Vote)

    def read(self, sender: PeerId, kind: str, payload: bytes) -> bytes | Pieces:
        """The slow part of ``payload``, which takes what this gives; for any thread, at any time."""
        return read(self._ctx, sender, kind, payload) if kind in LOOKED_AT else payload

    def payload(self, sender: PeerId, kind: str, payload: bytes | Pieces, now: float) -> list[Effect]:
        """Any unsigned frame from ``sender``; raises RemoteError naming it."""
        ctx = self._ctx
        on_frame(ctx, sender, kind, payload, now)
        return self._finish_step(now) if kind in {"parts", "results", "chain", "state"} else ctx.take()

    def done(self, work: Work, value: object, now: float) -> list[Effect]:
        """The value of a ``Work`` effect; one for another parent than the head's is dropped."""
        ctx = self._ctx
        if work.key == "snapshot":
            donating.on_hashed(ctx, work.about)
            return ctx.take()
        if work.parent != ctx.head.seal:
            return []
        if work.key == "encode":
            gathering.on_encoded(ctx, cast("Encoded", value))
        elif work.key == "gram":
            ctx.sign(cast("Gram", value))
        elif work.key == "freeze":
            exchanging.on_frozen(ctx, work.about, cast("Any", value))
        elif work.key == "reduce":
            reducing.on_reduced(ctx, work.about, cast("Any", value))
        elif work.key == "apply":
            reducing.on_applied(ctx, work.about, value, now)
        else:
            raise LocalError(f"nobody asked for {work.key!r}")
        return self._finish_step(now)

    def resumed(self, chunks: Iterable[StateChunk], now: float) -> list[Effect]:
        """What ``LoadPart`` asked for: chunks that came before a restart, none of them believed."""
        syncing.on_resumed(self._ctx, chunks, now)
        return self._finish_step(now)

    @property
    def donating(self) -> Donating:
        """How busy this peer is giving its state to others."""
        return donating.figures(self._ctx)

    @property
    def chain(self) -> Image:
        """What this peer keeps of the chain, to be written to a disk."""
        zero = self._ctx.trust.zero
        return replace(self._ctx.chain.image, zero=zero.seal if zero else None)

    @property
    def anchor(self) -> tuple[Hash, int] | None:
        """A final seal and its round for invitations: good for at least 512 rounds; None in a young run."""
        return self._ctx.chain.invited

    @property
    def held(self) -> str:
        """Why this peer takes no part in rounds yet, in words; empty where it does."""
        if not self._ctx.waits:
            return ""
        return "the run has several histories" if self._ctx.trust.halted else "looking for the invitation's seal"

    @property
    def histories(self) -> tuple[History, ...]:
        """Histories of the run that no rule ranks, as far as this peer knows them."""
        return self._ctx.trust.histories

    def follow(self, seal: Hash, now: float) -> list[Effect]:
        """A person chose among ``histories`` by the newest seal of one; raises LocalError for any other seal."""
        ctx = self._ctx
        peer = histories.follow(ctx, seal)
        if peer is not None:
            loading.give_up(ctx)
            opinions.consider(ctx, (peer,), now)
        return self._finish_step(now)

    def deadline(self) -> float:
        """When ``tick`` is wanted next, monotonic seconds; infinite when nothing waits for time."""
        return self._ctx.next_tick

    def tick(self, now: float) -> list[Effect]:
        """Time has passed: do what was due."""
        timers = self._ctx.timers
        due = sorted((name for name, at in timers.items() if at <= now), key=lambda name: (timers[name], name))
        for name in due:
            if timers.get(name, inf) <= now:  # an earlier one may have moved it
                del timers[name]
                if not self._ctx.waits or name in PATIENT:
                    TIMERS[name](self._ctx, now)
        self._ctx.next_tick = min(timers.values(), default=inf)
        return self._ctx.take() if due == ["digest"] else self._finish_step(now)

    def finish(self, now: float) -> list[Effect]:
        """Train no further round: sign ready on top of the head at once, so that it can become final."""
        self._ctx.finishing, self._ctx.training = True, None
        if (
            self._ctx.round.phase == "train" and not self._ctx.waits
        ):  # else the others have gone ahead, which says as much
            views.say_ready(self._ctx, self._ctx.view, now)
        return self._finish_step(now)

    def pause(self, now: float) -> list[Effect]:
        """No window comes until ``resume``: follow, vote and serve, but wait for nothing of one's own."""
        self._ctx.paused = True
        return self._finish_step(now)

    def resume(self, now: float) -> list[Effect]:
        """Windows are trained again: the one in flight, or another where ``Train`` says so."""
        if self._ctx.paused and not self._ctx.waits:
            gathering.resume(self._ctx, now)
        self._ctx.paused = False
        return self._finish_step(now)

    def welcome(self, peer: PeerId, now: float) -> list[Effect]:
        """A stream to a neighbour opened: compare what both hold."""
        ctx = self._ctx
        ctx.neighbours.add(peer)
        ctx.gone.pop(peer, None)
        ctx.talk.agreed.pop(peer, None)
        gossip.greet(ctx, peer)
        loading.go_on(ctx, now)
        answer_early(ctx, peer, now)
        if ctx.trust.anchor is not None and ctx.sync is None:
            opinions.consider(ctx, (peer,), now)
        return ctx.take()

    def stand(self, *, direct: bool) -> None:
        """Whether others can dial this peer, for its next commits."""
        self._ctx.direct = direct

    def left(self, peer: PeerId, now: float) -> list[Effect]:
        """The stream to a neighbour closed; if it does not come back soon the peer counts as gone."""
        ctx = self._ctx
        ctx.neighbours.discard(peer)
        ctx.talk.forget(peer)
        loading.lost(ctx, peer)
        donating.leave(ctx, peer, now)
        if peer in ctx.head.table.members:
            ctx.gone.setdefault(peer, now)
            ctx.set_timer("gone", now + ctx.setting.timing.gone, sooner=True)
        return ctx.take()

    def waiting(self) -> tuple[str, list[PeerId]]:
        """The phase, and the peers without which it does not go on."""
        return self._ctx.round.phase, waits_for(self._ctx)

    def sizes(self) -> dict[str, int]:
        """How much of what this machine holds."""
        return {**sizes(self._ctx), "parked": len(self._pool)}

    def _place(self, statement: Statement, source: PeerId | None, now: float, born: int | None = None) -> bool:
        """Handle a statement or park it; True if it was dealt with.

        Strangers can only commit. What else they say waits, for a seal not yet adopted here may admit them.
        """
        ctx = self._ctx
        member = statement.peer in ctx.head.table.members
        if not member and not ctx.setting.admits(statement.peer):
            return False
        fits = member or isinstance(statement.body, Commit)
        if fits and HANDLERS[type(statement.body)](ctx, statement, source, now):
            return True
        self._pool.park(statement.peer if member else STRANGERS, statement, source, born=born)
        return False

    def _finish_step(self, now: float, *, step: bool = True) -> list[Effect]:
        """Go on as far as what is here allows, adopt what is certified, try what is parked, until nothing moves."""
        ctx = self._ctx
        while True:
            if step and not ctx.waits:
                self._step(now)
            step = True
            if voting.try_adopt(ctx, now) or ctx.moved:
                ctx.moved, ctx.stirred = False, True
                donating.keep_common(ctx, now)
                self._pool.grow_older()
                gathering.begin(ctx, now)
                gathering.commit_untaken(ctx, now)
                gossip.press_on(ctx, now)
                views.try_final(ctx)
                views.move_up(ctx, now)
            if not ctx.stirred:
                return ctx.take()
            ctx.stirred = False
            for statement, source, born in self._pool.drain():
                try:
                    self._place(statement, source, now, born)
                except RemoteError as error:
                    ctx.emit(Trouble(PeerId(error.peer), error.text))

    def _step(self, now: float) -> None:
        ctx = self._ctx
        if ctx.round.cast is None:
            gathering.step(ctx, now)
        views.step(ctx, now)
        rostering.try_roster(ctx, now)
        if ctx.round.cast is None and not ctx.round.tasks:
            return
        current = ctx.round.task
        if current is not None and not current.cast.void:
            exchanging.step(ctx, current, now)
        for task in list(ctx.round.tasks.values()):
            reducing.step(ctx, task, now)
        voting.step(ctx, now)
