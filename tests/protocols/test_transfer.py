"""A state in chunks: from any donors, in any order, and nothing but the sealed bits."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.errors import LocalError, RemoteError
from protocols.ids import Hash, peer_id
from protocols.messages import Seal
from protocols.outer import CHUNK_BYTES, state_root
from protocols.round.chain import Head, seal_zero
from protocols.round.transfer import Download, Snapshot
from protocols.statements import Scope

if TYPE_CHECKING:
    from protocols.round.effects import Vector
    from protocols.state_payloads import StateChunk

SCOPE = Scope(b"r" * 32, "model")
ZERO = Hash(b"0" * 32)
DONOR = peer_id(b"d" * 32)
EACH = CHUNK_BYTES // 4
SIZES = [1, 1000, EACH, EACH + 1, 3 * EACH - 7]


def state(values: int, seed: int = 0) -> tuple[Vector, Vector]:
    rng = np.random.default_rng(seed)
    params, momentum = (rng.standard_normal(values, dtype=np.float32) for _ in range(2))
    params[0], momentum[-1] = -0.0, np.float32(1e-45)
    return params, momentum


def head_of(root: Hash) -> Head:
    body = Seal(1, ZERO, 1, ZERO, b"", (), (), (), (), (), ZERO, root)
    zero = seal_zero(SCOPE, [DONOR], ZERO)
    return Head(Hash(b"s" * 32), 1, 1, zero.table, SCOPE.state(DONOR, body, lambda raw: bytes(64)), (), zero.table)


def pair(values: int) -> tuple[Snapshot, Download]:
    vectors = state(values)
    head = head_of(state_root(*vectors))
    return Snapshot(head, *vectors), Download(head, values)


def give(download: Download, chunk: StateChunk, sender: str = "donor") -> None:
    download.add(sender, chunk.index, chunk.data, chunk.path)


@pytest.mark.parametrize("values", SIZES)
def test_a_state_arrives_bit_by_bit_in_any_order(values: int) -> None:
    snapshot, download = pair(values)
    assert snapshot.chunks == download.count == 2 * -(-values // EACH)
    order = list(range(snapshot.chunks))
    for done, index in enumerate(reversed(order)):
        assert not download.complete
        assert download.missing(99) == order[: len(order) - done]
        with pytest.raises(LocalError, match="lacks"):
            download.state()
        give(download, snapshot.chunk(index))
        give(download, snapshot.chunk(index))
        assert download.done == done + 1
    assert download.complete
    assert download.missing(99) == []
    for mine, theirs in zip(download.state(), state(values), strict=True):
        assert mine.dtype == np.float32
        assert mine.tobytes() == theirs.tobytes()


def test_the_chunk_says_what_it_is() -> None:
    snapshot, _ = pair(EACH + 1)
    chunk = snapshot.chunk(3)
    assert (chunk.seal, chunk.index) == (snapshot.head.seal, 3)
    assert len(chunk.data) == 4
    assert snapshot.tree is snapshot.tree
    for index in (-1, 4):
        with pytest.raises(ValueError, match="leaf"):
            snapshot.chunk(index)


def test_several_donors_are_asked_for_different_chunks() -> None:
    snapshot, download = pair(3 * EACH)
    first = download.missing(2)
    second = download.missing(3, first)
    assert (first, second, download.missing(9, {*first, *second})) == ([0, 1], [2, 3, 4], [5])
    give(download, snapshot.chunk(2))
    assert download.missing(3) == [0, 1, 3]


def refused(download: Download, chunk: StateChunk, match: str) -> None:
    with pytest.raises(RemoteError, match=match) as caught:
        give(download, chunk, "liar")
    assert caught.value.peer == "liar"
    assert chunk.index not in range(download.count) or chunk.index in download.missing(99)


def test_a_chunk_with_one_thing_wrong_is_refused_and_the_right_one_still_taken() -> None:
    snapshot, download = pair(2 * EACH - 5)
    good = snapshot.chunk(1)
    other = snapshot.chunk(3)
    refused(download, replace(good, index=4), "chunk 4 of a state with 4")
    refused(download, replace(good, index=-1), "chunk -1")
    refused(download, replace(good, index=0), "bytes as chunk 0")
    refused(download, replace(good, index=3), "not of seal")
    refused(download, replace(good, data=other.data), "not of seal")
    refused(download, replace(good, path=other.path), "not of seal")
    refused(download, replace(good, path=good.path[1:]), "not of seal")
    refused(download, replace(good, data=bytes(good.data)[:-4]), "bytes as chunk 1")
    refused(download, replace(good, data=bytes(good.data) + bytes(4)), "bytes as chunk 1")
    refused(download, replace(good, data=b""), "bytes as chunk 1")
    flipped = bytearray(good.data)
    flipped[7] ^= 1
    refused(download, replace(good, data=bytes(flipped)), "not of seal")
    for index in range(4):
        give(download, snapshot.chunk(index))
    assert state_root(*download.state()) == snapshot.tree.root


@settings(max_examples=30)
@given(st.integers(0, 3), st.binary(max_size=40), st.lists(st.binary(min_size=32, max_size=32).map(Hash), max_size=3))
def test_nonsense_is_refused(index: int, data: bytes, path: list[Hash]) -> None:
    _, download = pair(5)
    with pytest.raises(RemoteError):
        download.add("liar", index, data, path)


def test_a_donor_of_another_state_or_another_size_gives_nothing() -> None:
    _, download = pair(EACH + 1)
    for values in (EACH + 1, EACH, 3 * EACH):
        vectors = state(values, seed=1)
        stranger = Snapshot(head_of(state_root(*vectors)), *vectors)
        refused(download, stranger.chunk(0), "not of seal")


def test_memory_is_the_two_vectors() -> None:
    vectors = state(4 * EACH)
    head = head_of(state_root(*vectors))
    snapshot = Snapshot(head, *vectors)
    chunks = [snapshot.chunk(index) for index in range(snapshot.chunks)]
    tracemalloc.start()
    download = Download(head, 4 * EACH)
    for chunk in chunks:
        give(download, chunk)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * CHUNK_BYTES + (64 << 10)


def test_the_state_of_seal_zero_is_not_downloaded() -> None:
    with pytest.raises(LocalError, match="manifest"):
        Download(seal_zero(SCOPE, [DONOR], ZERO), 5)
