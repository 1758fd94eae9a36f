"""One daemon per home: a lock that the kernel releases however the daemon ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from protocols.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock file at ``path``; raises EnvironmentFault when another process does."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise EnvironmentFault(f"cannot write {path}: {error.strerror}", remedy="choose another --home") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EnvironmentFault(
                f"another daemon already uses the home {path.parent}",
                remedy="`murmur status` shows it, `murmur stop` ends it; or choose another --home",
            ) from error
        yield
    finally:
        os.close(descriptor)
