"""A state on its way to a peer that fell behind (protocol.md 6); nothing is believed from a donor."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np

from .. import outer
from ..errors import LocalError, RemoteError
from ..merkle import Tree, verify
from ..outer import chunk_leaf, state_chunks
from ..state_payloads import StateChunk

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from ..ids import Hash
    from ..messages import Seal
    from ..ports import Buffer
    from .chain import Head
    from .effects import Vector

COMMON = 8
"""The state of every seal whose round is a multiple of this is kept by everybody …"""
COMMON_KEPT = 16
"""… for so many rounds."""


def is_common(head: Head) -> bool:
    """Whether everybody keeps the state of this seal, so that a joiner finds many donors of it."""
    return head.round > 0 and head.round % COMMON == 0


class Snapshot:
    """A donor's state as of ``head``, served while it trains on; holds the vectors, which nobody changes in place."""

    def __init__(self, head: Head, params: Vector, momentum: Vector) -> None:
        self.head = head
        self._chunks = list(state_chunks(params, momentum))

    @property
    def chunks(self) -> int:
        """How many chunks there are."""
        return len(self._chunks)

    @cached_property
    def tree(self) -> Tree:
        """The Merkle tree over all chunks; the first call hashes the whole state."""
        return Tree([chunk_leaf(each) for each in self._chunks])

    def chunk(self, index: int) -> StateChunk:
        """One chunk with its path; raises ValueError where there is no such chunk."""
        path = self.tree.path(index)
        return StateChunk(self.head.seal, index, path, self._chunks[index])


class Download:
    """The state as of a verified ``head``, put together from chunks of any donors.

    Sets aside the two vectors of ``values`` float32 that the manifest asks for, whatever donors say.
    """

    def __init__(self, head: Head, values: int) -> None:
        if head.proposal is None:
            raise LocalError("the state of seal 0 is made from the manifest, not downloaded")
        self.head = head
        self._root = cast("Seal", head.proposal.body).state
        self._params = np.empty(values, dtype=np.float32)
        self._momentum = np.empty(values, dtype=np.float32)
        self._chunk = outer.CHUNK_BYTES // 4
        self._each = -(-values // self._chunk)
        self._have = bytearray(2 * self._each)

    @property
    def count(self) -> int:
        """Chunks of the whole state."""
        return len(self._have)

    @property
    def done(self) -> int:
        """Chunks that are here."""
        return sum(self._have)

    @property
    def complete(self) -> bool:
        """Whether every chunk is here."""
        return 0 not in self._have

    def missing(self, limit: int, asked: Container[int] = ()) -> list[int]:
        """The first ``limit`` chunks that are neither here nor among those ``asked`` of somebody already."""
        out: list[int] = []
        index = self._have.find(0)
        while index >= 0 and len(out) < limit:
            if index not in asked:
                out.append(index)
            index = self._have.find(0, index + 1)
        return out

    def add(self, sender: str, index: int, data: Buffer, path: Sequence[Hash]) -> bool:
        """Take a chunk, once: whether it was new. Raises RemoteError for one that is not under the sealed root."""
        if not 0 <= index < self.count:
            raise RemoteError(sender, f"sent chunk {index} of a state with {self.count}")
        if self._have[index]:
            return False
        into = self._place(index)
        if len(data) != into.nbytes:
            raise RemoteError(sender, f"sent {len(data)} bytes as chunk {index}, which has {into.nbytes}")
        leaf = chunk_leaf(memoryview(data))
        if not verify(self._root, leaf, index=index, count=self.count, path=path):
            raise RemoteError(sender, f"sent a chunk {index} that is not of seal {self.head.seal.hex()[:12]}")
        into[:] = np.frombuffer(data, dtype="<f4")
        self._have[index] = 1
        return True

    def state(self) -> tuple[Vector, Vector]:
        """Parameters and momentum, float32 [values] each; raises LocalError while chunks are missing."""
        if not self.complete:
            raise LocalError(f"the state lacks {self.count - self.done} chunks of {self.count}")
        return self._params, self._momentum

    def _place(self, index: int) -> Vector:
        vector = self._params if index < self._each else self._momentum
        start = index % self._each * self._chunk
        return vector[start : start + self._chunk]
