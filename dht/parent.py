"""A child process that ends when its parent does; imported by processes that load little else."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None  # loaded before anybody forks


def die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when the thread that started this process ends (prctl(2), Linux).

    Ends the process at once when ``parent``, a process id, is its parent no more.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(0)
