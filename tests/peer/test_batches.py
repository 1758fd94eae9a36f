"""Batches and held-out windows: pure functions of seed, parent, peer and step, and what a shard gives away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.data import Corpus, Shard
from peer.training import DataConfig
from protocols.errors import ConfigError, EnvironmentFault

CONTEXT = 8
# Every byte of a shard is its own position, so a window tells where it was taken from.
SHARDS = tuple(Shard.of(f"shard {i}", bytes(range(i * 50, i * 50 + 50))) for i in range(5))
CONFIG = DataConfig(tuple(shard.entry for shard in SHARDS), held_out=0.2)
PARENT = bytes(range(32))


def corpus(config: DataConfig = CONFIG) -> Corpus:
    return Corpus(SHARDS, config, context=CONTEXT)


def test_a_batch_is_the_same_for_whoever_computes_it() -> None:
    one = corpus().batch(1, PARENT, "a", step=3, rows=16)
    two = corpus().batch(1, PARENT, "a", step=3, rows=16)
    assert one.dtype == np.int64
    assert one.shape == (16, CONTEXT + 1)
    assert np.array_equal(one, two)


@given(
    seed=st.integers(0, 2**64 - 1),
    parent=st.binary(min_size=32, max_size=32),
    peer=st.text(min_size=1, max_size=60),
    step=st.integers(0, 2**40),
)
@settings(max_examples=50)
def test_each_of_its_inputs_changes_a_batch(seed: int, parent: bytes, peer: str, step: int) -> None:
    data = corpus()
    batch = data.batch(seed, parent, peer, step=step, rows=16)
    others = [
        data.batch(seed ^ 1, parent, peer, step=step, rows=16),
        data.batch(seed, bytes([parent[0] ^ 1]) + parent[1:], peer, step=step, rows=16),
        data.batch(seed, parent, peer + "x", step=step, rows=16),
        data.batch(seed, parent, peer, step=step + 1, rows=16),
    ]
    assert not any(np.array_equal(batch, other) for other in others)


def test_windows_are_stretches_of_one_shard_and_never_reach_what_is_held_out() -> None:
    rows = np.concatenate([corpus().batch(0, PARENT, "a", step=step, rows=64) for step in range(20)])
    assert np.all(np.diff(rows, axis=1) == 1)  # consecutive bytes
    assert np.all(rows[:, 0] // 50 == rows[:, -1] // 50)  # of one shard
    assert np.all(rows % 50 < 40)  # its first 80 %
    # Each of the 5 · (40 − 8) windows is found, the first and last of each shard among them.
    assert len(np.unique(rows[:, 0])) == 5 * 32


def test_held_out_windows_come_from_the_tails_only_and_do_not_depend_on_the_seed() -> None:
    batches = corpus().held_out_batches()
    assert [batch.shape for batch in batches] == [(16, CONTEXT + 1)] * 20
    assert all(np.all(batch % 50 >= 40) for batch in batches)
    assert len({batch.tobytes() for batch in batches}) == 20


def test_the_fixed_deal_gives_each_peer_its_own_shards_for_the_whole_run() -> None:
    data = corpus(replace(CONFIG, deal="fixed"))
    mine = data.fixed_shards(0, "a")
    assert len(mine) == 2
    assert {tuple(data.fixed_shards(0, f"peer {i}")) for i in range(20)} > {tuple(mine)}
    rows = [data.batch(0, bytes([i]) * 32, "a", step=i, rows=64) for i in range(10)]
    seen = {f"shard {number}" for number in np.unique(np.concatenate(rows) // 50)}
    assert seen == set(mine)


def test_data_that_the_run_does_not_name_is_refused() -> None:
    changed = (Shard.of("shard 0", SHARDS[0].raw[::-1]), *SHARDS[1:])
    with pytest.raises(EnvironmentFault, match="shard 0 differs"):
        Corpus(changed, CONFIG, context=CONTEXT)
    with pytest.raises(EnvironmentFault, match="4 shards instead of 5"):
        Corpus(SHARDS[:4], CONFIG, context=CONTEXT)


def test_a_context_longer_than_any_held_out_tail_is_refused() -> None:
    assert Corpus(SHARDS, CONFIG, context=9).held_out_batches()[0].shape == (16, 10)
    with pytest.raises(ConfigError, match="too small"):
        Corpus(SHARDS, CONFIG, context=10)
