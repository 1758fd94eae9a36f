"""Prints digests of what every machine must compute alike; run by test_bit_exact.py under different settings."""

from __future__ import annotations

import importlib
import json
import sys
from typing import TYPE_CHECKING

import numpy as np

from protocols.compression import CODECS, get_codec
from protocols.ids import digest
from protocols.outer import nesterov_step
from protocols.reduce import present_scale, self_test_digests, weighted_sum
from protocols.rules import RULES, weights

if TYPE_CHECKING:
    from protocols.gram import Matrix
    from protocols.tensors import Vector

ROWS, VALUES = 5, 200_003
WEIGHTS = (0.25, 0.3, 0.0, 0.125, 0.2)
PRESENT = (True, True, True, False, True)


def rows() -> list[Vector]:
    """Float32 rows over 40 binary exponents, from integers alone."""
    state = np.arange(1, ROWS * VALUES + 1, dtype=np.uint64)
    for _ in range(3):
        state = (state ^ (state >> np.uint64(29))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    high = (state >> np.uint64(32)).astype(np.uint32)
    exponent = np.uint32(100) + high % np.uint32(40)
    bits = (high & np.uint32(0x807F_FFFF)) | (exponent << np.uint32(23))
    return list(bits.view(np.float32).reshape(ROWS, VALUES))


def gram() -> Matrix:
    """Exact Gram of 16 integer vectors."""
    vectors = (rows()[0][: 16 * 50].view(np.uint32) % np.uint32(2_001)).astype(np.int64).reshape(16, 50) - 1_000
    products: Matrix = (vectors[:, None, :] * vectors[None, :, :]).sum(axis=2).astype(np.float64)
    return products


def row_weights() -> list[float]:
    """Uneven ones; one row has none."""
    return [1.0 + 0.37 * (i % 5) for i in range(15)] + [0.0]


def hashed(*arrays: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
    """Hex digest of the arrays' bytes."""
    return digest(*(np.ascontiguousarray(each).tobytes() for each in arrays)).hex()


def digests() -> dict[str, str]:
    """Everything that must not depend on threads or vector units."""
    all_rows = rows()
    used = [weight for weight, here in zip(WEIGHTS, PRESENT, strict=True) if here]
    here = [row for row, is_here in zip(all_rows, PRESENT, strict=True) if is_here]
    result = weighted_sum(here, used, present_scale(WEIGHTS, PRESENT))
    out = {"sum": hashed(result)}
    for name in CODECS:
        data = get_codec(name).encode(result)
        out[name] = digest(data).hex()
        out[f"{name} decoded"] = hashed(get_codec(name).decode(data, VALUES))
    for rule in RULES:
        out[rule] = hashed(np.array(weights(gram(), row_weights(), rule=rule, tolerated=1 / 3)))
    params, momentum = all_rows[0].copy(), all_rows[1].copy()
    nesterov_step(params, momentum, all_rows[2], lr=0.7, momentum_factor=0.8)
    out["step"] = hashed(params, momentum)
    return out | {f"built-in {name}": value for name, value in self_test_digests().items()}


if __name__ == "__main__":
    importlib.import_module("torch")  # as in a daemon: what it sets for the process must not change a bit either
    sys.stdout.write(json.dumps(digests()))
