"""Merkle trees over BLAKE3, and the leaves the protocol hashes into them.

Inner nodes and the root are hashed under names of their own, a node without a neighbour
moves up unchanged, and the root binds the number of leaves: no path is valid under two
indices or two tree sizes.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from blake3 import blake3

from .ids import HASH_BYTES, Hash, PeerId, digest

if TYPE_CHECKING:
    from collections.abc import Sequence


class Tree:
    """A tree over at least one 32-byte leaf; raises ValueError for none, or a leaf of another size."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        if not leaves:
            raise ValueError("a Merkle tree needs a leaf")
        if any(len(leaf) != HASH_BYTES for leaf in leaves):
            raise ValueError("a Merkle leaf has 32 bytes")
        level = [Hash(bytes(leaf)) for leaf in leaves]
        self._levels = [level]
        while len(level) > 1:
            level = [_node(level[i], level[i + 1]) if i + 1 < len(level) else level[i] for i in range(0, len(level), 2)]
            self._levels.append(level)
        self.root = _root(len(leaves), level[0])
        self._steps = [(up, len(each), each) for up, each in enumerate(self._levels[:-1])]

    def __len__(self) -> int:
        return len(self._levels[0])

    def path(self, index: int) -> tuple[Hash, ...]:
        """Neighbours from leaf ``index`` up to the root; raises ValueError where there is no such leaf."""
        if not 0 <= index < len(self):
            raise ValueError(f"leaf {index} of a tree with {len(self)} leaves")
        return tuple([level[index >> up ^ 1] for up, size, level in self._steps if index >> up ^ 1 < size])


@lru_cache(maxsize=1 << 14)
def path_length(index: int, count: int) -> int:
    """Hashes in the path of leaf ``index`` in a tree of ``count`` leaves; raises ValueError for no such leaf."""
    if not 0 <= index < count:
        raise ValueError(f"leaf {index} of a tree with {count} leaves")
    length = 0
    while count > 1:
        length += index ^ 1 < count
        index, count = index // 2, (count + 1) // 2
    return length


def verify(root: bytes, leaf: bytes, *, index: int, count: int, path: Sequence[bytes]) -> bool:
    """Whether ``leaf`` is leaf ``index`` of ``count`` under ``root``. False, never an error, for nonsense."""
    if not 0 <= index < count or len(path) != path_length(index, count):
        return False
    if any(len(each) != HASH_BYTES for each in (leaf, *path)):
        return False
    node, left = Hash(bytes(leaf)), count
    neighbours = iter(path)
    while left > 1:
        if index ^ 1 < left:
            other = next(neighbours)
            node = _node(other, node) if index & 1 else _node(node, other)
        index, left = index // 2, (left + 1) // 2
    return _root(count, node) == root


class Known:
    """The tree under one root as far as paths have shown it: of many leaves each costs a hash or two, not a path.

    Nodes that led to the root, and their neighbours, are beyond doubt. Holds at most two hashes a leaf.
    """

    def __init__(self, root: bytes, count: int) -> None:
        self._root, self._count = root, count
        self._nodes: dict[int, bytes] = {}  # numbered from the first leaf on, level by level

    def verify(self, leaf: bytes, *, index: int, path: Sequence[bytes]) -> bool:
        """As the function ``verify``, but what a path says above a node that is known is not looked at."""
        if not 0 <= index < self._count or len(path) != path_length(index, self._count):
            return False
        known = self._nodes.get(index)
        if known is not None:  # as half of the leaves are, being neighbours
            return known == leaf
        if {len(leaf), *map(len, path)} != {HASH_BYTES}:
            return False
        node, first, left = leaf, 0, self._count
        found: dict[int, bytes] = {}
        neighbours = iter(path)
        while known is None:
            found[first + index] = node
            if left == 1:
                known = node if _root(self._count, node) == self._root else b""
                break
            if index ^ 1 < left:
                other = found[first + (index ^ 1)] = next(neighbours)
                node = _node(other, node) if index & 1 else _node(node, other)
            first, index, left = first + left, index >> 1, (left + 1) >> 1
            known = self._nodes.get(first + index)
        if known != node:
            return False
        self._nodes.update(found)
        return True


class Leaves:
    """The leaves of a peer's update; what all of them bind is put together once (5.3)."""

    def __init__(self, run: bytes, cell: str, parent: bytes, peer: PeerId) -> None:
        self._head = b"".join(map(_framed, (b"leaf", run, cell.encode(), parent, peer.encode())))

    def leaf(self, index: int, norm2: float, data_hash: bytes) -> Hash:
        """Leaf of part ``index``: its owner, place, squared norm (f64) and encoded bytes, as ``digest`` hashes them."""
        rest = map(_framed, (_u64(index), struct.pack("<d", norm2), data_hash))
        return Hash(blake3(b"".join((self._head, *rest))).digest())


def result_leaf(freeze_core: bytes, index: int, data_hash: bytes) -> Hash:
    """Leaf of result part ``index`` of the round that froze as ``freeze_core`` (5.7)."""
    return digest(b"result", freeze_core, _u64(index), data_hash)


def _node(left: bytes, right: bytes) -> Hash:
    """``digest(b"node", left, right)`` of two hashes; trees are made of these, so it is written out."""
    return Hash(blake3(b"".join((_NODE, left, _BETWEEN, right))).digest())


def _root(count: int, top: bytes) -> Hash:
    return digest(b"root", _u64(count), top)


def _u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _framed(part: bytes) -> bytes:
    return _u64(len(part)) + part


_BETWEEN = _u64(HASH_BYTES)
_NODE = _u64(4) + b"node" + _BETWEEN
