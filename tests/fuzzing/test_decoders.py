"""Every decoder under bytes that nobody honest sends: only the errors it declares, no allocation beyond its limit.

``tests/bench/fuzz.py`` does the same by the hundred thousand, and with coverage.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzzing.decoders import table
from tests.fuzzing.mutation import bombs, mutate

if TYPE_CHECKING:
    from tests.fuzzing.decoder import Decoder

TABLE = table()
EACH = pytest.mark.parametrize("decoder", TABLE, ids=lambda decoder: decoder.name)
FEW = settings(max_examples=40, deadline=None)


@EACH
def test_what_honest_peers_write_is_accepted(decoder: Decoder) -> None:
    """Or the changes below would never get past the first check."""
    accepted = [decoder.take(example) for example in decoder.examples]
    assert all(accepted) or decoder.name == "refusal"


@EACH
@FEW
@given(raw=st.binary(max_size=400))
def test_arbitrary_bytes(decoder: Decoder, raw: bytes) -> None:
    decoder.take(raw[: decoder.limit])


@EACH
@FEW
@given(seed=st.integers(0, 2**32))
def test_examples_with_a_few_changes(decoder: Decoder, seed: int) -> None:
    decoder.take(mutate(Random(seed), decoder.examples, decoder.limit))


@EACH
def test_bombs_set_nothing_aside(decoder: Decoder) -> None:
    for bomb in bombs(min(decoder.limit, 70_000)):
        assert decoder.peak(bomb) <= decoder.allowed(bomb), f"{bomb[:12]!r} × {len(bomb)} bytes"
