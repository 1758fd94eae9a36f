"""Runs a round machine: feeds it frames, windows, values and the time, and carries out its effects.

One task takes inputs one at a time, so the machine never runs twice at once; sending, training and computing happen
beside it and come back as inputs. What is due comes before what this peer made itself, and that before others' frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from protocols.errors import EnvironmentFault, LocalError, RemoteError, TransportError
from protocols.ids import Hash, PeerId
from protocols.messages import Commit
from protocols.round.effects import (
    DropPart,
    Effect,
    Flood,
    Followed,
    KeepChunk,
    LoadPart,
    Push,
    Sealed,
    Sign,
    Told,
    Train,
    Trouble,
    Work,
)
from protocols.round.looking import LOOKED_AT

from .choosing import choose, remember
from .journal import SlotUsed, Withheld
from .part_file import PartKeeper
from .state import Checkpoint
from .windows import Parts, Windows

if TYPE_CHECKING:
    from protocols.messages import Body
    from protocols.payloads import Pieces
    from protocols.round.effects import Window
    from protocols.statements import Statement

    from .outbox import Outbox

log = logging.getLogger(__name__)

INPUTS = 256
"""Frames waiting for the machine; more make their senders wait."""
HANDLE_S = 60.0
"""Longest wait of a received frame for its turn."""
TICK_S = 0.01
"""Shortest time from one tick to the next, so that a deadline that stays in the past keeps no frame waiting."""
REST_S = 60.0
"""Longest rest while nothing is due."""
RETRY_S = (1.0, 30.0)
"""First and longest wait before a disk that refused is tried again; doubles in between."""
UNSIGNED = 64
"""Bodies that wait for the disk to be signed; beyond these the oldest is never signed."""

T = TypeVar("T")
Input = Callable[[float], list[Effect]]


class Observer(Protocol):
    """Who is told what happens; the daemon turns it into status, log lines and the round log."""

    def on_effect(self, effect: Told) -> None:
        """A phase began, a seal became final, a late vote or a chunk of a state came, or something is wrong."""

    async def on_sealed(self, effect: Sealed) -> bool:
        """A seal was adopted, and saved if the disk takes it; returns whether to go on with the next round."""

    def on_disk(self, error: EnvironmentFault | None) -> None:
        """The disk refused; None: it took everything that waited for it."""


@dataclass(frozen=True, slots=True)
class _Signing:
    """A body to sign in the round in flight; ``window`` is what a commit promises."""

    body: Body
    round: int
    window: Window | None


class Session:
    """One cell's rounds, from start until the observer says stop or something breaks."""

    def __init__(self, parts: Parts, observer: Observer, outbox: Outbox | None) -> None:
        """``outbox`` None: alone, nothing is ever sent."""
        self._parts, self._observer, self._outbox = parts, observer, outbox
        self._own: deque[Input] = deque()
        self._frames: asyncio.Queue[tuple[Input, asyncio.Future[None]]] = asyncio.Queue(INPUTS)
        self._wake = asyncio.Event()
        self._ticked = -math.inf
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._looks = ThreadPoolExecutor(1, thread_name_prefix="look")  # more would only wait for each other's turn
        self._part = PartKeeper(parts.store.folder, self._on_disk, self._spawn)
        self._retry_at, self._pause = math.inf, RETRY_S[0]
        self._unsaved: Checkpoint | None = None
        self._unsigned: deque[_Signing] = deque(maxlen=UNSIGNED)
        self._windows = Windows(parts, self._on_disk, self._spawn, self._hand_in)
        self._tasks: asyncio.TaskGroup | None = None
        self.stopping = asyncio.Event()
        """Set once the observer said stop: no further window is trained."""
        self.finished = asyncio.Event()
        """Set once every voter is ready on top of the last seal after that, which is saved: nobody lags behind."""

    async def run(self) -> None:
        """Take inputs until cancelled; raises MurmurError when the session cannot go on."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._carry_out(self._parts.machine.start(self._parts.clock(), self._parts.drift))
                await self._take_inputs()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            await asyncio.to_thread(self._shut_down)

    async def on_frame(self, sender: PeerId, kind: str, payload: bytes) -> None:
        """The transport's handler: waits until the machine has dealt with the frame.

        Raises RemoteError when the machine refuses it and the sender is at fault, TransportError without a turn.
        """
        machine = self._parts.machine
        if kind == "statement":
            statement = self._parts.scope.decode(payload, sender=sender)
            if statement.peer == machine.me:
                await self._note(statement)
            await self._ask(sender, lambda now: machine.receive(statement, sender, now))
        else:
            frame = await self._look(sender, kind, payload) if kind in LOOKED_AT else payload
            await self._ask(sender, lambda now: machine.payload(sender, kind, frame, now))

    async def _look(self, sender: PeerId, kind: str, payload: bytes) -> bytes | Pieces:
        look = partial(self._parts.machine.read, sender, kind, payload)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._looks, look)
        except RuntimeError as error:  # of an executor that was shut down
            raise TransportError(sender, "came when this session had ended") from error

    def _shut_down(self) -> None:
        self._looks.shutdown()
        self._disk.shutdown(cancel_futures=True)

    async def _note(self, statement: Statement) -> None:
        """One's own words, from others: this home may not know them."""
        try:
            await self._on_disk(partial(self._parts.journal.note, statement, self._parts.machine.head.round + 1))
        except EnvironmentFault as error:
            self._refused(error)

    def stand(self, *, direct: bool) -> None:
        """Whether others can dial this peer: its commits say so from now on."""
        self._parts.machine.stand(direct=direct)

    def on_neighbours(self, neighbours: frozenset[PeerId]) -> None:
        """Streams opened or closed: the machine hears of both, first of those that closed."""
        if self._outbox is None:
            return
        machine = self._parts.machine
        arrived, gone = self._outbox.connect(neighbours)
        for peer in gone:
            self._hand_in(partial(machine.left, peer))
        for peer in arrived:
            self._hand_in(partial(machine.welcome, peer))

    async def _ask(self, sender: PeerId, run: Input) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(HANDLE_S):
                await self._frames.put((run, done))
                self._wake.set()
                await done
        except RemoteError as error:
            if error.peer == sender:  # whoever only passed another's lie on is not hung up on
                raise
        except TimeoutError as error:
            raise TransportError(sender, f"a frame of its had no turn within {HANDLE_S:.0f} s") from error

    def pause(self) -> None:
        """The trainer is paused: the round machine waits for no window."""
        self._hand_in(self._parts.machine.pause)

    def resume(self) -> None:
        """The trainer goes on."""

        def go_on(now: float) -> list[Effect]:
            effects = self._parts.machine.resume(now)
            if any(isinstance(each, Train) for each in effects):
                self._windows.give_up()
            return effects

        self._hand_in(go_on)

    def _hand_in(self, run: Input) -> None:
        """An input that no frame of another peer may hold up."""
        self._own.append(run)
        self._wake.set()

    async def _take_inputs(self) -> None:
        while True:
            now = self._parts.clock()
            if now >= self._due():
                await self._one_input(self._parts.machine.tick)
                self._ticked = self._parts.clock()
            elif now >= self._retry_at:
                await self._retry()
            elif self._own:
                await self._one_input(self._own.popleft())
            elif not self._frames.empty():
                await self._one_input(*self._frames.get_nowait())
            else:
                self._wake.clear()
                await self._rest(min(self._due(), self._retry_at, now + REST_S) - now)
                continue
            saved = self._unsaved is None and not self._unsigned
            if self.stopping.is_set() and saved and self._parts.machine.all_ready:
                self.finished.set()
            await asyncio.sleep(0)  # the streams' turn, however many frames wait

    def _due(self) -> float:
        """When the machine wants its next tick."""
        return max(self._parts.machine.deadline(), self._ticked + TICK_S)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _one_input(self, run: Input, done: asyncio.Future[None] | None = None) -> None:
        try:
            effects = run(self._parts.clock())
        except RemoteError as error:
            self._observer.on_effect(Trouble(PeerId(error.peer), error.text))
            if done is not None and not done.done():
                done.set_exception(error)
            return
        await self._carry_out(effects)
        if done is not None and not done.done():
            done.set_result(None)

    async def _carry_out(self, effects: Iterable[Effect]) -> None:
        queue = deque(effects)
        while queue:
            queue.extend(await self._one_effect(queue.popleft()))

    async def _one_effect(self, effect: Effect) -> list[Effect]:
        if isinstance(effect, Told):
            self._observer.on_effect(effect)
            return []
        match effect:
            case Sign(body):
                return await self._sign(body)
            case Flood(statement, source):
                if self._outbox is not None:
                    self._outbox.flood("statement", [statement.encode()], source)
            case Push(to, kind, payload, bulk):
                if self._outbox is not None:
                    self._outbox.post(to, kind, payload, bulk=bulk)
            case Work():
                self._spawn(self._work(effect), f"work {effect.key}")
            case Train():
                self._windows.ask(effect)
            case Sealed():
                return await self._sealed(effect)
            case KeepChunk() | LoadPart() | DropPart():
                self._keep_part(effect)
            case Followed():
                if notice := await self._on_disk(partial(remember, self._parts.store.chain, effect)):
                    self._observer.on_effect(notice)
        return []

    def _keep_part(self, effect: KeepChunk | LoadPart | DropPart) -> None:
        if isinstance(effect, KeepChunk):
            self._part.keep(effect.chunk)
        elif isinstance(effect, LoadPart):
            resumed = self._parts.machine.resumed
            self._part.load(effect.seal, lambda chunks: self._hand_in(partial(resumed, chunks)))
        else:
            self._part.drop()

    async def follow(self, seal: Hash) -> None:
        """A person chose a history; raises LocalError where it is none of those shown."""
        await choose(self._parts.machine, seal, self._hand_in)

    async def _sign(self, body: Body) -> list[Effect]:
        machine = self._parts.machine
        signing = _Signing(body, machine.head.round + 1, machine.window if isinstance(body, Commit) else None)
        if not self._unsigned:
            try:
                return await self._speak(signing)
            except EnvironmentFault as error:
                self._refused(error)
        self._unsigned.append(signing)  # never before one that was decided earlier: a vote goes before a later ready
        return []

    async def _speak(self, signing: _Signing) -> list[Effect]:
        """Journal, then speak. What a commit promises is on the disk before the promise. Raises EnvironmentFault."""
        parts, body = self._parts, signing.body
        if isinstance(body, Commit) and signing.window is not None:
            drift = signing.window.drift
            await self._on_disk(partial(parts.store.save_pending, body.parent, signing.round, drift, body.legs))
        try:
            statement = await self._on_disk(partial(parts.journal.sign, body, signing.round))
            return parts.machine.receive(statement, None, parts.clock())
        except SlotUsed as error:
            return [Trouble(parts.machine.me, f"{error}; not signed")]
        except RemoteError as error:  # from the journal, or a fault of ours: others will refuse it as well
            return [Trouble(parts.machine.me, f"refused its own {body.kind}: {error.text}")]

    async def _sealed(self, effect: Sealed) -> list[Effect]:
        self._unsigned.clear()  # of a round that is over
        self._unsaved = Checkpoint(effect.head, effect.params, effect.momentum, effect.drift, effect.ages)
        try:
            await self._save()
            self._caught_up()
        except EnvironmentFault as error:
            self._refused(error)
        if await self._observer.on_sealed(effect):
            return []
        self.stopping.set()
        self._windows.end()
        return self._parts.machine.finish(self._parts.clock())

    async def _save(self) -> None:
        """Write the newest state; only then may older rounds leave the journal. Raises EnvironmentFault."""
        if (checkpoint := self._unsaved) is not None:
            await self._on_disk(partial(self._parts.store.save, checkpoint))
            await self._on_disk(partial(self._parts.store.chain.save, self._parts.machine.chain))
            await self._on_disk(partial(self._parts.journal.forget_before, checkpoint.head.round))
            self._unsaved = None

    def _refused(self, error: EnvironmentFault) -> None:
        """The disk refused something that is kept in memory: try again later."""
        if self._retry_at == math.inf or isinstance(error, Withheld):
            self._pause = RETRY_S[0]
        else:
            self._pause = min(2 * self._pause, RETRY_S[1])
        self._retry_at = self._parts.clock() + self._pause
        self._observer.on_disk(error)

    async def _retry(self) -> None:
        """Save and sign, in the order in which it was decided, what the disk did not take before."""
        try:
            await self._save()
            while self._unsigned:
                effects = await self._speak(self._unsigned[0])
                self._unsigned.popleft()
                await self._carry_out(effects)
            self._caught_up()
        except EnvironmentFault as error:
            self._refused(error)

    def _caught_up(self) -> None:
        """Say so once the disk has taken all that it had refused."""
        if self._retry_at < math.inf and self._unsaved is None and not self._unsigned:
            self._retry_at = math.inf
            self._observer.on_disk(None)

    async def _on_disk(self, run: Callable[[], T]) -> T:
        """In the one thread for the disk: in order, and never behind a computation."""
        return await asyncio.get_running_loop().run_in_executor(self._disk, run)

    async def _work(self, effect: Work) -> None:
        machine = self._parts.machine
        try:
            value = await asyncio.to_thread(effect.run)
        except ValueError as error:
            if effect.parent != machine.head.seal:
                log.info("%s of a round that is over failed: %s", effect.key, error)
                return
            raise LocalError(f"round {machine.head.round + 1}, {effect.key}: {error}") from error
        self._hand_in(partial(machine.done, effect, value))

    def _spawn(self, run: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        assert self._tasks is not None
        return self._tasks.create_task(run, name=name)
