"""The daemon's log read back: its last lines over the rotated files, and what is written from then on."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from protocols.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

LEVELS = ("debug", "info", "warning", "error", "critical")
CHUNK = 1 << 16
LINE_BYTES = 1 << 20
"""Of one line; a longer one is shown in pieces."""
OLD_FILES = 3


class LogReader:
    """One pass over a log that another process writes and rotates. Raises FileNotFoundError when there is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO = path.open("rb")
        self._rest = b""

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def last(self, count: int, wanted: Callable[[bytes], bool]) -> list[bytes]:
        """The last ``count`` lines that are ``wanted`` (0 = all), oldest first, without their line ends."""
        found: deque[bytes] = deque(filter(wanted, self._new()), maxlen=count or None)
        for number in range(1, OLD_FILES + 1):
            if count and len(found) == count:
                break
            try:
                with self._path.with_name(f"{self._path.name}.{number}").open("rb") as file:
                    older = [line.rstrip(b"\n") for line in file if wanted(line)]
            except FileNotFoundError:
                break
            found.extendleft(reversed(older[-(count - len(found)) :] if count else older))
        return list(found)

    def follow(self, wait: Callable[[], object], wanted: Callable[[bytes], bool]) -> Iterator[bytes]:
        """Lines as they are written, for ever; ``wait`` is called whenever there is none."""
        while True:
            # Asked before reading: what is written until then is read from this file still.
            turned = self._is_turned()
            lines = [line for line in self._new() if wanted(line)]
            yield from lines
            if turned:
                self._file.close()
                self._file, self._rest = self._path.open("rb"), b""
            elif not lines:
                wait()

    def _is_turned(self) -> bool:
        """Whether the log's name belongs to a newer file by now, or to the same one cut short."""
        ours = os.fstat(self._file.fileno())
        try:
            named = self._path.stat()
        except FileNotFoundError:
            return False  # between the two renames of a rotation
        return (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino) or named.st_size < self._file.tell()

    def _new(self) -> Iterator[bytes]:
        """Whole lines written since the last look."""
        while chunk := self._file.read(CHUNK):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            yield from lines
            if len(self._rest) > LINE_BYTES:
                yield self._rest
                self._rest = b""


def at_least(level: str) -> Callable[[bytes], bool]:
    """Whether a JSON line is of this level or above; what is no such line is wanted always."""
    least = LEVELS.index(level)
    if not least:
        return lambda _: True

    def wanted(line: bytes) -> bool:
        document = parsed(line)
        return document is None or LEVELS.index(document["level"]) >= least

    return wanted


def parsed(line: bytes) -> dict[str, Any] | None:
    """A line of the JSON log; None for anything else, such as what a crash has cut off."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(document, dict) and document.get("level") in LEVELS
    return document if whole and isinstance(document.get("unix"), int | float) else None


class Row(NamedTuple):
    """A log line for a person. Nothing in it moves a terminal's cursor."""

    stamp: str
    """Local time; empty for a line that is none of the log's."""
    level: str
    text: str
    trace: tuple[str, ...]


def shown(line: bytes) -> Row:
    """A JSON line for a person."""
    document = parsed(line)
    if document is None:
        return Row("", "", one_line(line.decode(errors="replace")), ())
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(document["unix"]))
    trace = str(document.get("exception") or "").splitlines()
    return Row(stamp, document["level"], one_line(str(document.get("text", ""))), tuple(map(one_line, trace)))
