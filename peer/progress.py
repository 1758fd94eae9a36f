"""How far something long has come: a bar on a terminal, a line now and then elsewhere, nothing if it is soon done."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 0.5
"""What is done by then needs no bar."""
LINE_S = 5.0
"""Between two lines where there is no terminal."""


@contextmanager
def progress(
    what: str, total: int, *, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int], None]]:
    """Yields what is called with each further number of bytes done, of ``total``; ``now``: seconds.

    It writes to ``stream`` (stderr): stdout belongs to what the command is asked for.
    """
    shown = _Shown(what, total, stream or sys.stderr, now)
    try:
        yield shown.advance
    finally:
        shown.end()


class _Shown:
    def __init__(self, what: str, total: int, stream: TextIO, now: Callable[[], float]) -> None:
        self._what, self._total, self._stream, self._now = what, total, stream, now
        self._done, self._due = 0, now() + PATIENCE_S
        self._bar: Callable[[int], None] | None = None
        self._stop: Callable[[], None] = lambda: None

    def advance(self, count: int) -> None:
        self._done += count
        if self._bar is not None:
            self._bar(count)
        elif self._now() >= self._due and self._done < self._total:
            if self._stream.isatty():
                self._start_bar()
            else:
                self._due = self._now() + LINE_S
                self._stream.write(f"{self._what}: {self._done / 1e6:.0f} of {self._total / 1e6:.0f} MB\n")
                self._stream.flush()

    def end(self) -> None:
        self._stop()

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=Console(file=self._stream), transient=True)
        task = bar.add_task(self._what, total=self._total, completed=self._done)
        bar.start()
        self._bar, self._stop = lambda count: bar.advance(task, count), bar.stop
