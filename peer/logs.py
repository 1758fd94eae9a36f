"""Where log lines go: all of them to a file that rotates, warnings also to the terminal."""

from __future__ import annotations

import logging
import logging.handlers
from typing import TYPE_CHECKING

from protocols.errors import EnvironmentFault

if TYPE_CHECKING:
    from pathlib import Path

LOG_BYTES = 4 << 20
LOG_FILES = 3
FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def start_logging(path: Path, *, debug: bool) -> None:
    """Send this process's log to ``path`` (4 MiB, 3 old ones kept) and warnings to stderr."""
    try:
        file = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write {path}: {error.strerror}", remedy="free some disk space or choose another --home"
        ) from error
    screen = logging.StreamHandler()
    screen.setLevel(logging.DEBUG if debug else logging.WARNING)
    screen.setFormatter(logging.Formatter("  ! %(message)s"))
    file.setFormatter(logging.Formatter(FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [file, screen]
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
