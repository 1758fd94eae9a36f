"""The owner's wish for a pause: kept in the home, so that neither a restart nor a crash forgets it."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from protocols.errors import ConfigError, EnvironmentFault

from .status_parts import Pause

if TYPE_CHECKING:
    from pathlib import Path

LONGEST_S = 366 * 86400.0
"""Of a pause with an end; one without is as long as you like."""


def checked(seconds: float) -> float:
    """Seconds of a pause; raises ConfigError when it has none, or too many."""
    if not 0 < seconds <= LONGEST_S:  # refuses what is no number as well
        raise ConfigError(
            f"a pause of {seconds:g} s: it must be above 0 and at most a year",
            remedy="leave the time out for a pause until `murmur resume`",
        )
    return seconds


class PauseFile:
    """``pause.json`` in a home."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, now: float) -> Pause | None:
        """The pause that holds at ``now``, unix seconds; what cannot be read is none."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            until = document["until"]
            pause = Pause(float(document["since"]), None if until is None else float(until))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        if not math.isfinite(pause.since) or not is_on(pause, now):
            return None
        return pause

    def save(self, pause: Pause | None) -> None:
        """Keep the pause, or that there is none; raises EnvironmentFault."""
        temporary = self._path.with_suffix(".new")
        try:
            if pause is None:
                self._path.unlink(missing_ok=True)
                return
            temporary.write_text(json.dumps({"schema": 1, "since": pause.since, "until": pause.until}))
            temporary.replace(self._path)
        except OSError as error:
            raise EnvironmentFault(
                f"cannot write {self._path}: {error.strerror}", remedy="free some disk space"
            ) from error


def is_on(pause: Pause, now: float) -> bool:
    """Whether it has not ended by ``now``, unix seconds."""
    return pause.until is None or now < pause.until
