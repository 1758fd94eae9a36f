"""The trainer process, ``python -m peer.trainer``: the only one that loads torch or touches the GPU.

The daemon starts it with an open socket for messages (``channel``) and an open file for vectors (``slots``). It ends
with the daemon: by the kernel's parent-death signal where there is one, by the end of the channel everywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dht.parent import die_with
from protocols.errors import LocalError, MurmurError

from . import channel
from .corpus import load_shards
from .data import Corpus
from .interrupted import Interrupted, origin_of, read, write
from .slots import Slots
from .training import Window, config_from_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from .learner import Learner
    from .training import WindowResult

PROGRESS_S = 0.25
"""Seconds between two progress messages, at least."""

SLOW_S = 0.5
"""A step that takes longer may not end in time for a pause."""
KEEP_S = 60.0
"""Where steps are slow the window in flight is kept this often: a pause that has to kill costs no more than that."""

LAST = ("stop", "pause")
"""Commands after which the trainer ends."""

NICENESS = 10
"""From when torch is loaded: that is over in seconds, and at this priority takes a minute on a busy machine."""


class Channel:
    """The trainer's end: a thread reads commands, so that all that ends a window is heard in the middle of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream = connection.makefile("rb")
        self._commands: queue.SimpleQueue[channel.Message] = queue.SimpleQueue()
        self._cancelled = -1
        self._stopping = False
        self.loaded = False
        """Whether there is anything that a pause has to keep."""
        threading.Thread(target=self._listen, name="channel", daemon=True).start()

    def next(self) -> channel.Message:
        """The next command; waits for it."""
        return self._commands.get()

    def send(self, kind: str, **fields: object) -> None:
        """Send one reply."""
        self._connection.sendall(channel.encode(kind, **fields))

    def wanted(self, request: int) -> bool:
        """Whether the daemon still waits for the answer to ``request``."""
        return not self._stopping and request > self._cancelled

    @property
    def ending(self) -> bool:
        """Whether no further command counts."""
        return self._stopping

    def _listen(self) -> None:
        while True:
            try:
                raw = self._stream.read(channel.size_of(self._stream.read(channel.PREFIX)))
                command = channel.decode(raw)
            except (OSError, LocalError):
                os._exit(0)  # the daemon is gone; nothing here is worth saving, and torch may be deep in a step
            if command["kind"] == "cancel":
                self._cancelled = command["id"]
                continue
            self._stopping = command["kind"] in LAST
            if command["kind"] == "pause" and not self.loaded:
                os._exit(0)  # torch may take seconds more to load, and a pause has not that long
            self._commands.put(command)


class Trainer:
    """Answers commands one after the other."""

    def __init__(self, link: Channel, slots: socket.socket) -> None:
        """``slots``: the descriptor of the shared vectors comes on it before the configuration."""
        self._link, self._slots_link = link, slots
        self._learner: Learner
        self._slots: Slots
        self._path: Path | None = None
        self._kept: Interrupted | None = None
        """What an earlier trainer left, until it is used, or of no use any more."""
        self._window: Window | None = None
        """The window in flight at a pause."""

    def run(self, threads: int) -> None:
        """Set up, then serve until told to stop; an expected error ends it with a message to the daemon."""
        device = prepare_torch(threads)  # takes seconds, and nobody has to know yet what will be trained
        be_polite()
        setup = self._link.next()
        if setup["kind"] in LAST:
            return
        try:
            self._set_up(setup, device)
        except MurmurError as error:
            self._report(None, error)
            return
        while (command := self._link.next())["kind"] not in LAST:
            try:
                self._answer(command)
            except MurmurError as error:
                self._report(command["id"], error)
        if command["kind"] == "pause":
            self._keep()

    def _set_up(self, setup: channel.Message, device: str) -> None:
        config = config_from_plain(setup["config"])
        corpus = Corpus(load_shards(config.data), config.data, context=config.context)
        _, descriptors, _, _ = socket.recv_fds(self._slots_link, 16, 1)
        self._slots = Slots(descriptors[0], config.parameters)
        from .learner import Learner

        self._learner = Learner(config, corpus, device=device)
        if setup["kept"] is not None:
            self._path = Path(setup["kept"])
            self._kept = read(self._path, config.parameters)
            if self._kept is not None:
                self._learner.take_up(self._kept)  # a run that keeps its moments goes on with them in any window
        self._link.loaded = True
        self._link.send("ready", parameters=config.parameters, device=device)

    def _answer(self, command: channel.Message) -> None:
        request = command["id"]
        on_step = self._reporter(request)
        if command["kind"] == "evaluate":
            loss = self._learner.evaluate(self._slots.start, on_step=on_step)
            if loss is not None:
                self._link.send("loss", id=request, loss=loss)
                return
        else:
            names = ("parent", "peer", "steps", "seconds", "first_step")
            window = Window(**{name: command[name] for name in names})
            result = self._train(window, on_step)
            if result is not None:
                fields: dict[str, Any] = {name: getattr(result, name) for name in channel.KINDS["done"] if name != "id"}
                self._link.send("done", id=request, **fields)
                return
        self._link.send("cancelled", id=request)

    def _train(self, window: Window, on_step: Callable[[int, float], bool]) -> WindowResult | None:
        """One window, or the rest of the one that a pause interrupted, if this is the very same."""
        slots, kept = self._slots, self._kept
        if kept is not None and kept.origin != origin_of(window, slots.start):
            kept = None
        looked = saved = time.monotonic()

        def after(step: int, loss: float) -> bool:
            nonlocal looked, saved
            now = time.monotonic()
            if now - looked > SLOW_S and now - saved > KEEP_S:
                self._write(self._learner.interrupt(origin_of(window, slots.start)))
                saved = now = time.monotonic()
            looked = now
            return on_step(step, loss)

        result = self._learner.train(slots.start, window, end=slots.end, on_step=after, interrupted=kept)
        if result is None and self._link.ending:
            self._window = window
            return None
        self._kept = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        return result

    def _keep(self) -> None:
        """Leave on the disk what a later trainer goes on with."""
        origin = origin_of(self._window, self._slots.start) if self._window is not None else None
        state = self._kept if self._window is None and self._kept is not None else self._learner.interrupt(origin)
        self._write(state)

    def _write(self, state: Interrupted | None) -> None:
        """A disk that refuses costs the window in flight."""
        if self._path is not None and state is not None:
            with contextlib.suppress(OSError):
                write(self._path, state)

    def _reporter(self, request: int) -> Callable[[int, float], bool]:
        """What is called between steps: sends progress now and then, and says whether to go on."""
        sent = time.monotonic()

        def on_step(step: int, loss: float) -> bool:
            nonlocal sent
            if time.monotonic() - sent >= PROGRESS_S:
                sent = time.monotonic()
                self._link.send("progress", id=request, step=step, loss=loss)
            return self._link.wanted(request)

        return on_step

    def _report(self, request: int | None, error: MurmurError) -> None:
        self._link.send("error", id=request, error=type(error).__name__, text=str(error), remedy=error.remedy)


def be_polite() -> None:
    """Everything else on this machine comes first.

    Linux shares the processor among sessions before it looks at niceness (sched_autogroup), and a trainer is a
    session of its own: there the session's niceness is set as well.
    """
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # not Linux, or without that
        Path("/proc/self/autogroup").write_text(str(NICENESS))


def prepare_torch(threads: int) -> str:
    """Import torch with a fixed number of threads and deterministic kernels; returns the device to train on."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS sums in a fixed order only with this
    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    return "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Parse what ``worker`` passes, and serve."""
    parser = argparse.ArgumentParser(prog="peer.trainer")
    for name in ("channel", "slots", "threads", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    die_with(given.parent)
    Trainer(Channel(socket.socket(fileno=given.channel)), socket.socket(fileno=given.slots)).run(given.threads)
    os._exit(0)  # torch takes its time to unload, and a pause has not that long


if __name__ == "__main__":
    main()
