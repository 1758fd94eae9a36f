from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from blake3 import blake3

from protocols import merkle
from protocols.outer import chunk_leaf, nesterov_step, next_state, state_chunks, state_root

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from protocols.tensors import Vector

VALUES = 2 * 65_536 + 77
LR, FACTOR = 0.7, 0.8


def random_vector(seed: int, values: int = VALUES, scale: float = 1.0) -> Vector:
    return (np.random.default_rng(seed).standard_normal(values) * scale).astype(np.float32)


def test_equals_whole_vector_numpy_in_every_bit_over_many_steps() -> None:
    params, momentum = random_vector(0), np.zeros(VALUES, dtype=np.float32)
    theta: NDArray[Any] = params.copy()
    m: NDArray[Any] = momentum.copy()
    lr, factor = np.float32(LR), np.float32(FACTOR)
    for step in range(20):
        update = random_vector(step + 1, scale=0.1)
        kept = update.copy()
        nesterov_step(params, momentum, update, lr=LR, momentum_factor=FACTOR)
        m = factor * m + update
        theta = theta - lr * (update + factor * m)
        assert theta.dtype == m.dtype == np.float32
        assert params.tobytes() == theta.tobytes()
        assert momentum.tobytes() == m.tobytes()
        assert update.tobytes() == kept.tobytes()


def test_a_step_by_hand() -> None:
    params, momentum = np.array([10.0, 1.0], np.float32), np.array([2.0, 0.0], np.float32)
    nesterov_step(params, momentum, np.array([1.0, 4.0], np.float32), lr=0.5, momentum_factor=0.5)
    assert momentum.tolist() == [2.0, 4.0]
    assert params.tolist() == [9.0, -2.0]


def test_multiplication_and_addition_are_rounded_separately() -> None:
    """1 + 2^-12 squared is 1 + 2^-11 + 2^-24: a fused multiply-add would keep the last term."""
    x = np.float32(1 + 2.0**-12)
    momentum = np.array([x], np.float32)
    params = np.zeros(1, np.float32)
    nesterov_step(params, momentum, np.array([-(1 + 2.0**-11)], np.float32), lr=1.0, momentum_factor=float(x))
    assert momentum.tolist() == [0.0]


def test_every_step_is_within_4_ulp_of_torch_sgd() -> None:
    """Torch may fuse, and differences add up over steps: each starts from torch's own state."""
    weight = torch.nn.Parameter(torch.from_numpy(random_vector(0)))
    optimizer = torch.optim.SGD([weight], lr=LR, momentum=FACTOR, nesterov=True)
    momentum = np.zeros(VALUES, dtype=np.float32)
    for step in range(15):
        params = weight.detach().numpy().copy()
        terms = np.abs(params) + np.abs(momentum)
        update = random_vector(step + 1, scale=0.1)
        nesterov_step(params, momentum, update, lr=LR, momentum_factor=FACTOR)
        weight.grad = torch.from_numpy(update)
        optimizer.step()
        theirs = weight.detach().numpy()
        # Where terms cancel, the sum is only as exact as the terms: the unit is theirs.
        terms += np.abs(update)
        assert (np.abs(params - theirs) <= 4 * np.spacing(terms)).all()
        theirs = optimizer.state[weight]["momentum_buffer"].numpy()
        assert (np.abs(momentum - theirs) <= 4 * np.spacing(terms)).all()
        momentum = theirs.copy()


def test_without_momentum_and_rate_1_the_update_is_subtracted() -> None:
    params, update = random_vector(0), random_vector(1)
    expected = params - update
    nesterov_step(params, np.zeros(VALUES, np.float32), update, lr=1.0, momentum_factor=0.0)
    assert params.tobytes() == expected.tobytes()


@pytest.mark.parametrize("place", range(3))
def test_other_shapes_and_dtypes_are_refused(place: int) -> None:
    wrongs: list[NDArray[Any]] = [np.zeros(5, np.float32), np.zeros(6), np.zeros((2, 3), np.float32)]
    for wrong in (*wrongs, np.zeros(12, np.float32)[::2]):
        vectors: list[NDArray[Any]] = [np.zeros(6, np.float32) for _ in range(3)]
        vectors[place] = wrong
        with pytest.raises(ValueError, match=r"params|momentum|update"):
            nesterov_step(*vectors, lr=1.0, momentum_factor=0.0)


def test_state_root_is_the_merkle_root_over_chunks_of_each_vector() -> None:
    values = (1 << 18) + 3
    params, momentum = random_vector(0, values), random_vector(1, values)
    chunks = [params[: 1 << 18].tobytes(), params[1 << 18 :].tobytes()]
    chunks += [momentum[: 1 << 18].tobytes(), momentum[1 << 18 :].tobytes()]
    assert [bytes(chunk) for chunk in state_chunks(params, momentum)] == chunks

    def leaf(data: bytes) -> bytes:
        return blake3((5).to_bytes(8, "little") + b"state" + len(data).to_bytes(8, "little") + data).digest()

    root = state_root(params, momentum)
    assert root == merkle.Tree([leaf(chunk) for chunk in chunks]).root
    tree = merkle.Tree([chunk_leaf(chunk) for chunk in chunks])
    assert merkle.verify(root, leaf(chunks[2]), index=2, count=4, path=tree.path(2))


def test_state_root_changes_with_any_bit_and_with_the_vectors_roles() -> None:
    params, momentum = random_vector(0, 1_000), random_vector(1, 1_000)
    roots = {state_root(params, momentum), state_root(momentum, params)}
    for vector in (params, momentum):
        for place in (0, 999):
            changed = vector.copy()
            changed.view(np.uint32)[place] ^= 1
            roots.add(state_root(changed, momentum) if vector is params else state_root(params, changed))
    assert len(roots) == 6
    with pytest.raises(ValueError, match="1000 parameters, 999"):
        state_root(params, momentum[:999])


@pytest.mark.parametrize("where", ["there", "elsewhere"])
@pytest.mark.parametrize("count", [1, 65_536, 262_144 + 5, 2 * 262_144 + 65_536 + 77])
def test_the_next_state_and_its_root_are_those_of_a_step_on_copies(count: int, where: str) -> None:
    params, momentum, update = (random_vector(seed, count) for seed in (1, 2, 3))
    kept = params.tobytes(), momentum.tobytes()

    def values(start: int, room: Vector) -> Vector:
        lie = update[start : start + len(room)]
        if where == "elsewhere":
            return lie
        room[:] = lie
        return room

    *new, root = next_state((params, momentum), values, lr=LR, momentum_factor=FACTOR)
    assert (params.tobytes(), momentum.tobytes()) == kept
    nesterov_step(params, momentum, update, lr=LR, momentum_factor=FACTOR)
    assert [each.tobytes() for each in new] == [params.tobytes(), momentum.tobytes()]
    assert root == state_root(params, momentum)


@pytest.mark.parametrize("place", [0, 65_536, 99_999])
def test_a_next_state_that_is_not_finite_is_refused(place: int) -> None:
    params = np.full(100_000, 3e38, np.float32)

    def values(start: int, room: Vector) -> Vector:
        room[:] = 0
        if start <= place < start + len(room):
            room[place - start] = -3e38
        return room

    with pytest.raises(ValueError, match="finite"):
        next_state((params, np.zeros_like(params)), values, lr=1.0, momentum_factor=0.5)
    with pytest.raises(ValueError, match="100000 parameters, 1 values"):
        next_state((params, np.zeros(1, np.float32)), values, lr=1.0, momentum_factor=0.5)
