"""The daemon's handle on its trainer process. Imports no torch: the daemon stays small and never blocks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from protocols.errors import ConfigError, EnvironmentFault, LocalError, MurmurError

from . import channel
from .slots import Slots
from .training import WindowResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from .training import TrainConfig, Window

START_S = 120.0
"""Seconds until a trainer must have loaded torch, model and data."""
STALL_S = 600.0
"""Seconds of silence in the middle of a request after which a trainer counts as stuck: a step of ``base`` on a slow
processor takes minutes."""
STOP_S = 2.0
"""Seconds between asking a trainer to stop and killing it."""
BACK_OFF_S = (0.5, 30.0)
"""First and longest wait before a dead trainer is started again; doubles in between."""

_STDERR_TAIL = 4096
_ROOT = Path(__file__).resolve().parent.parent


class TrainerLost(LocalError):
    """The trainer died or got stuck; what it was doing is lost, and a new one is on its way. Ask again."""


@dataclass(frozen=True, slots=True)
class _Request:
    """What the trainer was last asked, and where its answer goes."""

    id: int
    kind: str
    future: asyncio.Future[channel.Message]


class Worker:
    """Starts the trainer, restarts it, and turns windows of training into awaitable calls.

    One request at a time: a second one waits. ``restarts`` counts replacements of a dead trainer.
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
        self._threads = threads or _polite_threads()
        self._progress = progress
        self._stall_s = stall_s
        self._slots: Slots | None = None
        self._known = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._turn = asyncio.Lock()
        self._ready = asyncio.Event()
        self._broken: MurmurError | None = None
        self._pending: _Request | None = None
        self._requests = 0
        self._heard = 0.0
        self._failures = 0
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Process id of the living trainer."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

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

    async def start(self, config: TrainConfig | None = None) -> None:
        """Start the trainer, unless it is prepared, and wait until it can train.

        Raises EnvironmentFault or ConfigError with the trainer's own words when it cannot (no corpus, no torch, no
        memory); nothing is left running then.
        """
        self._config = config or self._config
        if self._config is None:
            raise LocalError("a trainer that is not told what to train")
        try:
            self._slots = Slots.create(self._config.parameters)
            self._known.set()
            self.prepare()
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
        done = await self._ask("train", start, fields)
        assert self._slots is not None  # a request was answered, so they exist
        end = self._slots.end.view()
        end.flags.writeable = False
        return WindowResult(end=end, **{name: done[name] for name in channel.KINDS["done"] if name != "id"})

    async def evaluate(self, vector: NDArray[np.float32]) -> float:
        """Held-out loss of ``vector`` in nats per byte. Raises TrainerLost."""
        return float((await self._ask("evaluate", vector, {}))["loss"])

    async def stop(self) -> None:
        """End the trainer: politely, after 2 s by force; reaped when this returns. Safe to call twice."""
        self._stopping = True
        if self._supervisor is not None:
            if self._writer is not None and self.pid is not None:
                self._send("stop")
                await asyncio.wait({self._supervisor}, timeout=STOP_S)
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor}, timeout=STOP_S)
            self._supervisor = None
        self._fail(LocalError("the trainer was stopped"))
        if self._slots is not None:
            self._slots.close()

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
            self._send(kind, id=request.id, **fields)
            try:
                answer = await self._answer(request.future)
            except asyncio.CancelledError:
                self._send("cancel", id=request.id)
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
                self._kill()
                self._fail(TrainerLost(f"the trainer said nothing for {self._stall_s:.0f} s and was killed"))
                break
            await asyncio.wait({future}, timeout=left)
        return future.result()

    async def _until_ready(self) -> None:
        if self._supervisor is None:
            raise LocalError("the trainer is not running")
        try:
            await asyncio.wait_for(self._ready.wait(), START_S)
        except TimeoutError as error:
            raise EnvironmentFault(f"the trainer did not start within {START_S:.0f} s") from error
        if self._broken is not None:
            raise self._broken

    async def _supervise(self) -> None:
        """Keep a trainer alive until told otherwise, or until it says that it cannot work here."""
        while not self._stopping and self._broken is None:
            last_words = await self._one_life()
            ever_ready = self.device is not None
            if self._stopping or self._broken is not None:
                return
            if not ever_ready:
                self._break(EnvironmentFault(f"the trainer could not start: {last_words}"))
                return
            self._fail(TrainerLost(f"the trainer died: {last_words}"))
            self.restarts += 1
            await asyncio.sleep(min(BACK_OFF_S[0] * 2**self._failures, BACK_OFF_S[1]))
            self._failures = min(self._failures + 1, 16)

    async def _one_life(self) -> str:
        """Run one trainer process to its end; returns why it ended."""
        ours, theirs = socket.socketpair()
        give, take = socket.socketpair()  # through which the slots come once their size is known
        try:
            with theirs, take:
                self._process = process = await asyncio.create_subprocess_exec(
                    *self._command(theirs.fileno(), take.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    pass_fds=(theirs.fileno(), take.fileno()),
                    env=self._environment(),
                    start_new_session=True,  # Ctrl-C in the terminal is the daemon's to handle
                )
        except OSError as error:
            ours.close()
            give.close()
            return error.strerror or str(error)
        tail = asyncio.create_task(_tail(process), name="trainer stderr")
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            if await self._told(give, tail):
                await self._listen(reader)
            # Having hung up it is ending; a kill right now would race with asyncio's reaping and lose its status.
            await asyncio.wait({tail}, timeout=STOP_S)
        finally:
            give.close()
            self._ready.clear()
            if not tail.done():
                self._kill()
            status = await process.wait()
            await asyncio.wait({tail})
            if self._writer is not None:
                self._writer.close()
                self._writer = None
        lines = tail.result().strip().splitlines()
        return lines[-1] if lines else f"exit status {status}"

    async def _told(self, give: socket.socket, end: asyncio.Task[str]) -> bool:
        """Tell the trainer what to train and where its vectors are, once that is known; False when it ends first."""
        known = asyncio.create_task(self._known.wait(), name="trainer configuration")
        try:
            await asyncio.wait({known, end}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            known.cancel()
        if not self._known.is_set():
            return False
        assert self._config is not None and self._slots is not None  # set by start
        with contextlib.suppress(OSError):  # it has just died
            socket.send_fds(give, [b"slots"], [self._slots.fd])
        self._send("setup", config=self._config.to_plain())
        return True

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Take replies until the channel ends."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, LocalError):
            while True:
                size = channel.size_of(await reader.readexactly(channel.PREFIX))
                self._receive(channel.decode(await reader.readexactly(size)))

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
            future.set_exception(LocalError("the window was abandoned"))
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

    def _send(self, kind: str, **fields: object) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(channel.encode(kind, **fields))

    def _kill(self) -> None:
        if self.pid is not None and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _command(self, channel_fd: int, slots_fd: int) -> list[str]:
        """``slots_fd``: a socket on which the slots' descriptor comes."""
        given = {"channel": channel_fd, "slots": slots_fd, "threads": self._threads, "parent": os.getpid()}
        # -P: a folder called peer where the daemon was started must not be taken for this package.
        return [sys.executable, "-P", "-m", "peer.trainer", *(f"--{name}={value}" for name, value in given.items())]

    @staticmethod
    def _environment() -> dict[str, str]:
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _polite_threads() -> int:
    """All cores but one: where others want the same cores, threads that wait for each other crawl."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores - 1)


async def _tail(process: asyncio.subprocess.Process) -> str:
    """The last words on stderr; memory stays bounded however much torch has to say."""
    assert process.stderr is not None  # it was started with a pipe
    tail = b""
    while chunk := await process.stderr.read(_STDERR_TAIL):
        tail = (tail + chunk)[-_STDERR_TAIL:]
    return tail.decode(errors="replace")


def _error(message: channel.Message) -> MurmurError:
    kinds = {kind.__name__: kind for kind in (ConfigError, EnvironmentFault)}
    return kinds.get(message["error"], LocalError)(message["text"], remedy=message["remedy"])
