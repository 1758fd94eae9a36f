"""Frames of parts: what fits exactly is taken, anything else names the sender."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.canonical import pack
from protocols.errors import RemoteError
from protocols.frames import PAYLOAD_LIMITS
from protocols.ids import Hash, PeerId, peer_id
from protocols.messages import MAX_PARTS
from protocols.payloads import FRAME_VALUES_BYTES, Piece, Pieces, batches

MAKER = peer_id(b"m" * 32)
CORE = Hash(b"c" * 32)
SIZES = [5, 0, 7, 1, 64, 2]
SENDER = "whoever sent it"

hashes = st.binary(min_size=32, max_size=32).map(Hash)


@st.composite
def frames(draw: st.DrawFn) -> Pieces:
    indices = draw(st.lists(st.integers(0, len(SIZES) - 1), unique=True))
    pieces = [
        Piece(
            index,
            draw(st.binary(min_size=SIZES[index], max_size=SIZES[index])),
            tuple(draw(st.lists(hashes, max_size=3))),
            draw(st.floats(allow_nan=False, allow_infinity=False)),
        )
        for index in indices
    ]
    return Pieces(draw(hashes), MAKER, tuple(pieces))


def joined(frame: Pieces) -> bytes:
    return b"".join(bytes(each) for each in frame.encode())


def payload(*, data: bytes = b"", **changes: Any) -> bytes:
    """Any fields, any bytes behind them."""
    meta = pack({"core": CORE, "maker": MAKER, "indices": [], "norms": [], "paths": [], **changes})
    return len(meta).to_bytes(4, "little") + meta + data


def refused(raw: bytes, match: str = ".") -> None:
    with pytest.raises(RemoteError, match=match) as caught:
        Pieces.decode(raw, SIZES, sender=SENDER)
    assert caught.value.peer == SENDER


@settings(max_examples=50)
@given(frames())
def test_a_frame_comes_back_as_it_was(frame: Pieces) -> None:
    decoded = Pieces.decode(joined(frame), SIZES, sender=SENDER)
    assert (decoded.core, decoded.maker) == (frame.core, frame.maker)
    found = [(each.index, bytes(each.data), each.path, each.norm2) for each in decoded.pieces]
    assert found == [(each.index, bytes(each.data), each.path, each.norm2) for each in frame.pieces]


@settings(max_examples=20)
@given(frames(), st.data())
def test_a_frame_cut_short_or_extended_is_refused(frame: Pieces, data: st.DataObject) -> None:
    raw = joined(frame)
    refused(raw[: data.draw(st.integers(0, len(raw) - 1))])
    refused(raw + data.draw(st.binary(min_size=1, max_size=70)))


@settings(max_examples=200)
@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda raw: len(raw).to_bytes(4, "little") + raw))
def test_garbage_is_refused(raw: bytes) -> None:
    refused(raw)


def test_the_frame_that_all_refused_ones_change_is_good() -> None:
    raw = payload(indices=[3, 0], norms=[1.0, 2.0], paths=[[CORE], []], data=b"abcdef")
    pieces = Pieces.decode(raw, SIZES, sender=SENDER).pieces
    assert [(each.index, bytes(each.data)) for each in pieces] == [(3, b"a"), (0, b"bcdef")]
    assert not Pieces.decode(payload(), SIZES, sender=SENDER).pieces


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"indices": [0, 0], "data": b"abcdefghij"}, "a part twice"),
        ({"indices": [3, 0, 1]}, "different lengths"),
        ({"norms": [1.0]}, "different lengths"),
        ({"paths": [[]]}, "different lengths"),
        ({"indices": [3, 6]}, "beyond 6 parts"),
        ({"indices": [3, -1]}, "indices is not an integer"),
        ({"indices": [3, MAX_PARTS]}, "indices is not an integer"),
        ({"indices": [3, 0.0]}, "indices is not an integer"),
        ({"indices": [3, True]}, "indices is not an integer"),
        ({"indices": "30"}, "is not a list"),
        ({"norms": [1.0, float("inf")]}, "norms is not a finite number"),
        ({"norms": [1.0, float("nan")]}, "not a number"),
        ({"norms": [1.0, 2]}, "norms is not a finite number"),
        ({"paths": [[], [b"short"]]}, "paths is not a 32-byte hash"),
        ({"paths": [[], [CORE] * 33]}, "at most 32 items"),
        ({"paths": [[], [[CORE]]]}, "paths is not a 32-byte hash"),
        ({"paths": [[], [[[CORE]]]]}, "nested too deep"),
        ({"core": b"short"}, "core is not a 32-byte hash"),
        ({"maker": "nobody"}, "maker is not a peer id"),
        ({"maker": b"nobody"}, "maker is not a peer id"),
        ({"more": 1}, "unknown fields"),
        ({"data": b"abcde"}, "do not fit"),
        ({"data": b"abcdefg"}, "do not fit"),
        ({"indices": [4, 0]}, "do not fit"),
    ],
)
def test_a_frame_with_one_thing_wrong_is_refused(changes: dict[str, Any], match: str) -> None:
    good: dict[str, Any] = {"indices": [3, 0], "norms": [1.0, 2.0], "paths": [[CORE], []], "data": b"abcdef"}
    refused(payload(**{**good, **changes}), match)


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\x00" * 4, b"\xff" * 4, b"\xff" * 100, b"\x10\x00\x00\x00" + b"\x80"])
def test_a_wrong_length_in_front_is_refused(raw: bytes) -> None:
    refused(raw)


@pytest.mark.parametrize("item", [b"\xdd\x00\x00\x10\x00", b"\x90", b"\xdd\x00\x03\xff\xf0", b"\xc0"])
def test_a_huge_declared_head_allocates_little(item: bytes) -> None:
    meta = b"\xdd\x00\x03\xff\xf0" + (item * (1 << 18))[: (1 << 18) - 8]
    inside = len(meta).to_bytes(4, "little") + meta
    beyond = (1 << 20).to_bytes(4, "little") + b"\x90" * (1 << 20)
    for raw in (inside, beyond):
        tracemalloc.start()
        refused(raw)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20 << 20


@settings(max_examples=50)
@given(st.lists(st.sampled_from([1, 2000, 34_000, 131_072, 500_000, FRAME_VALUES_BYTES]), max_size=40))
def test_batches_keep_order_and_stay_within_a_frame(sizes: list[int]) -> None:
    pieces = [Piece(index, memoryview(bytes(size)), ()) for index, size in enumerate(sizes)]
    found = list(batches(pieces))
    assert [each for batch in found for each in batch] == pieces
    totals = [sum(len(each.data) for each in batch) for batch in found]
    assert all(total <= FRAME_VALUES_BYTES for total in totals)
    # Greedy: what follows would not have fitted.
    assert all(total + len(after[0].data) > FRAME_VALUES_BYTES for total, after in zip(totals, found[1:], strict=False))


@pytest.mark.parametrize("part", [33_792, 131_072, 1])
def test_the_largest_honest_frame_is_taken_by_the_transport(part: int) -> None:
    """Parts of either codec, and a frame full of the smallest possible last parts, with the longest paths."""
    count = FRAME_VALUES_BYTES // part if part > 1 else 1
    sizes = [part] * MAX_PARTS
    path = (CORE,) * 20
    pieces = tuple(Piece(MAX_PARTS - 1 - index, bytes(part), path, 1e300) for index in range(count))
    raw = joined(Pieces(CORE, PeerId(MAKER), pieces))
    assert len(raw) <= PAYLOAD_LIMITS["parts"]
    assert len(Pieces.decode(raw, sizes, sender=SENDER).pieces) == count
