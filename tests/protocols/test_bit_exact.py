"""The same bits with 1 and 2 threads, with and without this processor's wide vector units, and in plain NumPy."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from protocols.reduce import SELF_TEST_DIGESTS

if TYPE_CHECKING:
    from types import ModuleType

    from protocols.gram import Matrix

PROGRAM = Path(__file__).with_name("bit_exact_program.py")
UMATH = f"numpy.{'_core' if np.lib.NumpyVersion(np.__version__) >= '2.0.0' else 'core'}._multiarray_umath"
ROOT = Path(__file__).parents[2]


def switchable() -> list[str]:
    """Vector extensions that NumPy uses here and can be told not to use."""
    numpy = importlib.import_module(UMATH)
    return [name for name in numpy.__cpu_dispatch__ if numpy.__cpu_features__.get(name)]


def settings() -> dict[str, dict[str, str]]:
    """Environments by name; one that disables each extension, and one that disables all."""
    out = {
        f"{count} threads": {f"{library}_NUM_THREADS": str(count) for library in ("OMP", "OPENBLAS", "MKL")}
        for count in (1, 2)
    }
    out |= {f"aten {level}": {"ATEN_CPU_CAPABILITY": level} for level in ("default", "avx2", "avx512")}
    out |= {f"no {name}": {"NPY_DISABLE_CPU_FEATURES": name} for name in switchable()}
    if switchable():
        out["no extensions"] = {"NPY_DISABLE_CPU_FEATURES": " ".join(switchable())}
    return out


def run(program: str, environment: dict[str, str]) -> str:
    base = {name: value for name, value in os.environ.items() if not name.startswith(("NPY_", "ATEN_"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", *program.split("\n", 1)],
        env=base | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def load_program() -> ModuleType:
    """The program as a module; tests are no packages."""
    spec = importlib.util.spec_from_file_location("bit_exact_program", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def digests(setting: str) -> dict[str, str]:
    out: dict[str, str] = json.loads(run(str(PROGRAM), settings()[setting]))
    return out


@pytest.mark.parametrize("setting", settings())
def test_digests_do_not_depend_on_the_setting(setting: str) -> None:
    assert digests(setting) == digests("1 threads")


@pytest.mark.parametrize("name", switchable())
def test_the_switch_really_disables_the_extension(name: str) -> None:
    check = f"import {UMATH} as u; print(u.__cpu_features__[{name!r}])"
    assert run(f"-c\n{check}", {}).strip() == "True"
    assert run(f"-c\n{check}", {"NPY_DISABLE_CPU_FEATURES": name}).strip() == "False"


def test_the_built_in_digests_hold() -> None:
    for name, value in SELF_TEST_DIGESTS.items():
        assert digests("1 threads")[f"built-in {name}"] == value


def test_they_equal_plain_numpy() -> None:
    program = load_program()
    got = digests("1 threads")
    rows = program.rows()
    w = [np.float32(weight) for weight in program.WEIGHTS]
    scale = np.float32((0.25 + 0.3 + 0.0 + 0.125 + 0.2) / (0.25 + 0.3 + 0.0 + 0.2))
    result = scale * (w[0] * rows[0] + w[1] * rows[1] + w[4] * rows[4])
    assert got["sum"] == program.hashed(result)

    padded = np.zeros(-(-len(result) // 64) * 64, dtype=np.float32)
    padded[: len(result)] = result
    blocks = padded.reshape(-1, 64)
    scales = (np.abs(blocks).max(axis=1) / np.float32(127)).astype(np.float16)
    assert (scales > 0).all()
    codes = np.clip(np.rint(blocks / scales[:, None].astype(np.float32)), -127, 127).astype(np.int8)
    data = scales.tobytes() + codes.reshape(-1)[: len(result)].tobytes()
    assert got["int8"] == program.digest(data).hex()
    assert got["float32"] == program.digest(result.tobytes()).hex()
    decoded = (scales[:, None].astype(np.float32) * codes.astype(np.float32)).reshape(-1)[: len(result)]
    assert got["int8 decoded"] == program.hashed(decoded)

    m = np.float32(0.8) * rows[1] + rows[2]
    theta = rows[0] - np.float32(0.7) * (rows[2] + np.float32(0.8) * m)
    assert got["step"] == program.hashed(theta, m)


def test_the_weights_equal_whole_row_numpy() -> None:
    """The default rule once more, with arrays in place of lists, summed in the same order."""
    program = load_program()
    a = np.array(program.row_weights()[:15])
    gram = program.gram()[:15, :15]

    def ordered(terms: Matrix) -> Matrix:
        """Sum over the last axis from first to last; NumPy's own sum adds in pairs."""
        sums: Matrix = np.cumsum(terms, axis=-1)[..., -1]
        return sums

    total = float(ordered(a))
    norms = np.sqrt(gram.diagonal())
    order = np.argsort(-norms, kind="stable")
    above = np.cumsum(a[order])
    limit = norms[order][np.argmax(above > (2 * (1 / 3) * (1 - 1 / 3) * total) * (1.0 + 1e-9))]
    factors = np.where(norms <= limit, 1.0, limit / norms)
    clipped = factors[:, None] * factors[None, :] * gram
    squares = clipped.diagonal()
    distances = np.maximum((squares[:, None] + squares[None, :]) - 2 * clipped, 0.0)
    np.fill_diagonal(distances, 0.0)
    mixing = np.zeros((15, 15))
    for i in range(15):
        left = (1 - 1 / 3) * total
        for j in np.argsort(distances[i], kind="stable"):
            mixing[i, j] = min(a[j], left) if a[j] < left else a[j] * (left / a[j])
            if a[j] >= left:
                break
            left -= a[j]
    mixing /= ordered(mixing)[:, None]
    products = ordered(mixing[:, None, :] * clipped[None, :, :])
    mixed = ordered(products[:, None, :] * mixing[None, :, :])
    smoothing = 2.0**-10 * limit
    v = a / total
    for _ in range(128):
        inner = ordered(mixed * v)
        square = ordered(inner * v)
        distances2 = np.maximum((mixed.diagonal() + square) - 2 * inner, 0.0)
        pull = a / np.sqrt(distances2 + smoothing * smoothing)
        v = pull / ordered(pull)
    expected = np.append((ordered(v * mixing.T) * factors).astype(np.float32), np.float32(0)).astype(np.float64)
    expected[expected < expected.max() * 2.0**-20] = 0
    assert digests("1 threads")["default"] == program.hashed(expected)
