"""What a peer knows of a round's bytes before the machine sees them, and how much memory the work on them takes."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protocols import merkle
from protocols.compression import get_codec
from protocols.drift import settle
from protocols.ids import Hash, peer_id
from protocols.payloads import Look, Piece, Pieces
from protocols.round.effects import Setting
from protocols.round.exchange import Buffers, Rows, encode_update, is_sound, make_gram
from protocols.round.looking import look_at_part, look_at_result, looked_at
from protocols.round.reduction import Frozen, reduce_parts
from protocols.statements import Scope

if TYPE_CHECKING:
    from protocols.tensors import Vector

PART = 4096
SETTING = Setting(
    values=3 * PART + 5, update_codec="int8", result_codec="float32", rule="mean", tolerated=1 / 3, lr=0.7,
    momentum=0.8, probation=0, open=True, part=PART,
)  # fmt: skip
SCOPE, PARENT, ME = Scope(b"r" * 32, "model"), Hash(b"p" * 32), peer_id(b"m" * 32)
finite = st.floats(-(2.0**90), 2.0**90, width=32)


def framed(data: bytes) -> bytes:
    """BLAKE3 of what the protocol hashes for bytes: their length before them."""
    return blake3(len(data).to_bytes(8, "little") + data).digest()


@settings(max_examples=30)
@given(hnp.arrays(np.float32, 5, elements=finite))
def test_a_look_measures_the_decoded_values(values: Vector) -> None:
    whole = np.zeros(SETTING.values, dtype=np.float32)
    whole[-5:] = values
    data = get_codec("int8").encode(values)
    decoded = get_codec("int8").decode(data, 5).astype(np.float64)
    found = look_at_part(data, 3, SETTING)
    assert found == Look(Hash(framed(data)), found.measure)
    assert found.measure == pytest.approx(float((decoded**2).sum()))
    raw = values.astype("<f4").tobytes()
    assert look_at_result(raw, 3, SETTING) == Look(Hash(framed(raw)), float(np.abs(values).max()))
    coarse = look_at_result(data, 3, replace(SETTING, result_codec="int8"))
    assert coarse.hash == found.hash
    assert np.abs(decoded).max() <= coarse.measure <= 127 * 65_504


def test_bytes_that_do_not_decode_are_a_fault_and_have_a_hash() -> None:
    bad = get_codec("int8").encode(np.ones(5, dtype=np.float32))[:-1] + b"\x80"
    found = look_at_part(bad, 3, SETTING)
    assert (found.hash, found.fault) == (framed(bad), "the int8 code -128")
    wrong = np.array([1, 2, 3, 4, np.nan], dtype="<f4").tobytes()
    assert "not finite" in look_at_result(wrong, 3, SETTING).fault


def test_a_frame_from_the_wire_brings_no_looks_of_its_own() -> None:
    data = get_codec("int8").encode(np.ones(5, dtype=np.float32))
    lie = Look(Hash(b"l" * 32), 1e9)
    frame = Pieces(Hash(b"c" * 32), ME, (Piece(3, data, (), 5.0, lie),))
    sizes = [1, 1, 1, len(data)]
    decoded = Pieces.decode(b"".join(map(bytes, frame.encode())), sizes, sender=ME)
    assert decoded.pieces[0].look is None
    assert looked_at("parts", decoded, SETTING).pieces[0].look == look_at_part(data, 3, SETTING)


def test_what_is_encoded_is_minus_the_drift_under_the_leaves_of_the_protocol() -> None:
    drift = np.random.default_rng(1).standard_normal(SETTING.values, dtype=np.float32)
    encoded = encode_update(drift, SETTING, SCOPE, PARENT, ME)
    leaves = []
    for index in range(4):
        start, stop = index * PART, min((index + 1) * PART, SETTING.values)
        data = get_codec("int8").encode(-drift[start:stop])
        assert bytes(encoded.data[index]) == data
        norm2 = get_codec("int8").norm2(data, stop - start)
        leaves.append(merkle.Leaves(SCOPE.run, SCOPE.cell, PARENT, ME).leaf(index, norm2, framed(data)))
        piece = encoded.piece(index)
        assert (piece.norm2, piece.look) == (norm2, Look(Hash(framed(data)), norm2))
    assert encoded.tree.root == merkle.Tree(leaves).root


@pytest.mark.parametrize("codec", ["float32", "bf16", "int8"])
def test_only_an_exact_codec_leaves_nothing_of_what_it_has_encoded(codec: str) -> None:
    drift = np.random.default_rng(5).standard_normal(SETTING.values).astype(np.float32)
    drift[:3] = 0, -0.0, 1e-45
    encoded = encode_update(drift, replace(SETTING, update_codec=codec), SCOPE, PARENT, ME)
    assert encoded.covers(drift) == (codec == "float32")
    assert not encoded.covers(drift.copy()), "others may be trained further"
    taken = [index != 1 for index in range(len(encoded.data))]
    left = settle(drift, encoded.data, taken, codec, SETTING.part)
    assert (settle(drift, None, taken, codec, SETTING.part).tobytes() == left.tobytes()) == encoded.covers(drift)


def test_an_update_that_is_not_finite_is_not_encoded() -> None:
    drift = np.zeros(SETTING.values, dtype=np.float32)
    drift[-1] = np.inf
    with pytest.raises(ValueError, match="not finite"):
        encode_update(drift, SETTING, SCOPE, PARENT, ME)
    drift[:] = 2.0**89
    with pytest.raises(ValueError, match="larger than any training"):
        encode_update(drift, replace(SETTING, update_codec="float32"), SCOPE, PARENT, ME)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**83, -(2.0**83)])
def test_an_unsound_value_is_found_wherever_it_is(bad: float) -> None:
    for place in (0, 70_000, 99_999):
        update = np.zeros(100_000, dtype=np.float32)
        assert is_sound(update)
        update[place] = bad
        assert not is_sound(update)


def test_encoded_parts_lie_back_to_back_and_are_read_only() -> None:
    buffers = Buffers([3, 0, 2])
    for place, data in enumerate((b"abc", b"", b"de")):
        assert bytes(buffers.put(place, data)) == data
    assert [bytes(each) for each in buffers.views] == [b"abc", b"", b"de"]
    with pytest.raises(TypeError):
        buffers.views[0][0] = 1
    with pytest.raises(ValueError, match="different"):
        buffers.put(0, b"abcd")


@pytest.mark.parametrize("codec", ["float32", "int8"])
def test_a_reducer_decodes_a_part_at_a_time(codec: str) -> None:
    """16 rows of 64 parts: what is decoded at once is a few parts of 16 rows, not 16 vectors."""
    rows, parts, part = 16, 64, 32_768
    setting = replace(SETTING, values=parts * part, part=part, update_codec=codec, result_codec="int8")
    data = get_codec(codec).encode(np.linspace(-1, 1, part, dtype=np.float32))
    held = Rows(tuple(range(parts)), ((data,) * rows,) * parts)
    frozen = Frozen(Hash(b"f" * 32), (), (1 / rows,) * rows, np.ones((rows, parts), dtype=bool))
    tracemalloc.start()
    make_gram(Hash(b"c" * 32), held, rows, setting)
    reduce_parts(held, frozen, setting)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    result = parts * get_codec("int8").size(part)
    assert peak < result + 6 * rows * part * 4 < rows * parts * part
