"""Once a second: the figures that nobody reports, and what the daemon as a whole is doing, for the status."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

import psutil

from protocols.ids import short

from . import status as st
from .company import Company

if TYPE_CHECKING:
    from protocols.round.machine import Machine

    from .control import Control
    from .reporter import Reporter
    from .session import Session
    from .usage import Usage
    from .worker import Worker

PULSE_S = 1.0
PATIENCE_S = 60.0
"""A phase that lasts longer shows for whom it waits."""


class Pulse:
    """Reads the parts of a daemon that are there so far."""

    def __init__(self, reporter: Reporter, control: Control) -> None:
        self._reporter, self._control = reporter, control
        self.worker: Worker | None = None
        self.machine: Machine | None = None
        self.session: Session | None = None
        """None until the session runs."""
        self.usage: Usage | None = None
        """None until it is known what the trainer may take."""
        self._waiting = ((0, "train"), 0.0)
        self._company = Company(reporter)

    @property
    def status(self) -> dict[str, Any]:
        """The document for the local interface."""
        return st.to_json(self._reporter.status)

    async def run(self) -> None:
        """Until cancelled."""
        process = psutil.Process()
        while True:
            daemon = st.Daemon(process.pid, process.memory_info().rss)
            worker, known = self.worker, self._reporter.status.processes
            trainer = st.Child(worker.pid, worker.rss, worker.restarts) if worker else known.trainer
            self._reporter.apply(st.Processes(daemon, known.p2pd, trainer))
            now = time.monotonic()
            if self.usage is not None:
                self._reporter.apply(await self.usage.look(self._reporter.status.processes, now))
            if self.session is not None:
                self._company.tell(now)
            self.tell_state()
            self._tell_deadline()
            self._reporter.draw()
            await asyncio.sleep(PULSE_S)

    def tell_state(self) -> None:
        """What the daemon as a whole is doing, and for whom it waits, once rounds go on."""
        if self.machine is None or self.session is None or self.session.stopping.is_set():
            return
        if self._control.finishing.is_set():
            return
        if self._control.paused:
            self._reporter.enter("paused", self._control.reason)
            self._reporter.apply(st.Cleared("waiting"))
            return
        self._tell_state(self.machine)
        self._tell_waiting(self.machine)

    def _tell_state(self, machine: Machine) -> None:
        """Say that nobody is there, or that the state is on its way."""
        lonely = len(machine.head.table.voters) > 1 and not self._reporter.status.peers.total
        if lonely:
            self._reporter.enter("seeking", st.Reason("no_peers", "no other member is connected yet"))
        elif text := self._reporter.syncing:
            self._reporter.enter("syncing", st.Reason("none", text))
        elif text := machine.held:
            self._reporter.enter("syncing", st.Reason("none", text))
        elif self._reporter.warned("key"):
            self._reporter.enter("training", st.Reason("no_peers", "signs nothing yet: the warning says why"))
        elif self._reporter.warned("disk"):
            self._reporter.enter("training", st.Reason("disk", "waits for the disk: the warning says why"))
        else:
            self._reporter.enter("training")

    def _tell_waiting(self, machine: Machine) -> None:
        """Say for whom a round waits unusually long."""
        phase, peers = machine.waiting()
        step = (machine.head.round, phase)
        if step != self._waiting[0]:
            self._waiting = (step, time.monotonic())
            self._reporter.apply(st.Cleared("waiting"))
        elif phase != "train" and time.monotonic() - self._waiting[1] > PATIENCE_S:
            names = ", ".join(short(each) for each in peers) or "its own work"
            self._reporter.apply(st.Warned("waiting", f"{phase}: waiting for {names}", "they may be slow or offline"))

    def _tell_deadline(self) -> None:
        """How long it is until something is due; it may be the training itself that everything waits for."""
        if self.machine is not None and (now := self._reporter.status.round).phase is not None:
            left = self.machine.deadline() - time.monotonic()
            self._reporter.apply(st.Progressed(now.progress, max(0.0, left) if left < math.inf else None))
