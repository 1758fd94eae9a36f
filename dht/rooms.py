"""Memory for received payloads that is used again.

Frames come and go by the hundred in a round and are gone at different times. In the common heap they would settle in
the gaps that vectors of the whole model leave behind, so that the next vector needs new memory: the heap would grow,
and new memory costs more than all work on it.
"""

from __future__ import annotations

import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SLAB_BYTES = 0x11_0000
"""A full frame of parts: a MiB of them, their paths beside. Larger ones, and those below half of it, are not kept."""
FREE_SLABS = 256
"""Kept for later at most."""


class Rooms:
    """Slabs of one size. Each comes back by itself once nothing refers to its bytes; any thread may let go of it."""

    def __init__(self) -> None:
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=FREE_SLABS)
        self._leases: dict[int, weakref.ref[NDArray[np.uint8]]] = {}

    def take(self, size: int) -> memoryview:
        """Writable memory of so many bytes, aligned to 16; what is in it is anything."""
        if not SLAB_BYTES // 2 < size <= SLAB_BYTES:
            return np.empty(size, dtype=np.uint8).data
        try:
            slab = self._free.pop()
        except IndexError:
            slab = np.empty(SLAB_BYTES, dtype=np.uint8)
        lease = slab[:size]  # an object of its own: the views of it that are handed on keep it alive
        self._leases[id(lease)] = weakref.ref(lease, partial(self._back, id(lease), slab))
        return lease.data

    def give_back(self) -> None:
        """Let go of the slabs that are free now."""
        self._free.clear()

    def _back(self, lease: int, slab: NDArray[np.uint8], _: object) -> None:
        del self._leases[lease]
        self._free.append(slab)


ROOMS = Rooms()
"""Of this process."""
