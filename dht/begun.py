"""The tasks of hivemind's searches, owned: it begins them without keeping them, and some never end.

A search that fails or is cancelled leaves tasks behind that wait for events of its own. Nothing refers to them, so the
interpreter collects them and complains: "Task was destroyed but it is pending".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from .tasks import end

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

log = logging.getLogger(__name__)

_OWNER: ContextVar[Begun | None] = ContextVar("the owner of tasks that a search begins", default=None)


class Begun:
    """The tasks that were begun ``inside``, also by such tasks, until they are done."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What is begun in this block, by way of ``Watched``, is owned."""
        token = _OWNER.set(self)
        try:
            yield
        finally:
            _OWNER.reset(token)

    def add(self, task: asyncio.Task[Any]) -> None:
        """Own a task."""
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def adopt(self, other: Begun) -> None:
        """Own what another one has owned until now."""
        for task in other._tasks:
            self.add(task)
        other._tasks.clear()

    async def end(self) -> None:
        """Cancel what is left and wait for its end."""
        await end(self._tasks)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:  # what nobody waits for is no defect
            log.debug("a part of a search failed: %r", error)


class Watched:
    """``asyncio`` for a module whose tasks are to be owned by whoever called it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    def create_task(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """As asyncio does."""
        task, owner = asyncio.create_task(work), _OWNER.get()
        if owner is not None:
            owner.add(task)
        return task
