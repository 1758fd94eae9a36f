"""What a person asks of a running daemon: pause, resume, finish."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from protocols.errors import ConfigError, EnvironmentFault, LocalError

from . import status as st
from .memory import give_back
from .pausing import PauseFile, checked, is_on

if TYPE_CHECKING:
    from pathlib import Path

    from .reporter import Reporter
    from .session import Session
    from .worker import Worker

LOOK_S = 60.0
"""The clock of a pause may be set: it is looked at this often."""


class Control:
    """Holds the owner's wish, and sees that trainer, round machine and status follow it."""

    def __init__(self, path: Path, reporter: Reporter) -> None:
        """``path`` of the file in which a pause is kept. One that still holds begins at once."""
        self._file, self._reporter = PauseFile(path), reporter
        self._pause = self._file.load(time.time())
        self._worker: Worker | None = None
        self._session: Session | None = None
        self._turn, self._changed = asyncio.Lock(), asyncio.Event()
        self.finishing = asyncio.Event()
        """Set: the round under way is the last."""
        reporter.apply(st.Paused(self._pause))

    @property
    def paused(self) -> bool:
        """Whether nothing is to be trained for the time being."""
        return self._pause is not None

    @property
    def reason(self) -> st.Reason:
        """Why, for the status."""
        until = self._pause.until if self._pause else None
        clock = f"{time.strftime('%a %H:%M', time.localtime(until))} or " if until else ""
        return st.Reason("user", f"by you, until {clock}`murmur resume`")

    async def steer_trainer(self, worker: Worker) -> None:
        """There will be a trainer, now or when the pause is over."""
        self._worker = worker
        if self.paused:
            await worker.pause()

    def steer_session(self, session: Session) -> None:
        """Rounds begin."""
        self._session = session
        if self.paused:
            session.pause()

    async def pause(self, seconds: str) -> dict[str, Any]:
        """Pause for so many seconds, or (empty) until ``resume``; returns when the trainer is gone.

        Raises ConfigError for what is no time, LocalError while the daemon ends anyway.
        """
        if self.finishing.is_set() or self._reporter.status.state in ("finishing", "stopping"):
            raise LocalError("this daemon is about to end", remedy="`murmur stop` ends it at once")
        now = time.time()
        pause = st.Pause(now, now + checked(_number(seconds)) if seconds else None)
        async with self._turn:
            self._file.save(pause)
            self._set(pause)
            if self._session is not None:
                self._session.pause()
            if self._worker is not None:
                await self._worker.pause()
        told = f"{self.reason.text}: nothing is trained, all else goes on"
        self._reporter.show(("note", "paused", told), event="paused", until=pause.until)
        self._show()
        await self.rest()
        return {"schema": 1, "state": "paused", "pause": {"since": pause.since, "until": pause.until}}

    async def rest(self) -> None:
        """While paused, keep no memory for rounds to come."""
        if self.paused:
            await asyncio.to_thread(give_back)

    async def resume(self) -> dict[str, Any]:
        """Go on; does no harm where nothing is paused."""
        async with self._turn:
            paused = self._pause is not None
            self._file.save(None)
            self._set(None)
            if self._worker is not None:
                self._worker.resume()
            if self._session is not None and paused:
                self._session.resume()
        if paused:
            told = "goes on where it was; the trainer loads, some seconds"
            self._reporter.show(("ok", "resumed", told), event="resumed_training")
            self._show()
        return {"schema": 1, "state": self._reporter.status.state}

    def finish(self) -> dict[str, Any]:
        """End with the round under way; where there is none, at once."""
        self.finishing.set()
        self._reporter.finish()
        under_way = self._session is not None and not self.paused
        if under_way:
            self._reporter.show(("note", "finishing", "the round under way is the last"), event="finishing")
            self._reporter.enter("finishing", st.Reason("user", "ends with the round under way"))
        return {"schema": 1, "state": "finishing" if under_way else "stopping", "under_way": under_way}

    async def run(self) -> None:
        """End a pause when its time is up; until cancelled."""
        while True:
            self._changed.clear()
            now, pause = time.time(), self._pause
            if pause is not None and not is_on(pause, now):
                try:
                    await self.resume()
                except EnvironmentFault as error:
                    self._reporter.warn("pause", str(error), error.remedy)
            until = pause.until if pause is not None and self._pause is pause else None
            left = LOOK_S if until is None else min(LOOK_S, max(1.0, until - now))
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _set(self, pause: st.Pause | None) -> None:
        self._pause = pause
        self._changed.set()
        self._reporter.apply(st.Paused(pause))

    def _show(self) -> None:
        """State and trainer at once, where nothing else has a say."""
        if self._worker is not None:
            known, worker = self._reporter.status.processes, self._worker
            trainer = st.Child(worker.pid, worker.rss, worker.restarts)
            self._reporter.apply(st.Processes(known.daemon, known.p2pd, trainer))
        if self._session is not None and not self._session.stopping.is_set():
            if self.paused:
                self._reporter.enter("paused", self.reason)
            else:
                self._reporter.enter("training")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{text[:40]!r} is no number of seconds", remedy="give a number, as in 7200") from None
