"""Error feedback is the drift rule: what a codec rounds away stays drift, and nothing but a rule drops it (5.11)."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protocols.compression import CODECS, get_codec
from protocols.drift import MAX_AGE, grow_old, settle
from protocols.ids import Hash, PeerId
from protocols.round.effects import Setting
from protocols.round.exchange import Encoded, encode_update
from protocols.statements import Scope
from protocols.tensors import part_bounds, part_count
from tests.protocols.scalar_codecs import scalar_decode, scalar_encode, single

if TYPE_CHECKING:
    from protocols.tensors import Vector

PART = 64
SCOPE, PARENT, PEER = Scope(b"r" * 32, "model"), Hash(b"p" * 32), PeerId("12D3")
INEXACT = {"int8": 65_504 * 127.0, "int4": 65_504 * 7.0}
"""Beyond these a code stands for less than half of its value, and the difference is rounded."""

numbers = st.floats(-(2.0**80), 2.0**80, width=32)
drifts = arrays(np.float32, st.integers(1, 5 * PART), elements=numbers)


def encoded(drift: Vector, codec: str) -> Encoded:
    """As a peer encodes its update before it commits to it."""
    setting = Setting(
        values=len(drift), part=PART, update_codec=codec, result_codec="float32", rule="mean", tolerated=1 / 3,
        lr=0.7, momentum=0.8, probation=0, open=True,
    )  # fmt: skip
    return encode_update(drift, setting, SCOPE, PARENT, PEER)


def flags(count: int) -> st.SearchStrategy[list[bool]]:
    return st.lists(st.booleans(), min_size=count, max_size=count)


@settings(deadline=None)
@given(st.sampled_from(CODECS), drifts, st.data())
def test_a_sealed_part_leaves_exactly_what_its_codec_rounded_away(
    codec: str, drift: Vector, data: st.DataObject
) -> None:
    count = part_count(len(drift), PART)
    taken = data.draw(flags(count))
    before = drift.copy()
    left = settle(drift, encoded(drift, codec).data, taken, codec, PART)
    assert drift.tobytes() == before.tobytes()
    for index in range(count):
        start, stop = part_bounds(index, len(drift), PART)
        if not taken[index]:
            assert left[start:stop].tobytes() == drift[start:stop].tobytes()
            continue
        x = (-drift[start:stop]).tolist()
        decoded = scalar_decode(codec, scalar_encode(codec, x), len(x))
        for value, given_, rest in zip(x, decoded, left[start:stop].tolist(), strict=True):
            assert rest == single(given_ - value)
            if abs(value) <= INEXACT.get(codec, np.inf):
                assert Fraction(-rest) == Fraction(value) - Fraction(given_)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(CODECS), st.integers(0, 2**32), st.integers(1, 3 * PART), st.data())
def test_over_many_rounds_what_is_given_and_what_is_left_is_what_was_trained(
    codec: str, seed: int, values: int, data: st.DataObject
) -> None:
    """Parts that miss a round or two come with the next; the sum of all that is taken has no drift of its own."""
    rng = np.random.default_rng(seed)
    count = part_count(values, PART)
    trained, given_ = np.zeros(values), np.zeros(values)
    drift, ages = np.zeros(values, dtype=np.float32), (0,) * count
    for _ in range(6):
        window = rng.standard_normal(values).astype(np.float32)
        trained += window
        drift = drift + window
        sent = encoded(drift, codec).data
        taken = [here or age + 1 >= MAX_AGE for here, age in zip(data.draw(flags(count)), ages, strict=True)]
        for index in np.flatnonzero(taken):
            start, stop = part_bounds(int(index), values, PART)
            given_[start:stop] -= get_codec(codec).decode(sent[index], stop - start)
        drift, ages = grow_old(settle(drift, sent, taken, codec, PART), ages, taken, PART)
    assert np.abs(trained - given_ - drift).max() < 1e-4
    if codec == "float32":
        assert all(not drift[slice(*part_bounds(k, values, PART))].any() for k in range(count) if taken[k])


@settings(deadline=None)
@given(arrays(np.float32, 3 * PART, elements=st.floats(1, 2, width=32)), st.lists(flags(3), max_size=12))
def test_only_three_seals_in_a_row_drop_a_part(drift: Vector, seals: list[list[bool]]) -> None:
    missed = [0, 0, 0]
    ages: tuple[int, ...] = (0, 0, 0)
    expected, now = drift.copy(), drift
    for taken in seals:
        now, ages = grow_old(now, ages, taken, PART)
        for index, was_taken in enumerate(taken):
            missed[index] = 0 if was_taken else missed[index] + 1
            if missed[index] == 3:
                expected[index * PART : (index + 1) * PART] = 0
                missed[index] = 0
        assert now.tobytes() == expected.tobytes()
        assert list(ages) == missed
    assert drift.min() >= 1, "the caller's drift is left alone"


@pytest.mark.parametrize("codec", CODECS)
def test_a_taken_part_whose_bytes_are_gone_begins_anew(codec: str) -> None:
    drift = np.arange(1, 3 * PART + 1, dtype=np.float32)
    left = settle(drift, None, [True, False, True], codec, PART)
    assert not left[:PART].any() and not left[2 * PART :].any()
    assert left[PART : 2 * PART].tobytes() == drift[PART : 2 * PART].tobytes()


@pytest.mark.parametrize("codec", CODECS)
def test_an_update_encoded_again_after_a_restart_is_the_committed_one(codec: str) -> None:
    """What was saved with a commit is the drift, not the bytes: they must come out the same."""
    drift = np.random.default_rng(0).standard_normal(4 * PART + 9).astype(np.float32)
    once, again = encoded(drift, codec), encoded(drift.copy(), codec)
    assert once.tree.root == again.tree.root
    assert [bytes(each) for each in once.data] == [bytes(each) for each in again.data]
    alone = [get_codec(codec).encode(-drift[start : start + PART]) for start in range(0, len(drift), PART)]
    assert [bytes(each) for each in once.data] == alone
