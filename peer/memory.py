"""What the C library does with memory that this process has freed.

A round frees and takes hundreds of megabytes: vectors, encoded parts, results. By default each large piece goes back
to the kernel at once, and comes back one page fault at a time. Where the machine is a virtual one whose host gets free
pages back, that took two thirds of a round's CPU time (CONTRIBUTING, data plane).
"""

from __future__ import annotations

import ctypes
import gc
import sys

import numpy as np
import psutil

from dht.rooms import ROOMS

_PAGE = 4096
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
"""Numbers of ``mallopt``, from glibc's malloc.h."""
_NEVER = 2**31 - 1


def keep_freed() -> bool:
    """From now on freed memory stays with the process, to be used again; whether this C library can do that.

    Threads share one heap: those of their own would be cut into pieces of 64 MB, and each kept.
    """
    library = _glibc()
    if library is None:
        return False
    taken = [library.mallopt(*each) for each in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER), (_ARENA_MAX, 1))]
    return all(taken)


def reserve(size: int) -> bool:
    """Have so many bytes at hand, touched and free, after ``keep_freed``: then the first rounds take as long as others.

    May take seconds. Takes nothing, and returns False, where that were more than half of what the machine has free.
    """
    if size > psutil.virtual_memory().available // 2:
        return False
    room = np.empty(size, dtype=np.uint8)
    room[::_PAGE] = 0
    return True


def spare_loaded() -> None:
    """What is loaded by now stays: the garbage collector need not walk through all of it again and again."""
    gc.collect()
    gc.freeze()


def give_back() -> bool:
    """Give what is free now back to the kernel, for a daemon that rests; whether there was something."""
    ROOMS.give_back()
    library = _glibc()
    return library is not None and library.malloc_trim(0) == 1


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None  # musl has neither function
