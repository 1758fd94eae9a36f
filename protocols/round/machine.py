"""The round machine: statements, bytes and windows in, effects out; no clock, no I/O, no randomness.

The straight path of protocol.md 5.3 to 5.11: everybody in standing takes part in every round.
A statement that does not fit *yet* waits in a bounded pool and is tried again after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from ..errors import LocalError, RemoteError
from ..ids import Hash, PeerId
from ..messages import Body, Commit, Freeze, Gram, Ready, Result, Roster, Seal, Vote
from ..payloads import Pieces, Want
from ..statements import Scope, Statement
from . import exchanging, gathering, reducing, serving, voting
from .context import Context
from .effects import Effect, Push, Setting, Trouble, Vector, Window
from .pool import STRANGERS, Pool

if TYPE_CHECKING:
    from .chain import Head
    from .exchange import Encoded

Handler = Callable[[Context, Statement, PeerId | None, float], bool]

_HANDLERS: Mapping[type[Body], Handler] = {
    Commit: gathering.on_commit,
    Ready: gathering.on_ready,
    Roster: gathering.on_roster,
    Gram: exchanging.on_gram,
    Freeze: exchanging.on_freeze,
    Result: reducing.on_result,
    Seal: voting.on_seal,
    Vote: voting.on_vote,
}


class Machine:
    """One peer's part in one cell. Every method returns effects to carry out in order.

    ``now`` is monotonic seconds. Calls must not overlap.
    """

    def __init__(self, scope: Scope, me: PeerId, setting: Setting, head: Head, state: tuple[Vector, Vector]) -> None:
        """``state`` = (parameters, outer momentum), float32 [setting.values] each, as of ``head``."""
        self._ctx = Context(scope, me, setting, head, state)
        self._pool = Pool()

    @property
    def head(self) -> Head:
        """The certified seal this peer builds on."""
        return self._ctx.head

    @property
    def all_ready(self) -> bool:
        """Whether every voter is ready on top of the head: nobody needs this peer's votes or bytes any more."""
        return all(each in self._ctx.round.readys for each in self._ctx.head.table.voters)

    @property
    def me(self) -> PeerId:
        """The peer whose machine this is."""
        return self._ctx.me

    @property
    def window(self) -> Window | None:
        """What the trainer brought in this round, once it has."""
        return self._ctx.round.window

    def start(self, now: float, drift: Vector | None = None) -> list[Effect]:
        """Begin on the head; ``drift`` is what was trained and not sealed before a restart."""
        if drift is not None:
            self._ctx.drift = drift
        gathering.begin(self._ctx, now)
        return self._ctx.take()

    def trained(self, parent: Hash, window: Window, now: float) -> list[Effect]:
        """The trainer finished the window that ``Train`` asked for on top of ``parent``: encode, then commit.

        A window on another parent than the head is dropped: ``Train`` for the head was asked since.
        """
        if parent == self._ctx.head.seal:
            gathering.on_trained(self._ctx, window, now)
        return self._ctx.take()

    def receive(self, statement: Statement, source: PeerId | None, now: float) -> list[Effect]:
        """A decoded statement from neighbour ``source`` (None: one's own, from the journal).

        Raises RemoteError naming the peer at fault when no honest peer would have sent it.
        """
        if statement.hash in self._ctx.round.known or self._pool.holds(statement):
            serving.ask_missing(self._ctx, source)
            return self._ctx.take()
        if self._place(statement, source, now):
            self._advance(now)
        serving.ask_missing(self._ctx, source)
        return self._ctx.take()

    def payload(self, sender: PeerId, kind: str, payload: bytes, now: float) -> list[Effect]:
        """An unsigned frame (``parts``, ``results`` or ``want``) from ``sender``; raises RemoteError naming it."""
        if kind == "parts":
            exchanging.on_parts(self._ctx, sender, Pieces.decode(payload, self._ctx.part_sizes, sender=sender))
        elif kind == "results":
            frame = Pieces.decode(payload, self._ctx.result_sizes, sender=sender)
            reducing.on_results(self._ctx, sender, frame, now)
        elif kind == "want":
            serving.on_want(self._ctx, sender, Want.decode(payload, sender=sender))
        else:
            raise RemoteError(sender, f"{kind} is not a bulk frame")
        return self._ctx.take()

    def done(self, key: str, parent: Hash, value: object, now: float) -> list[Effect]:
        """The value of a ``Work`` effect; one for another parent than the head's is dropped."""
        ctx = self._ctx
        if parent != ctx.head.seal:
            return []
        if key == "encode":
            gathering.on_encoded(ctx, cast("Encoded", value))
        elif key == "gram":
            ctx.sign(cast("Gram", value))
        elif key == "reduce":
            reducing.on_reduced(ctx, cast("Any", value), now)
        elif key == "apply":
            reducing.on_applied(ctx, cast("Any", value), now)
        else:
            raise LocalError(f"nobody asked for {key!r}")
        self._advance(now)
        return ctx.take()

    def finish(self, now: float) -> list[Effect]:
        """Train no further round: sign ready on top of the head at once, so that it can become final."""
        if self._ctx.round.phase == "train":  # else the others have gone ahead, which says as much
            gathering.say_ready(self._ctx, now)
        return self._ctx.take()

    def welcome(self, peer: PeerId) -> list[Effect]:
        """All that a neighbour may have missed while no stream to it was open.

        The statements of the round before, the head's certificate, the statements of the round in flight, one's
        parts that it owns, one's results. Results of the round before it has to ask for (``want``).
        """
        ctx = self._ctx
        ctx.round.asked.discard(f"want {peer}")
        for served in [each for each in ctx.served if each[0] == peer]:
            del ctx.served[served]  # what it was sent went down with its stream
        proposal = [ctx.head.proposal] if ctx.head.proposal else []
        before = ctx.before.known if ctx.before else ()
        told = {each.hash: each for each in (*before, *proposal, *ctx.head.votes, *ctx.round.known.values())}
        for statement in told.values():
            ctx.emit(Push(peer, "statement", [statement.encode()]))
        serving.deliver_to(self._ctx, peer)
        serving.publish_to(self._ctx, peer)
        return self._ctx.take()

    def waiting(self) -> tuple[str, list[PeerId]]:
        """The phase, and the peers without which it does not go on."""
        return self._ctx.round.phase, waits_for(self._ctx)

    def _place(self, statement: Statement, source: PeerId | None, now: float, born: int | None = None) -> bool:
        """Handle a statement or park it; True if it was dealt with.

        Strangers can only commit. What else they say waits, for a seal not yet adopted here may admit them.
        """
        ctx = self._ctx
        member = statement.peer in ctx.head.table.members
        if not member and not ctx.setting.open:
            return False
        fits = member or isinstance(statement.body, Commit)
        if fits and _HANDLERS[type(statement.body)](ctx, statement, source, now):
            return True
        self._pool.park(statement.peer if member else STRANGERS, statement, source, born=born)
        return False

    def _advance(self, now: float) -> None:
        """Adopt what is certified and try everything parked, until nothing moves."""
        moved = True
        while moved:
            moved = False
            if voting.try_adopt(self._ctx, now):
                moved = True
                self._pool.grow_older()
                gathering.begin(self._ctx, now)
            for statement, source, born in self._pool.drain():
                try:
                    moved |= self._place(statement, source, now, born)
                except RemoteError as error:
                    self._ctx.emit(Trouble(statement.peer, error.text))


def waits_for(ctx: Context) -> list[PeerId]:
    """The peers whose next message the round needs, in order of ids."""
    current, voters = ctx.round, ctx.head.table.voters
    if current.cast is None:
        late = [each for each in voters if each not in current.commits]
        return late or [ctx.coordinator]
    if current.freeze is None:
        if current.inbox is not None and current.inbox.missing():
            return sorted(current.inbox.missing())
        return [each for each in current.cast.working if each not in current.grams] or [current.cast.coordinator]
    if current.applied is None:
        return sorted(current.results.missing()) if current.results is not None else []
    votes = current.votes.get(next(iter(current.proposals), Hash(b"")), {})
    return [each for each in voters if each not in votes] if current.proposals else [current.cast.coordinator]
