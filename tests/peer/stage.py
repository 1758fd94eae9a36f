"""For tests of the session: a scripted machine, an outbox that sends nothing, an observer that remembers."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from peer.identity import Identity
from peer.journal import Journal
from peer.session import Session
from peer.state import StateStore
from peer.windows import Parts
from protocols.errors import EnvironmentFault
from protocols.round.effects import Sealed, Train
from protocols.round.links import Image
from tests.peer.test_state import SCOPE, VALUES, chain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from protocols.ids import Hash, PeerId
    from protocols.messages import Body
    from protocols.round.effects import Effect, Told, Window, Work
    from protocols.statements import Statement

ME, OTHER = (Identity.from_seed(bytes(31) + bytes([number])) for number in (1, 2))
NOTHING = np.zeros(VALUES, dtype=np.float32)
FULL = EnvironmentFault("cannot write it: No space left on device", remedy="free some")


def train(number: int) -> Train:
    return Train(chain()[0].head.seal, number, NOTHING, NOTHING)


def sealed(index: int = 1, **changes: Any) -> Sealed:
    each = chain()[index]
    record = cast("Any", None)
    return replace(Sealed(each.head, each.params, each.momentum, each.drift, each.ages, record), **changes)


class Script:
    """A machine that notes its calls and gives the effects it was told to give, each list once."""

    def __init__(self) -> None:
        self.head, self.me = chain()[0].head, ME.peer
        self.chain = Image((self.head,))
        self.window: Window | None = None
        self.all_ready = False
        self.calls: list[tuple[str, Any]] = []
        self.gives: dict[str, list[list[Effect]]] = {}
        self.due = math.inf
        self.called = asyncio.Event()
        self.on_call: Callable[[str], None] = lambda name: None
        self.read: Callable[[PeerId, str, bytes], bytes] = lambda sender, kind, payload: payload

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def deadline(self) -> float:
        return self.due

    def start(self, now: float, drift: object) -> list[Effect]:
        return self._call("start", drift)

    def tick(self, now: float) -> list[Effect]:
        return self._call("tick", now)

    def receive(self, statement: Statement, source: PeerId | None, now: float) -> list[Effect]:
        return self._call("receive" if source else "own", statement.body)

    def payload(self, sender: PeerId, kind: str, payload: bytes, now: float) -> list[Effect]:
        return self._call("payload", payload)

    def trained(self, parent: Hash, window: Window, now: float) -> list[Effect]:
        return self._call("trained", (parent, window.steps))

    def done(self, work: Work, value: object, now: float) -> list[Effect]:
        return self._call("done", (work.key, value))

    def welcome(self, peer: PeerId, now: float) -> list[Effect]:
        return self._call("welcome", peer)

    def left(self, peer: PeerId, now: float) -> list[Effect]:
        return self._call("left", peer)

    def finish(self, now: float) -> list[Effect]:
        return self._call("finish", None)

    def pause(self, now: float) -> list[Effect]:
        return self._call("pause", None)

    def resume(self, now: float) -> list[Effect]:
        return self._call("resume", None)

    def _call(self, name: str, value: object) -> list[Effect]:
        self.calls.append((name, value))
        self.called.set()
        self.on_call(name)
        waiting = self.gives.get(name)
        return waiting.pop(0) if waiting else []

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for calls until the condition holds."""
        while not condition():
            self.called.clear()
            await self.called.wait()


class Lines:
    """An outbox that sends nothing: who arrives and leaves is what the test says, floods are noted."""

    def __init__(self) -> None:
        self.changes: list[tuple[list[PeerId], list[PeerId]]] = []
        self.flooded: list[Body] = []

    def connect(self, neighbours: frozenset[PeerId]) -> tuple[list[PeerId], list[PeerId]]:
        return self.changes.pop(0)

    def flood(self, kind: str, payload: list[bytes], source: PeerId | None) -> None:
        self.flooded.append(SCOPE.decode(payload[0], sender="test").body)


class Stage:
    """A session of a script with a real journal and store in one folder."""

    def __init__(self, folder: Path) -> None:
        self.script, self.watcher, self.lines = Script(), Watcher(99), Lines()
        self.store = StateStore(folder, SCOPE, VALUES)
        self.journal = Journal(self.store.journal_path, SCOPE, ME.peer, ME.sign)
        self.windows: dict[int, asyncio.Future[Window]] = {}
        self.trains: list[int] = []
        self.now: Callable[[], float] = asyncio.get_running_loop().time
        self.task: asyncio.Task[None] | None = None

    def session(self) -> Session:
        async def trainer(effect: Train) -> Window:
            self.trains.append(effect.round)
            self.script.called.set()
            return await self.windows.setdefault(effect.round, asyncio.get_running_loop().create_future())

        machine, outbox = cast("Any", self.script), cast("Any", self.lines)
        parts = Parts(SCOPE, machine, self.journal, self.store, trainer, self.now)
        return Session(parts, self.watcher, outbox)

    def begin(self) -> Session:
        session = self.session()
        self.task = asyncio.create_task(session.run())
        return session

    async def end(self) -> None:
        assert self.task is not None
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task
        self.journal.close()


class Watcher:
    """An observer that keeps what it is told and says stop after ``rounds``."""

    def __init__(self, rounds: int = 2) -> None:
        self.rounds = rounds
        self.seen: list[Told] = []
        self.sealed: list[Sealed] = []
        self.disk: list[EnvironmentFault | None] = []
        self.changed = asyncio.Event()

    def on_effect(self, effect: Told) -> None:
        self.seen.append(effect)
        self.changed.set()

    def on_disk(self, error: EnvironmentFault | None) -> None:
        self.disk.append(error)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait, as long as the scene may last, until the condition holds."""
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def on_sealed(self, effect: Sealed) -> bool:
        self.sealed.append(effect)
        self.changed.set()
        return len(self.sealed) < self.rounds


def play(scene: Awaitable[None]) -> None:
    """Run a scene to its end, which must come soon and leave no task."""

    async def run() -> None:
        async with asyncio.timeout(30):
            await scene
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
