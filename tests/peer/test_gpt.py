"""The built-in architecture: sizes, the flat vector, first values that are the same everywhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from blake3 import blake3

from peer.models import SIZES, initial_vector, parameter_count
from peer.models.gpt import GPT, flatten, load_flat
from protocols.errors import ConfigError

PART = 32_768
NANO_DIGEST = "fb1feaf53077a0bf23c9ec778ebfe3bde9b598112307c2a618eb3ebd6088a367"
TINY_DIGEST = "89a0dae8009a635a9470cb1996408dd96d8e756e58e5ce9643625c25b5558514"


@pytest.mark.parametrize(
    ("size", "count"), [("nano", 81_648), ("tiny", 387_744), ("small", 10_916_736), ("base", 99_899_136)]
)
def test_a_size_has_the_parameters_it_promises(size: str, count: int) -> None:
    assert parameter_count(size, SIZES[size].context) == count


def test_tiny_is_twelve_parts() -> None:
    assert math.ceil(parameter_count("tiny", 64) / PART) == 12


@pytest.mark.parametrize("size", ["nano", "tiny", "small"])
def test_the_flat_vector_covers_every_parameter_of_the_model(size: str) -> None:
    model = GPT(size, SIZES[size].context)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameter_count(size, SIZES[size].context)
    assert {id(p) for p in model.ordered} == {id(p) for p in model.parameters()}


@pytest.mark.parametrize(("size", "context"), [("huge", 64), ("tiny", 1), ("tiny", 100_000)])
def test_an_unknown_size_or_context_is_a_configuration_error(size: str, context: int) -> None:
    with pytest.raises(ConfigError):
        parameter_count(size, context)


def test_the_initial_vector_never_changes() -> None:
    # A different digest would make every existing run start elsewhere: it must not change, on any machine.
    assert blake3(initial_vector("nano", 32, 0).tobytes()).hexdigest() == NANO_DIGEST
    assert blake3(initial_vector("tiny", 64, 7).tobytes()).hexdigest() == TINY_DIGEST


def test_initial_matrices_are_uniform_within_their_bound() -> None:
    vector = initial_vector("tiny", 64, 3)
    model = GPT("tiny", 64)
    load_flat(model, vector)
    qkv = model.get_parameter("blocks.1.qkv").detach().numpy()
    bound = math.sqrt(3 / 96)
    assert np.abs(qkv).max() <= bound
    assert abs(float(qkv.mean())) < 4 * bound / math.sqrt(3 * qkv.size)
    assert float(qkv.std()) == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert np.unique(qkv).size > 0.99 * qkv.size


def test_another_seed_gives_other_values() -> None:
    assert not np.array_equal(initial_vector("nano", 32, 0), initial_vector("nano", 32, 1))


def test_an_untrained_model_knows_nothing() -> None:
    model = GPT("nano", 32)
    load_flat(model, initial_vector("nano", 32, 0))
    windows = torch.arange(4 * 33).reshape(4, 33) % 256
    assert float(model.loss(windows).detach()) == pytest.approx(math.log(256), abs=1e-6)


def test_load_and_flatten_are_inverse() -> None:
    vector = np.random.default_rng(0).standard_normal(parameter_count("nano", 32)).astype(np.float32)
    model = GPT("nano", 32)
    load_flat(model, vector)
    out = np.empty_like(vector)
    flatten(model, out)
    assert np.array_equal(out, vector)


def test_a_vector_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="parameters"):
        load_flat(GPT("nano", 32), np.zeros(10, dtype=np.float32))


def test_no_byte_sees_the_future() -> None:
    model = GPT("nano", 32)
    vector = np.random.default_rng(1).standard_normal(parameter_count("nano", 32)).astype(np.float32) * 0.1
    load_flat(model, vector)
    tokens = torch.arange(32).reshape(1, 32)
    changed = tokens.clone()
    changed[0, 20:] += 100
    with torch.inference_mode():
        before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :20], after[:, :20], atol=1e-6)
    assert not torch.allclose(before[:, 20:], after[:, 20:], atol=1e-2)
