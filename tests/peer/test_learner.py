"""Inner training against plain loops of torch's own optimizers, joined by the simplest outer loop there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from peer import corpus
from peer.data import Corpus
from peer.evaluate import held_out_loss
from peer.learner import Learner
from peer.models import initial_vector
from peer.models.gpt import GPT, flatten, load_flat
from peer.training import DataConfig, InnerConfig, TrainConfig, Window, config_from_plain
from protocols.errors import ConfigError

CONFIG = TrainConfig(DataConfig(corpus.SHARDS), size="nano", context=32, seed=5)
START = initial_vector("nano", 32, 5)
PARENTS = [bytes([i]) * 32 for i in range(4)]


def data() -> Corpus:
    return Corpus(corpus.shakespeare(), CONFIG.data, context=32)


def swarm(config: TrainConfig, peers: list[str], *, rounds: int, steps: int) -> np.ndarray:
    """Local training with a plain mean and an outer step of rate 1 without momentum."""
    learners = {peer: Learner(config, data()) for peer in peers}
    state = START.copy()
    for parent in PARENTS[:rounds]:
        ends = []
        for peer, learner in learners.items():
            end = np.empty_like(state)
            assert learner.train(state, Window(parent, peer, steps=steps), end=end) is not None
            ends.append(end)
        state = state - np.mean([state - end for end in ends], axis=0, dtype=np.float32)
    return state


def test_one_peer_that_keeps_its_moments_is_adamw() -> None:
    inner = InnerConfig(lr=5e-3, betas=(0.9, 0.95), clip=0.0, warmup=0, weight_decay=0.05, reset=False)
    got = swarm(replace(CONFIG, inner=inner), ["a"], rounds=4, steps=5)
    model = GPT("nano", 32)
    load_flat(model, START)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    gains = [p for p in model.parameters() if p.ndim == 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": gains, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=5e-3, betas=(0.9, 0.95), weight_decay=0.05)
    for parent in PARENTS:
        for step in range(5):
            adamw.zero_grad()
            model.loss(torch.from_numpy(data().batch(5, parent, "a", step=step, rows=16))).backward()  # type: ignore[no-untyped-call]
            adamw.step()
    want = np.empty_like(START)
    flatten(model, want)
    assert np.abs(got - want).max() < 1e-4
    assert np.abs(START - want).max() > 1e-2


def test_zero_moments_at_each_window_are_something_else() -> None:
    inner = InnerConfig(lr=5e-3, warmup=0, reset=True)
    fresh = swarm(replace(CONFIG, inner=inner), ["a"], rounds=2, steps=5)
    kept = swarm(replace(CONFIG, inner=replace(inner, reset=False)), ["a"], rounds=2, steps=5)
    assert np.abs(fresh - kept).max() > 1e-3


def test_one_step_of_sgd_a_round_is_data_parallel_sgd() -> None:
    inner = InnerConfig(optimizer="sgd", lr=0.3, clip=0.0, warmup=0, weight_decay=0.0)
    peers = ["a", "b", "c"]
    got = swarm(replace(CONFIG, inner=inner), peers, rounds=4, steps=1)
    model = GPT("nano", 32)
    load_flat(model, START)
    for parent in PARENTS:
        together = np.concatenate([data().batch(5, parent, peer, step=0, rows=16) for peer in peers])
        model.zero_grad()
        model.loss(torch.from_numpy(together)).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.3)
    want = np.empty_like(START)
    flatten(model, want)
    assert np.abs(got - want).max() < 1e-5
    assert np.abs(START - want).max() > 1e-3


def test_the_rate_rises_over_the_warm_up() -> None:
    inner = InnerConfig(optimizer="sgd", lr=0.4, clip=0.0, warmup=3, weight_decay=0.0)
    ends = [swarm(replace(CONFIG, inner=inner), ["a"], rounds=1, steps=steps) for steps in (1, 2)]
    full = swarm(replace(CONFIG, inner=replace(inner, warmup=0)), ["a"], rounds=1, steps=1)
    assert np.allclose(ends[0] - START, (full - START) / 4, atol=1e-6)
    assert not np.allclose(ends[1], ends[0], atol=1e-4)


def test_a_step_is_clipped_to_its_norm() -> None:
    inner = InnerConfig(optimizer="sgd", lr=1.0, clip=0.01, warmup=0, weight_decay=0.0)
    end = swarm(replace(CONFIG, inner=inner), ["a"], rounds=1, steps=1)
    assert float(np.linalg.norm(end - START)) == pytest.approx(0.01, rel=1e-3)


def test_training_lowers_the_held_out_loss() -> None:
    learner, end = Learner(CONFIG, data()), np.empty_like(START)
    result = learner.train(START, Window(PARENTS[0], "a", steps=30), end=end)
    assert result is not None
    assert (result.steps, result.tokens) == (30, 30 * 16 * 32)
    assert result.last_loss < result.loss < 5.6
    before, after = (held_out_loss(vector, CONFIG, corpus.shakespeare()) for vector in (START, end))
    assert before == pytest.approx(corpus.REFERENCE_LINES["uniform"], abs=1e-3)
    assert after < corpus.REFERENCE_LINES["letters"] + 0.3
    assert learner.evaluate(end) == after


def test_windows_on_one_parent_go_on_with_new_batches() -> None:
    inner = replace(CONFIG.inner, reset=False, warmup=0)
    learner, end = Learner(replace(CONFIG, inner=inner), data()), np.empty_like(START)
    learner.train(START, Window(PARENTS[0], "a", steps=6), end=end)
    halves = Learner(replace(CONFIG, inner=inner), data())
    half, again = np.empty_like(START), np.empty_like(START)
    halves.train(START, Window(PARENTS[0], "a", steps=4), end=half)
    halves.train(half, Window(PARENTS[0], "a", steps=2, first_step=4), end=again)
    assert np.array_equal(again, end)


def test_an_abandoned_window_leaves_the_end_alone() -> None:
    end = np.zeros_like(START)
    steps: list[int] = []
    result = Learner(CONFIG, data()).train(
        START,
        Window(PARENTS[0], "a", seconds=1000.0),
        end=end,
        on_step=lambda step, loss: steps.append(step) or step < 3,  # type: ignore[func-returns-value]
    )
    assert result is None
    assert steps == [1, 2, 3]
    assert not end.any()


def test_a_configuration_survives_its_plain_form() -> None:
    assert config_from_plain(CONFIG.to_plain()) == CONFIG
    for broken in ({**CONFIG.to_plain(), "extra": 1}, {"size": "nano"}, {**CONFIG.to_plain(), "inner": 3}):
        with pytest.raises(ConfigError):
            config_from_plain(broken)


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizer": "adam"},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"betas": (0.9, 1.0)},
        {"weight_decay": -0.1},
        {"batch": 0},
        {"warmup": -1},
    ],
)
def test_impossible_inner_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        InnerConfig(**wrong)  # type: ignore[arg-type]


def test_a_window_is_either_steps_or_seconds() -> None:
    for fields in ({}, {"steps": 1, "seconds": 1.0}, {"steps": 0}, {"seconds": float("nan")}):
        with pytest.raises(ConfigError):
            Window(PARENTS[0], "a", **fields)
