"""Where log lines go: all of them to two files that rotate, for people and for programs, warnings also to the terminal.

A JSON line has ``schema``, ``unix`` (seconds), ``level``, ``logger`` and ``text``; what a line of ``murmur up`` knows
as fields (``event``, ``round``, …), the ``run`` and the ``peer`` it is about, and ``exception`` where one was logged.
"""

from __future__ import annotations

import logging
import logging.handlers
import sys
import threading
from typing import TYPE_CHECKING, Any

import structlog

from protocols.errors import EnvironmentFault, one_line

from .terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from structlog.typing import EventDict

    from .paths import Home
    from .terminal import Mark

log = logging.getLogger(__name__)

LOG_BYTES = 4 << 20
LOG_FILES = 3
FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
FIELDS = "fields"
"""``extra={FIELDS: {…}}`` of a log call: what its JSON line has beside the text."""
LEVELS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error"}
"""Our own names: hivemind renames logging's."""
FILES_ONLY = {"files_only": True}
"""``extra`` of a log call about what the terminal is told in another way."""


def start_logging(home: Home, *, debug: bool) -> None:
    """Send this process's log to the home's two files (4 MiB, 3 old ones kept, of each) and warnings to stderr.

    Raises EnvironmentFault when a file cannot be written. A disk that fills up later ends nothing: the log has a gap.
    """
    people, programs = _File.open(home.log), _File.open(home.json_log)
    people.setFormatter(_Line(FORMAT))
    programs.setFormatter(json_lines())
    screen = _Screen()
    screen.setLevel(logging.DEBUG if debug else logging.WARNING)
    screen.setFormatter(_Line("%(message)s") if debug else _Short("%(message)s"))
    screen.addFilter(lambda record: not getattr(record, "files_only", False))
    root = logging.getLogger()
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = [people, programs, screen]
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    logging.captureWarnings(capture=True)
    threading.excepthook = _thread_failed
    sys.unraisablehook = _unraisable
    for chatty in ("uvicorn", "multiaddr"):  # the latter tells every step of its parsing
        logging.getLogger(chatty).setLevel(logging.WARNING)


def _thread_failed(given: threading.ExceptHookArgs) -> None:
    """Python would print a traceback on the terminal."""
    if given.exc_value is not None and given.exc_type is not SystemExit:
        log.error("a thread failed: %r", given.exc_value, exc_info=given.exc_value)


def _unraisable(given: sys.UnraisableHookArgs) -> None:
    log.error("ignored: %r in %r", given.exc_value, given.object, exc_info=given.exc_value)


def about(**names: Any) -> None:
    """What all JSON lines of this task, and of those it starts, are about from here on."""
    structlog.contextvars.bind_contextvars(**names)


def json_lines() -> logging.Formatter:
    """Records as JSON objects, one a line."""
    before: Sequence[Any] = (structlog.contextvars.merge_contextvars, _fields, structlog.processors.format_exc_info)
    after: Sequence[Any] = (
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.EventRenamer("text", replace_by="_event"),
        structlog.processors.JSONRenderer(default=str),
    )
    return structlog.stdlib.ProcessorFormatter(processors=after, foreign_pre_chain=before)


def _fields(_logger: object, _method: str, line: EventDict) -> EventDict:
    """The keys of a JSON line: the record's own, its fields where they have other names, and what the task is about."""
    record: logging.LogRecord = line["_record"]
    given = dict(getattr(record, FIELDS, None) or {})
    if "event" in given:
        line["_event"] = given.pop("event")  # structlog's own name for the text, until it is renamed
    structlogs = ("event", "_record", "_from_structlog", "_event", "exc_info", "stack_info")
    level = LEVELS.get(record.levelno, "critical")
    base = {"schema": 1, "unix": round(record.created, 3), "level": level, "logger": record.name}
    own = {name: value for name, value in given.items() if name not in (*base, *structlogs)}
    return {**base, **line, **own}


class _Line(logging.Formatter):
    """One line whatever a peer put into it; a traceback keeps its lines, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(f"    {line}" for line in super().formatException(ei).splitlines())


class _Short(_Line):
    """Without the traceback, which the files have."""

    def format(self, record: logging.LogRecord) -> str:
        record = logging.makeLogRecord(record.__dict__)
        record.exc_info = record.exc_text = record.stack_info = None
        return super().format(record)


class _Screen(logging.StreamHandler[Any]):
    """Lines on stderr that look like those of ``murmur up``, below what it rewrites on the same terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        mark: Mark = "warn" if record.levelno >= logging.WARNING else "note"
        label = LEVELS.get(record.levelno, "critical")
        try:
            first, *rest = self.format(record).split("\n")
            terminal = Terminal(self.stream)
            terminal.wipe()
            terminal.item(mark, label, first)
            for line in rest:
                terminal.line(line)
        except Exception:  # as every handler of logging: a line that cannot be written must not end what wrote it
            self.handleError(record)


class _File(logging.handlers.RotatingFileHandler):
    """A log file; what the disk refuses is lost, without a word on the terminal: the status tells of a full disk."""

    @classmethod
    def open(cls, path: Path) -> _File:
        """Raises EnvironmentFault."""
        try:
            return cls(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8", errors="replace")
        except OSError as error:
            raise EnvironmentFault(
                f"cannot write {path}: {error.strerror}", remedy="free some disk space or choose another --home"
            ) from error

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
