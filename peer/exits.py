"""Exit codes, in one place (contracts.md)."""

from __future__ import annotations

from enum import IntEnum

from protocols.errors import ConfigError, EnvironmentFault, LocalError, MurmurError


class Exit(IntEnum):
    """What the shell sees."""

    DONE = 0
    FAILED = 1
    """It ran, and what it checks or does failed."""
    USAGE = 2
    """Usage, manifest or configuration."""
    NO_DAEMON = 3
    REFUSED = 4
    """The daemon refused: its state, or the token."""
    ENVIRONMENT = 5
    """Port, disk, home, corpus or key."""


class NoDaemon(LocalError):
    """Nothing answers for this home."""


class Refused(LocalError):
    """The daemon answered, and said no."""


def exit_code(error: MurmurError) -> Exit:
    """The code with which a command ends that ``error`` stopped."""
    match error:
        case ConfigError():
            return Exit.USAGE
        case NoDaemon():
            return Exit.NO_DAEMON
        case Refused():
            return Exit.REFUSED
        case EnvironmentFault():
            return Exit.ENVIRONMENT
        case _:
            return Exit.FAILED
