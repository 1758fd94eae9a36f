"""Exit codes, in one place (contracts.md)."""

from __future__ import annotations

import errno
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


_REMEDIES = {
    errno.ENOSPC: "free some disk space",
    errno.EDQUOT: "free some disk space: this user's share of the disk is used up",
    errno.EROFS: "choose a place that can be written, with --home DIR for what a peer keeps",
    errno.EACCES: "make it readable and writable for this user, or use the user it belongs to",
    errno.EPERM: "make it readable and writable for this user, or use the user it belongs to",
    errno.EADDRINUSE: "end what listens there, or choose another port",
    errno.EMFILE: "let this user open more files: `ulimit -n` shows how many it may",
    errno.ENOMEM: "end other programs: the machine has no memory left",
}


def told(error: Exception) -> MurmurError:
    """Any error as one that a person can read: what it is about, and what to do."""
    if isinstance(error, MurmurError):
        return error
    shows = "the same command with --debug shows where"
    if isinstance(error, OSError):
        what = f"{error.filename}: {error.strerror}" if error.filename is not None else str(error)
        return EnvironmentFault(what, remedy=_REMEDIES.get(error.errno or 0, shows))
    if isinstance(error, ImportError):
        return EnvironmentFault(f"murmur is not installed whole: {error}", remedy="install murmuration again")
    if isinstance(error, MemoryError):
        return EnvironmentFault("no memory left", remedy=_REMEDIES[errno.ENOMEM])
    return MurmurError(f"internal error: {type(error).__name__}: {error}", remedy=shows)


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
