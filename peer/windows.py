"""The windows of a session: one at a time, each from the trainer or from what was committed before a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from protocols.round.effects import Effect, Train, Vector, Window

if TYPE_CHECKING:
    import asyncio

    from protocols.round.machine import Machine
    from protocols.statements import Scope

    from .journal import Journal
    from .state import StateStore

log = logging.getLogger(__name__)

Clock = Callable[[], float]
Input = Callable[[float], list[Effect]]


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


class Windows:
    """Asks the trainer for what the machine wants, and hands in what comes."""

    def __init__(
        self,
        parts: Parts,
        on_disk: Callable[[Callable[[], Any]], Coroutine[None, None, Any]],
        spawn: Callable[[Coroutine[None, None, None], str], asyncio.Task[None]],
        hand_in: Callable[[Input], None],
    ) -> None:
        """``spawn`` gives a coroutine an owner; ``hand_in`` brings an input to the machine."""
        self._parts, self._on_disk, self._spawn, self._hand_in = parts, on_disk, spawn, hand_in
        self._next: Train | None = None
        self._task: asyncio.Task[None] | None = None
        self._restarted = True
        self._ended = False

    def ask(self, effect: Train) -> None:
        """Train this window; while another is in flight it waits, and a newer one replaces it."""
        if self._ended:
            return
        self._next = effect
        if self._task is None or self._task.done():
            self._task = self._spawn(self._train(), "train")

    def give_up(self) -> None:
        """The window in flight is of no use any more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def end(self) -> None:
        """Train nothing any more."""
        self._ended = True
        self.give_up()

    async def _train(self) -> None:
        while (effect := self._next) is not None:
            self._next = None
            window = await self._window(effect)
            self._hand_in(partial(self._parts.machine.trained, effect.parent, window))

    async def _window(self, effect: Train) -> Window:
        """The window that was committed before a restart, or a new one."""
        if self._restarted:
            self._restarted = False
            pending = await self._on_disk(partial(self._parts.store.load_pending, effect.parent))
            if pending is not None:
                log.info("round %d: taking up the update committed before the restart", effect.round)
                return Window(*pending)
        return await self._parts.trainer(effect)
