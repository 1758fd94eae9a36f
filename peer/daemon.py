"""The daemon: puts the parts together, owns them, and ends them in order. Decides nothing of the protocol."""

from __future__ import annotations

import asyncio
import importlib
import logging
import math
import os
import signal
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

import psutil
import uvloop

from protocols.errors import EnvironmentFault, LocalError
from protocols.ids import PROTOCOL, PeerId, short
from protocols.manifest import Manifest, run_id
from protocols.outer import state_root
from protocols.reduce import self_test
from protocols.round.chain import Head, seal_zero
from protocols.round.effects import Final, Phase, Sealed, Setting, Train, Trouble, Votes, Window
from protocols.round.machine import Machine
from protocols.statements import Scope

from . import status as st
from .api import ApiServer
from .corpus import NAME as SHAKESPEARE
from .exits import Exit
from .identity import Identity
from .journal import Journal
from .lock import hold
from .logs import start_logging
from .models import initial_vector
from .outbox import Limits, Outbox
from .paths import Home
from .reporter import Reporter
from .runs import keep_manifest, load_run
from .session import Parts, Session
from .settings import CELL, round_setting, train_config, update_bytes
from .state import Checkpoint, StateStore
from .training import TrainConfig
from .training import Window as TrainWindow
from .worker import TrainerLost, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from .options import UpOptions

log = logging.getLogger(__name__)

LINGER_S = 30.0
"""After the last round: how long to wait for the others to have sealed it too; they may need our votes and bytes."""
PATIENCE_S = 60.0
"""A phase that lasts longer shows for whom it waits."""
PULSE_S = 1.0
"""How often figures that nobody reports (memory, traffic, waiting) are read for the status."""
TRAINER_TRIES = 3
"""A window is asked for this often before the daemon gives up on its trainer."""


def run(options: UpOptions, *, wrap: Callable[[Machine], Machine] | None = None) -> int:
    """``murmur up``: returns the exit code. Raises MurmurError for what a person has to mend."""
    home = Home(options.home)
    home.create()
    with hold(home.lock):
        start_logging(home.log, debug=options.debug)
        return uvloop.run(_supervised(Daemon(options, home, wrap=wrap)))


async def _supervised(daemon: Daemon) -> int:
    """Run the daemon until it ends by itself or a signal asks it to."""
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, daemon.stop)
    return await daemon.run()


Started = tuple[Session, Outbox | None]
"""A session ready to run; no outbox: alone."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a daemon serves: the manifest and what follows from it."""

    manifest: Manifest
    scope: Scope
    setting: Setting
    training: TrainConfig


class Daemon:
    """One peer of one run."""

    def __init__(self, options: UpOptions, home: Home, *, wrap: Callable[[Machine], Machine] | None = None) -> None:
        """``wrap`` gets the round machine and gives the one that is run: for what ``swarm`` injects."""
        self._options, self._home, self._wrap = options, home, wrap
        self._identity = Identity.load_or_create(home.key)
        self._run = self._load_run()
        self._store = StateStore(
            home.run(self._run.scope.run), self._run.scope, self._run.setting.values, options.keep_checkpoints
        )
        self._reporter = self._make_reporter()
        self._worker = Worker(self._run.training, threads=options.threads, progress=self._on_progress)
        self._stopping = asyncio.Event()
        self._machine: Machine | None = None
        self._session: Session | None = None
        self._waiting = ((0, "train"), 0.0)
        self._evaluations: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Ask the daemon to end; what is sealed stays."""
        self._reporter.apply(st.StateChanged("stopping", time.time()))
        self._stopping.set()

    async def run(self) -> int:
        """Start every part, train, and end every part; returns the exit code."""
        self_test()
        async with AsyncExitStack() as stack:
            api = ApiServer(self._home, snapshot=lambda: st.to_json(self._reporter.status), stop=self.stop)
            await api.start(self._options.api_port)
            stack.push_async_callback(api.close)
            self._greet()
            started = await self._unless_stopped(self._start(stack))
            if started is not None:
                await self._until_done(*started)
        sealed = self._machine.head.round if self._machine is not None else None
        text = "stopped before training began" if sealed is None else f"stopped at sealed round {sealed}"
        self._reporter.say(text, event="stopped", round=sealed)
        return Exit.DONE

    async def _unless_stopped(self, start: Coroutine[None, None, Started]) -> Started | None:
        """Starting takes a while, and nobody who asks the daemon to end should have to wait for it: None then."""
        starting = asyncio.create_task(start, name="start")
        stop = asyncio.create_task(self._stopping.wait(), name="stop")
        try:
            await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            starting.cancel()  # without effect when it is done
            await asyncio.wait({starting, stop})
        return None if starting.cancelled() else starting.result()

    async def _start(self, stack: AsyncExitStack) -> Started:
        loading = asyncio.create_task(self._load_network(), name="load network")
        try:
            await self._worker.start()
            stack.push_async_callback(self._worker.stop)
            await loading
        finally:
            loading.cancel()
        self._tell_ready()
        session, outbox = await self._start_session(stack)
        self._session = session
        return session, outbox

    async def _load_network(self) -> None:
        """Importing libp2p's client takes seconds: beside the trainer's start, and not in the loop."""
        if not self._options.alone:
            await asyncio.to_thread(importlib.import_module, "peer.network")

    async def _start_session(self, stack: AsyncExitStack) -> Started:
        checkpoint = await asyncio.to_thread(self._checkpoint)
        last = self._run.manifest.run.rounds
        if last and checkpoint.head.round >= last:
            self._reporter.say(f"the run has ended after its {last} rounds", event="ended", round=checkpoint.head.round)
            self._stopping.set()
        self._reporter.begin(checkpoint.head)
        path, scope, identity = self._store.journal_path, self._run.scope, self._identity
        journal = await asyncio.to_thread(Journal, path, scope, identity.peer, identity.sign)
        stack.callback(journal.close)
        links = await asyncio.to_thread(self._store.links)
        machine = Machine(
            scope,
            identity.peer,
            self._run.setting,
            checkpoint.head,
            (checkpoint.params, checkpoint.momentum),
            signed_view=journal.signed_view,
            links=links,
            ages=checkpoint.ages,
        )
        self._machine = machine if self._wrap is None else self._wrap(machine)
        parts = Parts(scope, self._machine, journal, self._store, self._train, time.monotonic, checkpoint.drift)
        return await self._connect(stack, parts)

    async def _connect(self, stack: AsyncExitStack, parts: Parts) -> Started:
        if self._options.alone:
            return Session(parts, self, None), None
        from .network import Network

        network = Network(
            self._options,
            self._home,
            self._run.scope.run,
            self._identity,
            self._reporter,
            members=self._members,
            admits=self._run.manifest.members.admits,
        )
        outbox = Outbox(network.transport, Limits.of(update_bytes(self._run.setting)))
        session = Session(parts, self, outbox)
        stack.push_async_callback(outbox.close)
        stack.push_async_callback(network.close)
        self._reporter.traffic = network.traffic
        await network.start(session)
        return session, outbox

    def _members(self) -> frozenset[PeerId]:
        """Peers that count: the run's founders and everybody in the table."""
        table = self._machine.head.table.members if self._machine else ()
        return frozenset((*self._run.manifest.members.founders, *table))

    async def _until_done(self, session: Session, outbox: Outbox | None) -> None:
        """Train until told to stop, until the last round is final, or until a part fails."""
        tasks = {
            "session": asyncio.create_task(session.run(), name="session"),
            "pulse": asyncio.create_task(self._pulse(), name="pulse"),
            "stop": asyncio.create_task(self._stopping.wait(), name="stop"),
            "finished": asyncio.create_task(self._finished(session, outbox), name="finished"),
        }
        self._reporter.apply(st.StateChanged("training", time.time()))
        try:
            done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            everything = [*tasks.values(), *self._evaluations]
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)

    async def _finished(self, session: Session, outbox: Outbox | None) -> None:
        """Returns when the last round is sealed, measured, shown and final (or has had its time for that)."""
        await session.stopping.wait()
        self._reporter.apply(st.StateChanged("finishing", time.time()))
        if self._evaluations:
            await asyncio.gather(*self._evaluations, return_exceptions=True)
        try:
            async with asyncio.timeout(LINGER_S):
                await session.finished.wait()
                if outbox is not None:
                    await asyncio.sleep(PULSE_S)  # late votes of slower neighbours, for the record
                    await outbox.drained()
        except TimeoutError:
            log.warning("not everybody had sealed the last round after %.0f s", LINGER_S)

    async def on_sealed(self, effect: Sealed) -> bool:
        """Log the round, and measure the held-out loss, if nothing is trained before the next window begins."""
        going_on = await self._reporter.on_sealed(effect)

        async def show() -> None:
            await self._reporter.held_out(effect.record, lambda: self._worker.evaluate(effect.params))

        task = asyncio.create_task(show(), name="held-out loss")
        self._evaluations.add(task)
        task.add_done_callback(self._evaluated)
        await asyncio.sleep(0)  # the evaluation asks for the trainer before the next window does
        return going_on

    def on_disk(self, error: EnvironmentFault | None) -> None:
        """Whether the disk takes what must be written goes to the reporter."""
        self._reporter.on_disk(error)

    def on_effect(self, effect: Phase | Final | Votes | Trouble) -> None:
        """What else a session tells goes to the reporter."""
        self._reporter.on_effect(effect)

    def _evaluated(self, task: asyncio.Task[None]) -> None:
        self._evaluations.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("the held-out loss could not be measured: %s", error)

    async def _train(self, effect: Train) -> Window:
        """One window on base + drift; a trainer that dies is asked again."""
        window = TrainWindow(
            parent=effect.parent,
            peer=self._identity.peer,
            steps=self._run.manifest.round.steps,
            seconds=self._run.manifest.round.seconds,
        )
        for left in reversed(range(TRAINER_TRIES)):
            try:
                result = await self._worker.train(effect.base + effect.drift, window)
                break
            except TrainerLost as error:
                self._reporter.warn("trainer", str(error), "it is started again by itself")
                if not left:
                    raise LocalError(f"the trainer failed {TRAINER_TRIES} times in a row: {error}") from error
        self._reporter.on_window(result)
        return Window(result.end - effect.base, result.steps, result.tokens)

    def _on_progress(self, step: int, _loss: float) -> None:
        self._reporter.on_progress(step, self._run.manifest.round.steps or 0)

    async def _pulse(self) -> None:
        """Read now and then what nobody reports."""
        process = psutil.Process()
        while True:
            daemon = st.Daemon(process.pid, process.memory_info().rss)
            trainer = st.Child(self._worker.pid, self._worker.rss, self._worker.restarts)
            self._reporter.apply(st.Processes(daemon, self._reporter.status.processes.p2pd, trainer))
            self._tell_waiting()
            self._tell_deadline()
            await asyncio.sleep(PULSE_S)

    def _tell_waiting(self) -> None:
        """Say that nobody is there, and for whom a round waits unusually long."""
        if self._machine is None or self._session is None or self._session.stopping.is_set():
            return
        lonely = len(self._machine.head.table.voters) > 1 and not self._reporter.status.peers.total
        state: st.State = "seeking" if lonely else "training"
        if self._reporter.status.state != state:
            reason = st.Reason("no_peers", "no other member is connected yet") if lonely else st.Reason()
            self._reporter.apply(st.StateChanged(state, time.time(), reason))
        phase, peers = self._machine.waiting()
        step = (self._machine.head.round, phase)
        if step != self._waiting[0]:
            self._waiting = (step, time.monotonic())
            self._reporter.apply(st.Cleared("waiting"))
        elif phase != "train" and time.monotonic() - self._waiting[1] > PATIENCE_S:
            names = ", ".join(short(each) for each in peers) or "its own work"
            self._reporter.apply(st.Warned("waiting", f"{phase}: waiting for {names}", "they may be slow or offline"))

    def _tell_deadline(self) -> None:
        """How long it is until something is due; it may be the training itself that everything waits for."""
        if self._machine is not None and (now := self._reporter.status.round).phase is not None:
            left = self._machine.deadline() - time.monotonic()
            self._reporter.apply(st.Progressed(now.progress, max(0.0, left) if left < math.inf else None))

    def _load_run(self) -> Run:
        manifest = load_run(self._options, self._identity)
        keep_manifest(self._home, manifest)
        training = train_config(manifest, self._options.data)
        scope = Scope(run_id(manifest), CELL)
        return Run(manifest, scope, round_setting(manifest, training.parameters), training)

    def _checkpoint(self) -> Checkpoint:
        """The last sealed state, or the run's beginning."""
        found = self._store.load()
        for text in self._store.warnings:
            self._reporter.warn("checkpoint", text)
        if found is not None:
            self._reporter.say(
                f"going on after sealed round {found.head.round}", event="resumed", round=found.head.round
            )
            self._reporter.apply(st.Loaded(len(found.params), _state_of(found.head), last_sealed=found.head.round))
            return found
        training = self._run.training
        params = initial_vector(training.size, training.context, training.seed)
        momentum = params * 0
        root = state_root(params, momentum)
        self._reporter.apply(st.Loaded(len(params), root.hex(), last_sealed=0))
        return Checkpoint(
            seal_zero(self._run.scope, self._run.manifest.members.founders, root), params, momentum, momentum.copy()
        )

    def _make_reporter(self) -> Reporter:
        manifest, scope = self._run.manifest, self._run.scope
        initial = st.Status(
            version=version("murmuration"),
            protocol=PROTOCOL,
            peer=self._identity.peer,
            since=time.time(),
            run=st.RunInfo(scope.run.hex(), manifest.run.name, manifest.model.size, scope.cell),
            model=st.ModelInfo(parameters=self._run.setting.values),
            processes=st.Processes(daemon=st.Daemon(os.getpid(), None)),
        )
        return Reporter(
            initial,
            self._store,
            limits=(self._options.rounds, manifest.run.rounds),
            as_json=self._options.json,
            shakespeare=manifest.data.name == SHAKESPEARE,
        )

    def _greet(self) -> None:
        manifest, alone = self._run.manifest, self._options.alone
        self._reporter.greet(manifest, self._run.setting.values, str(self._home.key), alone=alone)

    def _tell_ready(self) -> None:
        window = self._run.manifest.round
        length = f"{window.steps} steps" if window.steps else f"{window.seconds} s"
        self._reporter.say(
            f"  trainer    ready on {self._worker.device}: {length} a round, then a line for each sealed round"
        )


def _state_of(head: Head) -> str:
    body = head.proposal.body if head.proposal else None
    return getattr(body, "state", b"").hex()
