"""Where ``murmur swarm`` speaks to a person, and where its report goes."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from protocols.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


class Output:
    """Lines on stdout, the report in a file (``--json FILE``); with ``-`` the report has stdout, and lines stderr."""

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError where the report has no place."""
        if path is not None and not path.resolve().parent.is_dir():
            raise ConfigError(f"the report cannot go to {path}: no such folder", remedy="create it first")
        self._path = path
        self._piped = str(path) == "-"

    def say(self, text: str) -> None:
        """One line for a person, at once."""
        screen = sys.stderr if self._piped else sys.stdout
        screen.write(f"{text}\n")
        screen.flush()

    def write(self, document: dict[str, Any]) -> None:
        """The report."""
        text = json.dumps(document, indent=1) + "\n"
        if self._piped:
            sys.stdout.write(text)
        elif self._path is not None:
            self._path.write_text(text)
