"""The daemon's handle on its trainer process. Imports no torch: the daemon stays small and never blocks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from protocols.errors import ConfigError, EnvironmentFault, LocalError, MurmurError

from . import channel
from .slots import Slots
from .trainer_process import STOP_S, Setup, TrainerProcess
from .training import WindowResult
from .usage import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .training import TrainConfig, Window

log = logging.getLogger(__name__)

START_S = 120.0
"""Seconds until a trainer must have loaded torch, model and data."""
STALL_S = 600.0
"""Seconds of silence in the middle of a request after which a trainer counts as stuck: a step of ``base`` on a slow
processor takes minutes."""
PAUSE_S = 1.2
"""Seconds that a trainer gets to end its step and keep its state when it is paused; then it is killed."""
BACK_OFF_S = (0.5, 30.0)
"""First and longest wait before a dead trainer is started again; doubles in between."""


class TrainerLost(LocalError):
    """The trainer died or got stuck; what it was doing is lost, and a new one is on its way. Ask again."""


class _Paused(LocalError):
    """The trainer was ended by a pause; ask again after it."""


@dataclass(frozen=True, slots=True)
class _Request:
    """What the trainer was last asked, and where its answer goes."""

    id: int
    kind: str
    future: asyncio.Future[channel.Message]


class Worker:
    """Starts the trainer, restarts it, and turns windows of training into awaitable calls.

    One request at a time: a second one waits. ``restarts`` counts replacements of a dead trainer. While paused there
    is no process, and who asks waits; a window that a pause interrupts goes on after it with the same bits.
    """

    def __init__(
        self,
        config: TrainConfig | None = None,
        *,
        threads: int = 0,
        progress: Callable[[int, float], None] = lambda step, loss: None,
        stall_s: float = STALL_S,
    ) -> None:
        """``config`` None: ``start`` gets it. ``threads`` 0: one for each core but one.

        ``progress(step, loss)`` is called in the loop.
        """
        self.restarts = 0
        self.device: str | None = None
        self._config = config
        self.threads = threads or _polite_threads()
        self._life = TrainerProcess(self.threads, self._receive)
        self._kept: Path | None = None
        self._progress = progress
        self._stall_s = stall_s
        self._slots: Slots | None = None
        self._known = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        """Not set: paused."""
        self._wanted.set()
        self._gone = asyncio.Event()
        """No process, and none on its way before the supervisor's next look."""
        self._gone.set()
        self._turn = asyncio.Lock()
        self._ready = asyncio.Event()
        self._broken: MurmurError | None = None
        self._pending: _Request | None = None
        self._requests = 0
        self._heard = 0.0
        self._failures = 0
        self._interrupted = False
        """The last process was ended by a pause."""
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Process id of the living trainer."""
        return self._life.pid

    @property
    def rss(self) -> int | None:
        """Resident bytes of the living trainer; None where /proc does not tell."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return None
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def prepare(self) -> None:
        """Start the process before it is known what to train: loading torch takes seconds. ``stop`` ends it."""
        if self._supervisor is None:
            self._supervisor = asyncio.create_task(self._supervise(), name="trainer supervisor")
            self._supervisor.add_done_callback(self._supervised)

    async def start(self, config: TrainConfig | None = None, kept: Path | None = None) -> None:
        """Start the trainer, unless it is prepared, and wait until it can train; paused: until it could be started.

        ``kept``: a file for what a pause leaves of a window; without it such a window begins anew.

        Raises EnvironmentFault or ConfigError with the trainer's own words when it cannot (no corpus, no torch, no
        memory); nothing is left running then.
        """
        self._config, self._kept = config or self._config, kept
        if self._config is None:
            raise LocalError("a trainer that is not told what to train")
        try:
            self._slots = Slots.create(self._config.parameters)
            self._known.set()
            self.prepare()
            if not self.paused:
                await self._until_ready()
        except BaseException:
            await self.stop()
            raise

    async def train(self, start: NDArray[np.float32], window: Window) -> WindowResult:
        """Train one window from ``start``, float32 [parameters].

        The result's ``end`` is a read-only view that the next ``train`` overwrites. When this call is cancelled the
        trainer abandons the window after its current step. Raises TrainerLost; then the window can be asked for again.
        """
        fields = {name: getattr(window, name) for name in channel.KINDS["train"] if name != "id"}
        done = await self._answered("train", start, fields)
        assert self._slots is not None  # a request was answered, so they exist
        end = self._slots.end.view()
        end.flags.writeable = False
        return WindowResult(end=end, **{name: done[name] for name in channel.KINDS["done"] if name != "id"})

    async def evaluate(self, vector: NDArray[np.float32]) -> float:
        """Held-out loss of ``vector`` in nats per byte. Raises TrainerLost."""
        return float((await self._answered("evaluate", vector, {}))["loss"])

    @property
    def paused(self) -> bool:
        """Whether there is to be no trainer for the time being."""
        return not self._wanted.is_set()

    async def pause(self) -> None:
        """End the trainer within 2 s: after its step, which it keeps, else by force. Returns when it is gone."""
        self._wanted.clear()
        if self._gone.is_set():
            return
        self._life.send("pause")
        try:
            async with asyncio.timeout(PAUSE_S):
                await self._gone.wait()
        except TimeoutError:
            log.info("the trainer's step takes long: it is killed, and its window begins anew after the pause")
            self._life.kill()
            async with asyncio.timeout(STOP_S):
                await self._gone.wait()

    def resume(self) -> None:
        """Let a trainer go on where the pause interrupted one."""
        self._wanted.set()

    async def stop(self) -> None:
        """End the trainer: politely, after 2 s by force; reaped when this returns. Safe to call twice."""
        self._stopping = True
        if self._supervisor is not None:
            if self._life.hears:
                self._life.send("stop")
                await asyncio.wait({self._supervisor}, timeout=STOP_S)
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor}, timeout=STOP_S)
            self._supervisor = None
        self._fail(LocalError("the trainer was stopped"))
        if self._slots is not None:
            self._slots.close()

    async def _answered(self, kind: str, vector: NDArray[np.float32], fields: dict[str, object]) -> channel.Message:
        """Ask until no pause comes between."""
        while True:
            try:
                return await self._ask(kind, vector, fields)
            except _Paused:
                log.info("the trainer is paused in the middle of a request to %s", kind)

    async def _ask(self, kind: str, vector: NDArray[np.float32], fields: dict[str, object]) -> channel.Message:
        async with self._turn:
            await self._until_ready()
            await self._drain()
            if self._slots is None or not self._ready.is_set():
                raise TrainerLost("the trainer is being restarted")
            if vector.shape != self._slots.start.shape:
                raise LocalError(f"a vector of shape {vector.shape} for {self._slots.start.shape} parameters")
            np.copyto(self._slots.start, vector, casting="no")
            self._requests += 1
            request = self._pending = _Request(self._requests, kind, asyncio.get_running_loop().create_future())
            # Whoever asked may be gone when the answer is an error: nobody else has to look at it then.
            request.future.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._heard = asyncio.get_running_loop().time()
            self._life.send(kind, id=request.id, **fields)
            try:
                answer = await self._answer(request.future)
            except asyncio.CancelledError:
                self._life.send("cancel", id=request.id)
                raise
            self._failures = 0
            return answer

    async def _drain(self) -> None:
        """Wait until the trainer has let go of an abandoned request: until then it may still read its slot."""
        if self._pending is not None:
            with contextlib.suppress(MurmurError):
                await self._answer(self._pending.future)

    async def _answer(self, future: asyncio.Future[channel.Message]) -> channel.Message:
        """The outcome of a request; kills a trainer that stays silent for too long."""
        clock = asyncio.get_running_loop().time
        while not future.done():
            left = self._heard + self._stall_s - clock()
            if left <= 0:
                self._ready.clear()
                self._life.kill()
                self._fail(TrainerLost(f"the trainer said nothing for {self._stall_s:.0f} s and was killed"))
                break
            await asyncio.wait({future}, timeout=left)
        return future.result()

    async def _until_ready(self) -> None:
        if self._supervisor is None:
            raise LocalError("the trainer is not running")
        await self._wanted.wait()
        try:
            await asyncio.wait_for(self._ready.wait(), START_S)
        except TimeoutError as error:
            raise EnvironmentFault(
                f"the trainer did not start within {START_S:.0f} s",
                remedy="end what keeps this machine busy, and start again",
            ) from error
        if self._broken is not None:
            raise self._broken

    async def _supervise(self) -> None:
        """Keep a trainer alive until told otherwise, or until it says that it cannot work here."""
        while not self._stopping and self._broken is None:
            await self._wanted.wait()
            last_words = await self._one_life()
            if self._stopping or self._broken is not None:
                return
            if self._interrupted:
                self._fail(_Paused("paused"))
                continue
            ever_ready = self.device is not None
            if not ever_ready:
                remedy = "PyTorch must load and have memory: install murmuration again, or end other programs"
                self._break(EnvironmentFault(f"the trainer could not start: {last_words}", remedy=remedy))
                return
            self._fail(TrainerLost(f"the trainer died: {last_words}"))
            self.restarts += 1
            await asyncio.sleep(min(BACK_OFF_S[0] * 2**self._failures, BACK_OFF_S[1]))
            self._failures = min(self._failures + 1, 16)

    async def _one_life(self) -> str:
        """One process from start to end; returns its last words."""
        self._interrupted = False
        self._gone.clear()
        try:
            return await self._life.run(self._setup)
        finally:
            self._ready.clear()
            self._interrupted = self.paused
            self._gone.set()

    async def _setup(self) -> Setup:
        """What a trainer is told, once it is known."""
        await self._known.wait()
        assert self._config is not None and self._slots is not None  # set by start
        return Setup(self._config.to_plain(), self._slots.fd, self._kept)

    def _receive(self, message: channel.Message) -> None:
        self._heard = asyncio.get_running_loop().time()
        kind = message["kind"]
        if kind == "ready":
            self.device = message["device"]
            self._ready.set()
        elif kind == "error" and message["id"] is None:
            self._break(_error(message))
        elif self._pending is not None and message["id"] == self._pending.id:
            self._settle(kind, message, self._pending)

    def _settle(self, kind: str, message: channel.Message, request: _Request) -> None:
        if kind == "progress":
            if request.kind == "train":
                self._progress(message["step"], message["loss"])
            return
        future = request.future
        self._pending = None
        if future.done():
            return
        if kind == "error":
            future.set_exception(_error(message))
        elif kind == "cancelled":
            text = "the window was abandoned"
            future.set_exception(_Paused(text) if self.paused else LocalError(text))
        else:
            future.set_result(message)

    def _supervised(self, task: asyncio.Task[None]) -> None:
        """Nobody awaits the supervisor while it works: its own failure must reach whoever waits for the trainer."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(LocalError(f"the trainer's supervisor failed: {error!r}"))

    def _break(self, error: MurmurError) -> None:
        """The trainer cannot work on this machine: every request gets ``error``."""
        self._broken = error
        self._ready.set()
        self._fail(error)

    def _fail(self, error: MurmurError) -> None:
        if self._pending is not None and not self._pending.future.done():
            self._pending.future.set_exception(error)
        self._pending = None


def _polite_threads() -> int:
    """All cores but one: where others want the same cores, threads that wait for each other crawl."""
    return max(1, usable_cores() - 1)


def _error(message: channel.Message) -> MurmurError:
    kinds = {kind.__name__: kind for kind in (ConfigError, EnvironmentFault)}
    return kinds.get(message["error"], LocalError)(message["text"], remedy=message["remedy"])
