from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import merkle
from protocols.ids import Hash, PeerId


def leaves_of(count: int) -> list[bytes]:
    return [blake2b(index.to_bytes(4, "little"), digest_size=32).digest() for index in range(count)]


def reference_root(leaves: list[bytes]) -> bytes:
    """Recursive: split at the largest power of two below the count, as in RFC 6962, which is promotion of odd nodes."""

    def h(*parts: bytes) -> bytes:
        return blake3(b"".join(struct.pack("<Q", len(part)) + part for part in parts)).digest()

    def top(part: list[bytes]) -> bytes:
        if len(part) == 1:
            return part[0]
        split = 1 << ((len(part) - 1).bit_length() - 1)
        return h(b"node", top(part[:split]), top(part[split:]))

    return h(b"root", struct.pack("<Q", len(leaves)), top(leaves))


@pytest.mark.parametrize("count", range(1, 40))
def test_root_equals_the_recursive_definition(count: int) -> None:
    assert merkle.Tree(leaves_of(count)).root == reference_root(leaves_of(count))


@settings(deadline=None)
@given(st.integers(1, 300).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count - 1))))
def test_every_leaf_has_a_path_of_the_foretold_length(drawn: tuple[int, int]) -> None:
    count, index = drawn
    tree = merkle.Tree(leaves_of(count))
    path = tree.path(index)
    assert len(path) == merkle.path_length(index, count)
    assert merkle.verify(tree.root, leaves_of(count)[index], index=index, count=count, path=path)


@settings(deadline=None)
@given(st.data())
def test_any_change_of_any_element_is_noticed(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 70))
    index = data.draw(st.integers(0, count - 1))
    tree = merkle.Tree(leaves_of(count))
    elements = [tree.root, leaves_of(count)[index], *tree.path(index)]
    victim = data.draw(st.integers(0, len(elements) - 1))
    bit = data.draw(st.integers(0, 255))
    elements[victim] = type(elements[victim])(
        (int.from_bytes(elements[victim], "little") ^ (1 << bit)).to_bytes(32, "little")
    )
    assert not merkle.verify(elements[0], elements[1], index=index, count=count, path=elements[2:])


@settings(deadline=None)
@given(st.data())
def test_a_path_holds_for_one_index_and_one_count_only(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 14))
    index = data.draw(st.integers(0, count - 1))
    tree = merkle.Tree(leaves_of(count))
    path = tree.path(index)
    for other_count in range(16):
        for other in range(-1, 16):
            right = (other, other_count) == (index, count)
            assert merkle.verify(tree.root, leaves_of(count)[index], index=other, count=other_count, path=path) is right


@settings(deadline=None)
@given(st.data())
def test_many_leaves_of_one_tree_are_judged_as_one_by_one(data: st.DataObject) -> None:
    """In any order, with lies in between: of the leaf, of a neighbour, of a place."""
    count = data.draw(st.integers(1, 70))
    leaves = leaves_of(count)
    tree = merkle.Tree(leaves)
    known = merkle.Known(tree.root, count)
    for index in data.draw(st.lists(st.integers(0, count - 1), max_size=40)):
        lie = data.draw(st.sampled_from(["", "leaf", "place", "path"]))
        leaf, path, place = leaves[index], list(tree.path(index)), index
        if lie == "leaf":
            leaf = bytes(32)
        elif lie == "place":
            place = data.draw(st.integers(-1, count))
        elif lie == "path":
            path = path[:-1] if data.draw(st.booleans()) else [*path, Hash(bytes(32))]
        right = merkle.verify(tree.root, leaf, index=place, count=count, path=path)
        assert known.verify(leaf, index=place, path=path) is right
    assert all(known.verify(leaf, index=index, path=tree.path(index)) for index, leaf in enumerate(leaves))


def test_a_wrong_neighbour_is_not_believed_later() -> None:
    leaves = leaves_of(4)
    tree = merkle.Tree(leaves)
    known, wrong = merkle.Known(tree.root, 4), bytes(32)
    assert not known.verify(leaves[0], index=0, path=(wrong, tree.path(0)[1]))
    assert not known.verify(wrong, index=1, path=tree.path(1))
    assert known.verify(leaves[0], index=0, path=tree.path(0))
    assert known.verify(leaves[1], index=1, path=(wrong, wrong)), "it is known as the neighbour of the first"
    assert not known.verify(wrong, index=1, path=tree.path(1))
    assert not known.verify(leaves[3], index=3, path=(wrong, tree.path(3)[1]))
    assert not merkle.Known(wrong, 1).verify(leaves[0], index=0, path=())


def test_short_long_and_misshapen_paths_are_false() -> None:
    tree, leaf = merkle.Tree(leaves_of(8)), leaves_of(8)[3]
    path = tree.path(3)
    for wrong in (path[:-1], (*path, path[0]), (), path[::-1], (path[0][:31], *path[1:]), (path[0] + b"x", *path[1:])):
        assert not merkle.verify(tree.root, leaf, index=3, count=8, path=wrong)
    assert not merkle.verify(tree.root, leaf[:31], index=3, count=8, path=path)


def test_an_inner_node_is_no_leaf_of_a_smaller_tree() -> None:
    tree = merkle.Tree(leaves_of(4))
    inner = tree.path(0)[1]
    assert not merkle.verify(tree.root, inner, index=1, count=2, path=(tree.path(2)[1],))


def test_trees_need_leaves_of_32_bytes() -> None:
    with pytest.raises(ValueError, match="needs a leaf"):
        merkle.Tree([])
    with pytest.raises(ValueError, match="32 bytes"):
        merkle.Tree([b"x" * 31])
    with pytest.raises(ValueError, match="leaf 4 of a tree with 4"):
        merkle.Tree(leaves_of(4)).path(4)
    with pytest.raises(ValueError, match="leaf -1"):
        merkle.path_length(-1, 4)


def test_leaf_hash_binds_every_field() -> None:
    fields: list[Any] = [b"r" * 32, "model", b"p" * 32, PeerId("12D3KooWabc"), 7, 2.5, b"d" * 32]
    changed = [b"s" * 32, "experts", b"q" * 32, PeerId("12D3KooWabd"), 8, 2.5000000000000004, b"e" * 32]
    hashes = {merkle.Leaves(*fields[:4]).leaf(*fields[4:])}
    for place in range(len(fields)):
        varied = [*fields[:place], changed[place], *fields[place + 1 :]]
        hashes.add(merkle.Leaves(*varied[:4]).leaf(*varied[4:]))
    assert len(hashes) == 8


def test_leaf_hash_is_the_documented_encoding() -> None:
    peer = "12D3KooWabc"
    raw = b"".join(
        struct.pack("<Q", len(field)) + field
        for field in (b"leaf", b"r", b"model", b"p", peer.encode(), struct.pack("<Q", 7), struct.pack("<d", 2.5), b"d")
    )
    assert merkle.Leaves(b"r", "model", b"p", PeerId(peer)).leaf(7, 2.5, b"d") == blake3(raw).digest()


def test_result_leaf_binds_freeze_index_and_bytes() -> None:
    base = merkle.result_leaf(b"f" * 32, 1, b"d" * 32)
    others = {
        merkle.result_leaf(b"g" * 32, 1, b"d" * 32),
        merkle.result_leaf(b"f" * 32, 2, b"d" * 32),
        merkle.result_leaf(b"f" * 32, 1, b"e" * 32),
    }
    assert len(others | {base}) == 4
