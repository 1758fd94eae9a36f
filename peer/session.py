"""Runs a round machine: feeds it frames, windows and values, and carries out its effects.

One task takes inputs one at a time, so the machine never runs twice at once; sending, training and
computing happen beside it and come back as inputs.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from protocols.errors import LocalError, RemoteError, TransportError
from protocols.ids import PeerId
from protocols.messages import Commit
from protocols.round.effects import (
    Effect,
    Final,
    Flood,
    Phase,
    Push,
    Sealed,
    Sign,
    Train,
    Trouble,
    Vector,
    Votes,
    Window,
    Work,
)

from .state import Checkpoint, StateStore

if TYPE_CHECKING:
    from protocols.round.machine import Machine
    from protocols.statements import Scope

    from .journal import Journal
    from .outbox import Outbox

log = logging.getLogger(__name__)

INPUTS = 256
"""Inputs waiting for the machine; more make their senders wait."""
HANDLE_S = 60.0
"""Longest wait of a received frame for its turn."""

Input = Callable[[float], list[Effect]]
Clock = Callable[[], float]


class Observer(Protocol):
    """Who is told what happens; the daemon turns it into status, log lines and the round log."""

    def on_effect(self, effect: Phase | Final | Votes | Trouble) -> None:
        """A phase began, a seal became final, a late vote came, or something is wrong."""

    async def on_sealed(self, effect: Sealed) -> bool:
        """A round was sealed and saved; returns whether to go on with the next."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a session works with. ``trainer`` trains one window; ``clock`` gives monotonic seconds."""

    scope: Scope
    machine: Machine
    journal: Journal
    store: StateStore
    trainer: Callable[[Train], Coroutine[None, None, Window]]
    clock: Clock
    drift: Vector | None = None
    """What was trained and not sealed before a restart."""


class Session:
    """One cell's rounds, from start until the observer says stop or something breaks."""

    def __init__(self, parts: Parts, observer: Observer, outbox: Outbox | None) -> None:
        """``outbox`` None: alone, nothing is ever sent."""
        self._parts, self._observer, self._outbox = parts, observer, outbox
        self._inputs: asyncio.Queue[tuple[Input, asyncio.Future[None] | None]] = asyncio.Queue(INPUTS)
        self._arrived: deque[PeerId] = deque()
        self._training: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self.stopping = asyncio.Event()
        """Set once the observer said stop: no further window is trained."""
        self.finished = asyncio.Event()
        """Set once every voter is ready on top of the last seal after that: it is final, and nobody lags behind."""

    async def run(self) -> None:
        """Take inputs until cancelled; raises MurmurError when the session cannot go on."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._carry_out(self._parts.machine.start(self._parts.clock(), self._parts.drift))
                await self._take_inputs()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def on_frame(self, sender: PeerId, kind: str, payload: bytes) -> None:
        """The transport's handler: waits until the machine has dealt with the frame.

        Raises RemoteError when the machine refuses it and the sender is at fault, TransportError when its turn
        does not come.
        """
        machine = self._parts.machine
        if kind == "statement":
            statement = self._parts.scope.decode(payload, sender=sender)
            await self._ask(sender, lambda now: machine.receive(statement, sender, now))
        else:
            await self._ask(sender, lambda now: machine.payload(sender, kind, payload, now))

    def on_neighbours(self, neighbours: frozenset[PeerId]) -> None:
        """Streams opened or closed: new neighbours are told what is known of this round."""
        if self._outbox is None:
            return
        self._arrived.extend(self._outbox.connect(neighbours))
        if not self._inputs.full():  # else the next input that is waiting brings it up
            self._inputs.put_nowait((lambda now: [], None))

    async def _ask(self, sender: PeerId, run: Input) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(HANDLE_S):
                await self._inputs.put((run, done))
                await done
        except RemoteError as error:
            if error.peer == sender:  # whoever only passed another's lie on is not hung up on
                raise
        except TimeoutError as error:
            raise TransportError(sender, f"a frame of its had no turn within {HANDLE_S:.0f} s") from error

    async def _take_inputs(self) -> None:
        while True:
            run, done = await self._inputs.get()
            await self._one_input(run, done)

    async def _one_input(self, run: Input, done: asyncio.Future[None] | None) -> None:
        while self._arrived:
            await self._carry_out(self._parts.machine.welcome(self._arrived.popleft()))
        try:
            effects = run(self._parts.clock())
        except RemoteError as error:
            self._observer.on_effect(Trouble(PeerId(error.peer), error.text))
            if done is not None and not done.done():
                done.set_exception(error)
            return
        await self._carry_out(effects)
        if self.stopping.is_set() and self._parts.machine.all_ready:
            self.finished.set()
        if done is not None and not done.done():
            done.set_result(None)

    async def _carry_out(self, effects: Iterable[Effect]) -> None:
        queue = deque(effects)
        while queue:
            queue.extend(await self._one_effect(queue.popleft()))

    async def _one_effect(self, effect: Effect) -> list[Effect]:
        match effect:
            case Sign():
                return await self._sign(effect)
            case Flood(statement, source):
                if self._outbox is not None:
                    self._outbox.flood("statement", [statement.encode()], source)
            case Push(to, kind, payload):
                if self._outbox is not None:
                    self._outbox.post(to, kind, payload)
            case Work():
                self._spawn(self._work(effect), f"work {effect.key}")
            case Train():
                if self._training is not None:
                    self._training.cancel()  # a window on a base that is no more
                if not self.stopping.is_set():
                    self._training = self._spawn(self._train(effect), "train")
            case Sealed():
                return await self._sealed(effect)
            case Phase() | Votes() | Trouble() | Final():
                self._observer.on_effect(effect)
        return []

    async def _sign(self, effect: Sign) -> list[Effect]:
        """Journal, then speak. What a commit promises is on the disk before the promise."""
        parts = self._parts
        if isinstance(effect.body, Commit):
            window = parts.machine.window
            if window is not None:
                parent, leg = effect.body.parent, effect.body.legs[0]
                await asyncio.to_thread(parts.store.save_pending, parent, window.drift, leg.steps, leg.tokens)
        number = parts.machine.head.round + 1
        statement = await asyncio.to_thread(parts.journal.sign, effect.body, number)
        try:
            return parts.machine.receive(statement, None, parts.clock())
        except RemoteError as error:  # from the journal, or a fault of ours: others will refuse it as well
            return [Trouble(parts.machine.me, f"refused its own {effect.body.kind}: {error.text}")]

    async def _sealed(self, effect: Sealed) -> list[Effect]:
        checkpoint = Checkpoint(effect.head, effect.params, effect.momentum, effect.drift)
        await asyncio.to_thread(self._parts.store.save, checkpoint)
        await asyncio.to_thread(self._parts.journal.forget_before, effect.head.round)
        if await self._observer.on_sealed(effect):
            return []
        self.stopping.set()
        return self._parts.machine.finish(self._parts.clock())

    async def _train(self, effect: Train) -> None:
        pending = await asyncio.to_thread(self._parts.store.load_pending, effect.parent)
        if pending is not None:
            log.info("round %d: taking up the update committed before the restart", effect.round)
            window = Window(*pending)
        else:
            window = await self._parts.trainer(effect)
        machine = self._parts.machine
        await self._inputs.put((lambda now: machine.trained(effect.parent, window, now), None))

    async def _work(self, effect: Work) -> None:
        try:
            value = await asyncio.to_thread(effect.run)
        except ValueError as error:
            raise LocalError(f"round {self._parts.machine.head.round + 1}, {effect.key}: {error}") from error
        machine = self._parts.machine
        await self._inputs.put((lambda now: machine.done(effect.key, effect.parent, value, now), None))

    def _spawn(self, run: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        assert self._tasks is not None
        return self._tasks.create_task(run, name=name)
