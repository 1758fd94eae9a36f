"""Two vectors in memory that the daemon and its trainer share: no vector ever crosses a pipe."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import TYPE_CHECKING

import numpy as np

from protocols.errors import EnvironmentFault

if TYPE_CHECKING:
    from numpy.typing import NDArray

_VALUE_BYTES = 4


class Slots:
    """``start`` (daemon → trainer) and ``end`` (trainer → daemon), each float32 [parameters].

    The file behind them has no name: it goes when both processes are gone, however they end. Views outlive
    ``close``, since the mapping itself is only released with its last view.
    """

    def __init__(self, fd: int, parameters: int) -> None:
        """Map an open file of at least 2 · parameters values; takes over ``fd``."""
        self.fd = fd
        both = np.frombuffer(mmap.mmap(fd, 2 * _VALUE_BYTES * parameters), dtype=np.float32)
        self.start: NDArray[np.float32] = both[:parameters]
        self.end: NDArray[np.float32] = both[parameters:]

    @classmethod
    def create(cls, parameters: int) -> Slots:
        """Reserve the memory; raises EnvironmentFault where neither /dev/shm nor the temporary folder has room."""
        size = 2 * _VALUE_BYTES * parameters
        for folder in ("/dev/shm", tempfile.gettempdir()):
            try:
                return cls(_reserve(folder, size), parameters)
            except OSError as error:
                reason = error.strerror or str(error)
        raise EnvironmentFault(
            f"no room for {size >> 20} MiB of vectors: {reason}",
            remedy="free memory, or point TMPDIR at a folder with room",
        )

    def close(self) -> None:
        """Give up the file; safe to call twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _reserve(folder: str, size: int) -> int:
    """The descriptor of a nameless file whose ``size`` bytes are really there, not merely promised."""
    with tempfile.TemporaryFile(dir=folder) as file:
        # A file that is only truncated to size kills its user with SIGBUS when the disk fills up later.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            os.ftruncate(file.fileno(), size)
        return os.dup(file.fileno())
