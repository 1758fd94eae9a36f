"""The daemon: puts the parts together, owns them, and ends them in order. Decides nothing of the protocol."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import time
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING

import uvloop

from dht.tasks import end, keep_going
from protocols import invitation
from protocols.errors import EnvironmentFault, LocalError, MurmurError
from protocols.ids import PROTOCOL, PeerId
from protocols.reduce import self_test
from protocols.round.effects import Sealed, Told, Train, Window
from protocols.round.machine import Machine

from . import first_screen
from . import status as st
from .api import ApiServer
from .control import Control
from .corpus import NAME as SHAKESPEARE
from .desk import Desk, answers
from .entering import STARTING, Entry, Run, beginning
from .exits import Exit
from .identity import Identity
from .journal import Journal
from .lock import hold
from .logs import FILES_ONLY, about, start_logging
from .memory import keep_freed, reserve, spare_loaded
from .outbox import Limits, Outbox
from .part_file import PartFile
from .paths import Home, default_home
from .pulse import PULSE_S, Pulse
from .refusals import state_gauges
from .reporter import Reporter
from .roots import find_roots
from .runs import find_run
from .session import Session
from .settings import CELL, exchange_bytes, round_bytes, update_bytes
from .state import StateStore
from .training import Window as TrainWindow
from .usage import Usage, usable_cores
from .windows import Parts
from .worker import TrainerLost, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from .options import UpOptions

log = logging.getLogger(__name__)

LINGER_S = 30.0
"""After the last round: how long to wait for the others to have sealed it too; they may need our votes and bytes."""
TRAINER_TRIES = 3
"""A window is asked for this often before the daemon gives up on its trainer."""


def run(options: UpOptions, *, wrap: Callable[[Machine], Machine] | None = None) -> int:
    """``murmur up``: returns the exit code. Raises MurmurError for what a person has to mend."""
    home = Home(options.home)
    home.create()
    keep_freed()
    spare_loaded()
    with hold(home.lock):
        start_logging(home, debug=options.debug)
        try:
            while True:
                daemon = Daemon(options, home, wrap=wrap)
                code = uvloop.run(_supervised(daemon))
                if not daemon.gives_way:
                    return code
        except MurmurError as error:
            log.error("%s", f"{error} ({error.remedy})" if error.remedy else error, extra=FILES_ONLY)
            raise
        except Exception:
            log.exception("the daemon failed", extra=FILES_ONLY)
            raise


async def _supervised(daemon: Daemon) -> int:
    """Run the daemon until it ends by itself or a signal asks it to."""
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, daemon.stop)
    return await daemon.run()


Started = tuple[Session, Outbox | None]
"""A session ready to run; no outbox: alone."""


class Daemon:
    """One peer of one run."""

    def __init__(self, options: UpOptions, home: Home, *, wrap: Callable[[Machine], Machine] | None = None) -> None:
        """``wrap`` gets the round machine and gives the one that is run: for what ``swarm`` injects."""
        self._options, self._home, self._wrap = options, home, wrap
        self._new = not home.key.exists()
        self._identity = Identity.load_or_create(home.key)
        self._goal = find_run(options, home, self._identity)
        about(peer=self._identity.peer, run=self._goal.run.hex())
        self._reporter = Reporter(self._first_status(), as_json=options.json)
        self._entry = Entry(self._goal, options, home, self._identity, self._reporter)
        self._control = Control(home.root / "pause.json", self._reporter)
        self._pulse = Pulse(self._reporter, self._control)
        self._stopping = asyncio.Event()
        self.gives_way = False
        """Another machine runs with this key: end, and wait in a new daemon, which knows nothing of this round."""
        self._worker: Worker | None = None
        self._machine: Machine | None = None
        self._evaluations: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Ask the daemon to end; what is sealed stays."""
        self._reporter.enter("stopping")
        self._stopping.set()

    def _give_way(self) -> None:
        self.gives_way = True
        self.stop()

    async def run(self) -> int:
        """Start every part, train, and end every part; returns the exit code."""
        self_test()
        async with AsyncExitStack() as stack:
            api = ApiServer(self._home, answers(self._desk(), self.stop))
            await api.start(self._options.api_port)
            stack.push_async_callback(api.close)
            pulse = keep_going(self._pulse.run, "pulse")
            stack.push_async_callback(end, [pulse, keep_going(self._control.run, "clock of a pause")])
            name = self._entry.run.manifest.run.name if self._entry.run else None
            self._reporter.greet(str(self._home.key), name, new=self._new)
            stack.callback(self._reporter.clear)
            started = await self._unless_stopped(self._start(stack))
            if started is not None:
                await self._until_done(*started)
        self._reporter.say(self._last_words(), event="stopped", round=self._sealed)
        return Exit.DONE

    @property
    def _sealed(self) -> int | None:
        return self._machine.head.round if self._machine is not None else None

    def _last_words(self) -> str:
        if self._sealed is None or self._entry.run is None:
            return "stopped before training began"
        last = self._entry.run.manifest.run.rounds
        rest = ", the run's last: `murmur export DIR` writes its model" if last and self._sealed >= last else ""
        lacks = "; what the disk refused is not kept" if self._reporter.warned("disk") else ""
        return f"stopped at sealed round {self._sealed}{rest}{lacks}"

    async def _unless_stopped(self, start: Coroutine[None, None, Started]) -> Started | None:
        """Starting takes a while, and nobody who asks the daemon to end should have to wait for it: None then."""
        starting = asyncio.create_task(start, name="start")
        stop = asyncio.create_task(self._stopping.wait(), name="stop")
        try:
            await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end([starting, stop])
        return None if starting.cancelled() else starting.result()

    async def _start(self, stack: AsyncExitStack) -> Started:
        """The network and, beside it, what is trained: as far as that is here it does not wait for the network."""
        entry = self._entry
        entry.check_port()
        worker = self._worker = self._pulse.worker = Worker(threads=self._options.threads, progress=self._on_progress)
        stack.push_async_callback(worker.stop)
        self._pulse.usage = Usage(self._home.root, worker.threads, self._options.blob_cap)
        self._reporter.guest = self._guest(worker.threads)
        await self._control.steer_trainer(worker)
        opening = asyncio.create_task(entry.open(stack, self._members), name="open network")
        try:
            worker.prepare()
            run = await entry.learn(opening)
            store = self._serve(run)
            await entry.have_data(run, opening)
            await worker.start(run.training, store.folder / "window.interrupted")
            await opening
        finally:
            await end([opening])
        entry.offer()
        self._tell_ready(run, worker)
        return await self._start_session(stack, run, store)

    def _serve(self, run: Run) -> StateStore:
        """The run is known: from here on everything of it has its place on the disk."""
        manifest = run.manifest
        store = StateStore(self._home.run(run.scope.run), run.scope, run.setting.values, self._options.keep_checkpoints)
        limits = (self._options.rounds, manifest.run.rounds)
        self._reporter.serve(store, limits=limits, shakespeare=manifest.data.name == SHAKESPEARE)
        self._reporter.apply(st.RunInfo(run.scope.run.hex(), manifest.run.name, manifest.model.size, run.scope.cell))
        self._reporter.describe(manifest, run.setting.values, counts=run.setting.admits(self._identity.peer))
        return store

    async def _start_session(self, stack: AsyncExitStack, run: Run, store: StateStore) -> Started:
        first = partial(self._entry.first_state, run)
        checkpoint = await asyncio.to_thread(beginning, run, store, self._reporter, first)
        last = run.manifest.run.rounds
        if last and checkpoint.head.round >= last:
            self._reporter.say(f"the run has ended after its {last} rounds", event="ended", round=checkpoint.head.round)
            self._stopping.set()
        self._reporter.begin(checkpoint.head)
        identity = self._identity
        journal = await asyncio.to_thread(Journal, store.journal_path, run.scope, identity.peer, identity.sign)
        stack.callback(journal.close)
        links = await asyncio.to_thread(store.links)
        roots = await asyncio.to_thread(find_roots, run, store, checkpoint, self._reporter)
        anchor = self._goal.anchor
        machine = Machine(
            run.scope,
            identity.peer,
            run.setting,
            checkpoint.head,
            (checkpoint.params, checkpoint.momentum),
            signed_view=journal.signed_view,
            links=links,
            ages=checkpoint.ages,
            part=await asyncio.to_thread(PartFile(store.folder).seal),
            past=roots.past,
            zero=roots.zero,
            followed=roots.followed,
            anchor=(anchor.seal, anchor.round) if anchor is not None else None,
        )
        self._machine = self._pulse.machine = machine if self._wrap is None else self._wrap(machine)
        parts = Parts(run.scope, self._machine, journal, store, self._train, time.monotonic, checkpoint.drift)
        return await self._connect(stack, run, parts)

    async def _connect(self, stack: AsyncExitStack, run: Run, parts: Parts) -> Started:
        network = self._entry.network
        if network is None:
            return Session(parts, self, None), None
        outbox = Outbox(network.transport, Limits.of(update_bytes(run.setting)))
        self._entry.yield_to(outbox.calm)
        session = Session(parts, self, outbox)
        await asyncio.to_thread(reserve, round_bytes(run.setting))
        stack.push_async_callback(outbox.close)
        stack.push_async_callback(network.close)  # before the outbox, so that what is under way arrives
        parts.journal.gate, network.lease.on_lost = network.lease.gate, self._give_way
        network.refusals.watch(partial(state_gauges, parts.machine))
        await network.attach(session)
        return session, outbox

    def _desk(self) -> Desk:
        return Desk(self._goal.anchor, self._entry, self._pulse, self._control)

    def _members(self) -> frozenset[PeerId]:
        """Peers that count: the run's founders and everybody in the table; before these are known, the seeds."""
        if self._entry.run is None:
            return frozenset(invitation.split(each)[1] for each in self._goal.seeds)
        table = self._machine.head.table.members if self._machine else ()
        return frozenset((*self._entry.run.manifest.members.founders, *table))

    async def _until_done(self, session: Session, outbox: Outbox | None) -> None:
        """Train until told to stop, until the last round is final, or until a part fails."""
        tasks = {
            "session": asyncio.create_task(session.run(), name="session"),
            "stop": asyncio.create_task(self._stopping.wait(), name="stop"),
            "finished": asyncio.create_task(self._finished(session, outbox), name="finished"),
        }
        self._pulse.session = session
        self._control.steer_session(session)
        self._pulse.tell_state()
        try:
            done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end([*tasks.values(), *self._evaluations])

    async def _finished(self, session: Session, outbox: Outbox | None) -> None:
        """Returns when the last round is sealed, measured, shown and final (or has had its time for that)."""
        await session.stopping.wait()
        self._reporter.enter("finishing")
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
        if self._entry.network is not None:
            record, level = effect.record, self._machine is not None and self._machine.level
            self._entry.network.lease.sealed(record.round, synced=record.synced, level=level)
        going_on = await self._reporter.on_sealed(effect)

        async def show() -> None:
            assert self._worker is not None  # whoever sealed has trained, or could have
            measure = None if self._control.paused else partial(self._worker.evaluate, effect.params)
            await self._reporter.held_out(effect.record, measure)
            await self._control.rest()

        task = asyncio.create_task(show(), name="held-out loss")
        self._evaluations.add(task)
        task.add_done_callback(self._evaluated)
        await asyncio.sleep(0)  # the evaluation asks for the trainer before the next window does
        return going_on

    def on_disk(self, error: EnvironmentFault | None) -> None:
        """Whether the disk takes what must be written goes to the reporter."""
        self._reporter.on_disk(error)

    def on_effect(self, effect: Told) -> None:
        """What else a session tells goes to the reporter."""
        self._reporter.on_effect(effect)

    def _evaluated(self, task: asyncio.Task[None]) -> None:
        self._evaluations.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("the held-out loss could not be measured: %s", error)

    async def _train(self, effect: Train) -> Window:
        """One window on base + drift; a trainer that dies is asked again."""
        assert self._worker is not None and self._entry.run is not None  # the session began with them
        given = self._entry.run.manifest.round
        window = TrainWindow(effect.parent, self._identity.peer, steps=given.steps, seconds=given.seconds)
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
        self._reporter.on_progress(step, (self._entry.run.manifest.round.steps or 0) if self._entry.run else 0)

    def _first_status(self) -> st.Status:
        manifest = self._goal.manifest
        name, size = (manifest.run.name, manifest.model.size) if manifest else (None, None)
        return st.Status(
            version=version("murmuration"),
            protocol=PROTOCOL,
            peer=self._identity.peer,
            reason=STARTING,
            since=time.time(),
            run=st.RunInfo(self._goal.run.hex(), name, size, CELL),
            processes=st.Processes(daemon=st.Daemon(os.getpid(), None)),
        )

    def _tell_ready(self, run: Run, worker: Worker) -> None:
        """Network, trainer, limits: all that is known when training can begin."""
        window, show = run.manifest.round, self._reporter.show
        network, members = self._entry.network, run.manifest.members
        found = network is not None and network.found
        show(first_screen.network(self._reporter.status, members, alone=self._options.alone, found=found))
        length = f"{window.steps} steps" if window.steps else f"{window.seconds} s"
        if len(members.founders) > 1 or self._goal.seeds:
            show(first_screen.traffic(exchange_bytes(run.setting)))
        if self._control.paused:
            show(("warn", "trainer", f"paused {self._control.reason.text}: nothing is trained, all else goes on"))
        else:
            processes = self._reporter.status.processes
            memory = sum(each.rss or 0 for each in (processes.daemon, processes.p2pd, processes.trainer))
            show(first_screen.trainer(worker.device, length, memory))
        self._reporter.welcome()

    def _guest(self, threads: int) -> list[first_screen.Item]:
        home, usual = self._home.root.resolve(), default_home().resolve()
        name = first_screen.callable_as(home, usual, shutil.which("murmur"), sys.argv[0])
        return first_screen.guest(threads, usable_cores(), self._options.blob_cap, name=name)
