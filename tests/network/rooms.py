"""Network namespaces of one lab: made under a random prefix, emptied of their processes, deleted. Needs root, iproute2.

A name tells who made it, ``murmur-lab-PID-RANDOM-NAME``: what a killed run left behind is removed by the next one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from psutil import pid_exists

if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX = "murmur-lab-"
CALL_S = 20.0
"""For one call of a tool; they take milliseconds, but a loaded machine is not a failure."""
GRACE_S = 3.0
"""Between a process's SIGTERM and its SIGKILL."""
KILL_S = 5.0
"""For the kernel to end whoever got SIGKILL."""
_POLL_S = 0.02
_FOLDER = Path("/run/netns")
TOOLS = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def missing() -> str | None:
    """Why no lab can be made here, with the word ``root`` for CI to find; None when nothing stands in its way."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    absent = [tool for tool in ("ip", "tc", "nft") if shutil.which(tool, path=TOOLS) is None]
    return f"needs root and {', '.join(absent)} (packages iproute2, nftables)" if absent else None


def call(*command: str, text: str = "") -> str:
    """What a tool prints, ``text`` being its input; raises AssertionError with what it complains of."""
    tool = shutil.which(command[0], path=TOOLS)
    assert tool is not None, f"{command[0]} is not installed"
    done = subprocess.run([tool, *command[1:]], input=text, text=True, capture_output=True, check=False, timeout=CALL_S)
    assert done.returncode == 0, f"{' '.join(command)} <<< {text!r}: {done.stderr}"
    return done.stdout


def configure(namespace: str, *lines: str) -> None:
    """Commands of ``ip``, one a line, in a namespace."""
    call("ip", "-n", namespace, "-batch", "-", text="\n".join(lines))


def existing(prefix: str = PREFIX) -> list[str]:
    """The namespaces of this machine whose names begin so."""
    names = (line.split()[0] for line in call("ip", "netns", "list").splitlines() if line.strip())
    return [name for name in names if name.startswith(prefix)]


class Rooms:
    """The namespaces of one lab."""

    def __init__(self) -> None:
        self.prefix = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}-"
        self.started: list[subprocess.Popen[str]] = []
        """Processes in them that are children of this one."""
        self._made = 0

    def add(self, name: str) -> str:
        """Make one; its full name, which ends in a number of its own."""
        self._made += 1
        namespace = f"{self.prefix}{name}-{self._made}"
        call("ip", "netns", "add", namespace)
        configure(namespace, "link set lo up")
        return namespace

    def close(self) -> None:
        """End every process in them and delete them; raises AssertionError when something is left."""
        remove(self.prefix, self.started)
        for process in self.started:
            process.wait(KILL_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(OSError):  # what was never written to a process that is no more
                        stream.close()


def remove(prefix: str, children: Sequence[subprocess.Popen[str]] = ()) -> None:
    """End these processes and all in the namespaces with this prefix, and delete the namespaces."""
    names = existing(prefix)
    survivors = _end(names, children)
    for name in names:
        with contextlib.suppress(AssertionError):  # another run may have been quicker with what a third left behind
            call("ip", "netns", "del", name)
    left = existing(prefix)
    assert not survivors and not left, f"could not be removed: processes {survivors}, namespaces {left}"


def remove_left_behind() -> None:
    """Remove the labs of processes that are no more."""
    for prefix in {_prefix(name) for name in existing()}:
        creator = prefix.removeprefix(PREFIX).partition("-")[0]
        if creator.isdigit() and not pid_exists(int(creator)):
            remove(prefix)


def _prefix(name: str) -> str:
    """That of the lab to which a namespace belongs."""
    return PREFIX + "-".join(name.removeprefix(PREFIX).split("-")[:2]) + "-"


def _end(names: list[str], children: Sequence[subprocess.Popen[str]]) -> set[int]:
    """Ask these processes and those in the namespaces to end, then kill them; the ids of those that live on."""

    def living() -> set[int]:
        # A child that has just been started is not in its namespace yet.
        return inhabitants(names) | {child.pid for child in children if child.poll() is None}

    for asks, patience_s in (((signal.SIGTERM, signal.SIGCONT), GRACE_S), ((signal.SIGKILL,), KILL_S)):
        deadline = time.monotonic() + patience_s
        asked: set[int] = set()
        while (left := living()) and time.monotonic() < deadline:
            for pid in left - asked:
                for ask in asks:  # a stopped process hears SIGTERM only when it goes on
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, ask)
            asked |= left
            time.sleep(_POLL_S)
    return living()


def inhabitants(names: list[str]) -> set[int]:
    """The processes in these namespaces, also those that were started by others; zombies don't count."""
    rooms = {_identity(_FOLDER / name) for name in names} - {None}
    return {int(each.name) for each in Path("/proc").glob("[0-9]*") if _identity(each / "ns" / "net") in rooms}


def _identity(path: Path) -> tuple[int, int] | None:
    """A namespace by device and inode; None where there is none (any more)."""
    with contextlib.suppress(OSError):
        entry = path.stat()
        return entry.st_dev, entry.st_ino
    return None
