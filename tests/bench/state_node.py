"""A peer for measurements of the state transfer: real p2pd, streams, session and machine, but a trainer that sleeps.

It runs in a network namespace, in a process that is forked once everything is imported.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import uvloop

from dht.p2pd import P2pd, P2pdConfig
from dht.transport import StreamTransport, TransportConfig
from peer.identity import Identity
from peer.journal import Journal
from peer.outbox import Limits, Outbox
from peer.part_file import PartFile
from peer.session import Session
from peer.state import Checkpoint, StateStore
from peer.virtual import Plan, QuickScope, World
from peer.windows import Parts
from protocols.outer import state_root
from protocols.round.chain import seal_zero
from protocols.round.effects import Sealed, Setting, Syncing, Window
from protocols.round.machine import Machine
from protocols.statements import Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocols.ids import PeerId
    from protocols.ports import Buffer
    from protocols.round.effects import Train, Vector
    from protocols.round.links import Image

SCOPE = Scope(b"b" * 32, "model")
PORT = 4001


def setting(values: int) -> Setting:
    """A run of so many parameters, int8 both ways."""
    return Setting(
        values=values, update_codec="int8", result_codec="int8", rule="mean", tolerated=1 / 3, lr=0.7, momentum=0.8,
        probation=0, open=True,
    )  # fmt: skip


def beginning(values: int) -> tuple[Vector, Vector]:
    """Parameters and momentum of seal 0."""
    return np.linspace(-1, 1, values, dtype=np.float32), np.zeros(values, dtype=np.float32)


def drifted(values: int, seed: int) -> Vector:
    """What a window has trained."""
    return np.random.default_rng(seed).standard_normal(values, dtype=np.float32) * np.float32(0.01)


def identity(number: int) -> Identity:
    """Keys of founders and joiners."""
    return Identity.from_seed(bytes([number]) * 32)


def made(folder: Path, values: int, founders: int, rounds: int) -> dict[int, Image]:
    """Write the homes of founders that have made so many rounds, on virtual time; gives their chains."""
    keys = [identity(number + 1) for number in range(founders)]

    def train(_peer: PeerId, effect: Train) -> Window | None:
        return Window(effect.drift + drifted(values, effect.round), 1, 1) if effect.round <= rounds else None

    plan = Plan(
        scope=QuickScope(SCOPE.run, SCOPE.cell), setting=setting(values), founders=keys, state=beginning(values),
        trainer=train,
    )  # fmt: skip
    world = World(0, founders, rounds, plan=plan)
    world.rules.bounded = lambda *_: None  # type: ignore[method-assign] # large vectors, and nobody sends too much
    world.run().require()
    for number, key in enumerate(keys):
        sealed = world.peers[key.peer].sealed[-1]
        store = StateStore(folder / str(number + 1) / "run", SCOPE, values)
        store.save(Checkpoint(sealed.head, sealed.params, sealed.momentum, sealed.drift, sealed.ages))
    return {number + 1: world.peers[key.peer].machine.chain for number, key in enumerate(keys)}


@dataclass(frozen=True)
class Spec:
    """One node: whose key, where, whom it dials, how long its windows are, and whether it ends with a synced state."""

    number: int
    namespace: str
    address: str
    home: Path
    values: int
    founders: int
    dials: tuple[tuple[int, str], ...] = ()
    window_s: float = 1e6
    until_synced: bool = False
    past: Image | None = None


class Node:
    """Runs one, and writes what happens as JSON lines."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.done = spec, asyncio.Event()
        self._out = (spec.home.parent / f"{spec.number}.jsonl").open("a", buffering=1)

    def say(self, what: str, **fields: Any) -> None:
        """Something happened now."""
        self._out.write(json.dumps({"t": time.monotonic(), "what": what, **fields}) + "\n")

    def on_effect(self, effect: object) -> None:
        """See ``session.Observer``."""
        if isinstance(effect, Syncing):
            self.say("syncing", done=effect.done, total=effect.total, donors=effect.donors, position=effect.position)

    async def on_sealed(self, effect: Sealed) -> bool:
        """See ``session.Observer``."""
        self.say("sealed", round=effect.record.round, synced=effect.record.synced, void=effect.record.void)
        if effect.record.synced and self.spec.until_synced:
            self.done.set()
        return True

    def on_disk(self, error: Exception | None) -> None:
        """See ``session.Observer``."""
        self.say("disk", error=str(error))

    async def train(self, effect: Train) -> Window:
        """A window that takes its time."""
        await asyncio.sleep(self.spec.window_s)
        drift = effect.drift + drifted(self.spec.values, effect.round)
        return Window(drift, 1, 1)

    async def run(self) -> None:
        """Until it is done, or killed."""
        spec, key = self.spec, identity(self.spec.number)
        if not (spec.home / "key").exists():
            key.save(spec.home / "key")
        store = StateStore(spec.home / "run", SCOPE, spec.values)
        journal = Journal(store.journal_path, SCOPE, key.peer, key.sign)
        found, state = store.load(), beginning(spec.values)
        founders = [identity(number + 1).peer for number in range(spec.founders)]
        head = found.head if found else seal_zero(SCOPE, founders, state_root(*state))
        state = (found.params, found.momentum) if found else state
        machine = Machine(
            SCOPE, key.peer, setting(spec.values), head, state, signed_view=journal.signed_view,
            part=PartFile(store.folder).seal(), past=spec.past,
        )  # fmt: skip
        transport = StreamTransport(
            TransportConfig(SCOPE.run, "bench"),
            lambda sender, kind, payload: self._frame(session, sender, kind, payload),
            on_neighbours=lambda neighbours: session.on_neighbours(neighbours),  # noqa: PLW0108 - it comes later
            members=lambda: frozenset(founders),
        )
        outbox = Outbox(_Counting(transport, self), Limits.of(spec.values))
        parts = Parts(SCOPE, machine, journal, store, self.train, time.monotonic)
        session = Session(parts, self, outbox)
        async with P2pd(P2pdConfig(spec.home, spec.home / "key", PORT, spec.address)) as p2pd:
            await transport.start(p2pd.control)
            running = asyncio.create_task(session.run())
            for number, address in spec.dials:
                peer = identity(number).peer
                where = f"/ip4/{address}/tcp/{PORT}/p2p/{peer}"
                asyncio.get_running_loop().create_task(_connect(transport, peer, where))  # noqa: RUF006 - until the end
            self.say("up")
            await asyncio.wait({running, asyncio.create_task(self.done.wait())}, return_when="FIRST_COMPLETED")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await p2pd.retire()
            await outbox.close()
            await transport.close()
        self.say("end")

    async def _frame(self, session: Session, sender: PeerId, kind: str, payload: bytes) -> None:
        if kind == "state":
            self.say("chunk")
        await session.on_frame(sender, kind, payload)


class _Counting:
    """A transport that says which chunks it has written."""

    def __init__(self, transport: StreamTransport, node: Node) -> None:
        self._transport, self._node = transport, node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    async def send(self, to: PeerId, kind: str, payload: Sequence[Buffer]) -> None:
        """See ``Transport.send``."""
        await self._transport.send(to, kind, payload)
        if kind == "state":
            self._node.say("sent", to=to)


async def _connect(transport: StreamTransport, peer: PeerId, where: str) -> None:
    while True:
        try:
            await transport.connect(peer, [where])
            return
        except Exception:  # noqa: BLE001 - it may not be up yet
            await asyncio.sleep(0.2)


def fork(spec: Spec) -> int:
    """Start a node in a process of its own; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        spec.home.mkdir(parents=True, exist_ok=True)
        with Path(f"/var/run/netns/{spec.namespace}").open("rb") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns")
        uvloop.run(_main(spec))
    except BaseException:
        (spec.home.parent / f"{spec.number}.err").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


async def _main(spec: Spec) -> None:
    await Node(spec).run()
