"""Which p2pd belongs to a home: recorded beside the key, so that the next start can clear away what a crash left.

Normally nothing is left: p2pd ends with the daemon (see ``p2pd``). This is the second net.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from protocols.errors import EnvironmentFault

log = logging.getLogger(__name__)

_SAME_START_S = 2.0
"""Start times of one process read at different moments differ by the clock's corrections."""

_KILL_WAIT_S = 3.0

PREFIX = "murmur-"
"""Of the folder with the control socket, in the temporary directory or in ``SHORT``."""
SHORT = "/tmp"
_NAME = re.compile(re.escape(PREFIX) + "[a-z0-9_]{8}")  # as tempfile.mkdtemp makes them


@dataclass(frozen=True, slots=True)
class Trace:
    """One running p2pd and the daemon that owns it."""

    pid: int
    started: float
    """Unix seconds, as psutil tells it."""
    executable: str
    owner: int
    owner_started: float
    directory: str
    """Where its control socket lies; removed with it."""


def record(path: Path, *, pid: int, directory: Path) -> None:
    """Write down that ``pid`` is ours, unless it is gone already; raises EnvironmentFault (home not writable)."""
    owner = psutil.Process()
    try:
        process = psutil.Process(pid)
        trace = Trace(pid, process.create_time(), process.exe(), owner.pid, owner.create_time(), str(directory))
    except psutil.NoSuchProcess:
        return
    temporary = path.with_name(f".{path.name}.{owner.pid}")
    try:
        temporary.write_text(json.dumps(asdict(trace)))
        temporary.replace(path)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write {path}: {error.strerror}",
            remedy=f"make {path.parent} writable for this user, or free some disk space",
        ) from error


def reap(path: Path) -> bool:
    """End the p2pd that a dead daemon left behind, if any; True when one was killed.

    Kills only a process with the recorded pid, start time and executable. Raises EnvironmentFault when
    the daemon that owns it is alive, because two daemons must not share a home.
    """
    trace = _read(path)
    if trace is None:
        return False
    if trace.owner != psutil.Process().pid and _find(trace.owner, trace.owner_started) is not None:
        raise EnvironmentFault(
            f"another daemon (process {trace.owner}) uses {path.parent}",
            remedy="stop it with `murmur stop`, or choose another --home",
        )
    process = _find(trace.pid, trace.started)
    killed = process is not None and _kill(process, trace.executable)
    if _is_ours(trace.directory):
        shutil.rmtree(trace.directory, ignore_errors=True)
    path.unlink(missing_ok=True)
    return killed


def _is_ours(directory: str) -> bool:
    """Whether this is a folder such as p2pd is given: a file in the home may name any other, which must stay."""
    path = Path(directory)
    if str(path.parent) not in {tempfile.gettempdir(), SHORT} or not _NAME.fullmatch(path.name):
        return False
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700 and found.st_uid == os.geteuid()


def _read(path: Path) -> Trace | None:
    try:
        fields = json.loads(path.read_text())
        trace = Trace(**fields)
        numbers = (trace.pid, trace.started, trace.owner, trace.owner_started)
        texts = (trace.executable, trace.directory)
        if not all(isinstance(item, int | float) for item in numbers) or not all(isinstance(t, str) for t in texts):
            raise ValueError("a field has a wrong type")
        if not all(type(item) is int and 0 < item < 1 << 31 for item in (trace.pid, trace.owner)):
            raise ValueError("no process has such a number")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        log.warning("ignoring %s, which cannot be read: %s", path, error)
        return None
    return trace


def _find(pid: int, started: float) -> psutil.Process | None:
    """The running process with this pid and start time; zombies count as gone."""
    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - started) > _SAME_START_S or process.status() == psutil.STATUS_ZOMBIE:
            return None
    except psutil.Error:
        return None
    return process


def _kill(process: psutil.Process, executable: str) -> bool:
    try:
        if process.exe() != executable:
            return False
        process.kill()
        process.wait(_KILL_WAIT_S)
    except psutil.Error as error:
        log.warning("could not end the p2pd that an earlier daemon left (process %d): %s", process.pid, error)
        return False
    log.warning("ended the p2pd that an earlier daemon left (process %d)", process.pid)
    return True
