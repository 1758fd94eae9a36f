from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import reduce
from protocols.errors import EnvironmentFault
from protocols.rules import default

if TYPE_CHECKING:
    from protocols.tensors import Vector


def scalar_sum(rows: list[Vector], weights: list[float], scale: float) -> Vector:
    """One value at a time; every operation rounded to float32."""
    out = []
    for values in zip(*rows, strict=True):
        total = None
        for value, weight in zip(values, weights, strict=True):
            if np.float32(weight) != 0:
                product = np.float32(value * np.float32(weight))
                total = product if total is None else np.float32(total + product)
        out.append(np.float32(np.float32(0) if total is None else total) * np.float32(scale))
    return np.array(out, dtype=np.float32)


def random_rows(count: int, values: int) -> list[Vector]:
    rng = np.random.default_rng(values)
    return [(rng.standard_normal(values) * np.exp(rng.normal(0, 3, values))).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("values", [1, 3, 1_000, 9_000])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_equals_the_scalar_definition_in_every_bit(count: int, values: int) -> None:
    rows = random_rows(count, values)
    weights = [0.3, 0.25, 0.0, 1e-3, 0.2][:count]
    got = reduce.weighted_sum(rows, weights, 1.1)
    assert got.dtype == np.float32
    assert got.tobytes() == scalar_sum(rows, weights, 1.1).tobytes()


def test_a_fused_multiply_add_would_be_noticed() -> None:
    x = np.float32(1 + 2.0**-12)
    rows = [np.array([-(1 + 2.0**-11)], np.float32), np.array([x], np.float32)]
    assert reduce.weighted_sum(rows, [1.0, float(x)], 1.0).tolist() == [0.0]


def test_the_order_of_rows_matters_and_is_kept() -> None:
    rows = [np.array([value], np.float32) for value in (2.0**24, 1.0, -(2.0**24))]
    assert reduce.weighted_sum(rows, [1.0] * 3, 1.0).tolist() == [0.0]
    assert reduce.weighted_sum([rows[0], rows[2], rows[1]], [1.0] * 3, 1.0).tolist() == [1.0]


def test_rows_of_weight_zero_leave_the_sum() -> None:
    rows = [np.array([-0.0, 1.0], np.float32), np.array([3e38, np.inf], np.float32)]
    assert reduce.weighted_sum(rows, [1.0, 0.0], 1.0).tobytes() == rows[0].tobytes()
    assert reduce.weighted_sum(rows, [0.0, 0.0], 1.0).tolist() == [0.0, 0.0]


def test_rows_are_left_as_they_are() -> None:
    rows = random_rows(3, 70_000)
    kept = [row.copy() for row in rows]
    reduce.weighted_sum(rows, [0.5, 0.25, 0.25], 2.0)
    assert all(row.tobytes() == old.tobytes() for row, old in zip(rows, kept, strict=True))


@pytest.mark.parametrize("bad", [3e38, np.inf, np.nan])
def test_a_result_that_is_not_finite_is_refused(bad: float) -> None:
    rows = [np.ones(70_000, dtype=np.float32), np.ones(70_000, dtype=np.float32)]
    rows[1][69_999] = bad
    with pytest.raises(ValueError, match="not finite"):
        reduce.weighted_sum(rows, [0.5, 1.5], 1.0)


def test_rows_that_do_not_fit_are_refused() -> None:
    one = np.ones(4, dtype=np.float32)
    with pytest.raises(ValueError, match="no rows"):
        reduce.weighted_sum([], [], 1.0)
    with pytest.raises(ValueError, match="4 and 5 values"):
        reduce.weighted_sum([one, np.ones(5, dtype=np.float32)], [1.0, 1.0], 1.0)
    with pytest.raises(ValueError, match="float32"):
        reduce.weighted_sum([np.ones(4)], [1.0], 1.0)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="shorter|longer"):
        reduce.weighted_sum([one], [1.0, 1.0], 1.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1, width=32), st.booleans()), min_size=1, max_size=64))
def test_present_scale_makes_up_for_the_absent(rows: list[tuple[float, bool]]) -> None:
    weights, present = [weight for weight, _ in rows], [here for _, here in rows]
    got = reduce.present_scale(weights, present)
    here = math.fsum(weight for weight, is_here in rows if is_here)
    if here == 0:
        assert got == 0
    else:
        assert got == pytest.approx(math.fsum(weights) / here, rel=1e-6)
        assert float(np.float32(got)) == got
    if all(present) and here > 0:
        assert got == 1


def test_this_machine_passes_the_self_test() -> None:
    reduce.self_test()


@pytest.mark.parametrize("name", list(reduce.SELF_TEST_DIGESTS))
def test_a_differing_digest_is_an_environment_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reduce.SELF_TEST_DIGESTS, name, "00" * 32)
    with pytest.raises(EnvironmentFault, match=f"differently: {name}"):
        reduce.self_test()


def test_the_built_in_vector_notices_a_changed_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "ITERATIONS", default.ITERATIONS - 1)
    with pytest.raises(EnvironmentFault, match="weights"):
        reduce.self_test()


def test_the_built_in_vector_notices_flushed_denormals() -> None:
    """As a library built with -ffast-math leaves the processor; torch can set the same switch."""
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        with pytest.raises(EnvironmentFault, match="weighted sum"):
            reduce.self_test()
    finally:
        torch.set_flush_denormal(False)
    reduce.self_test()
