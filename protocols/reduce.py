"""The weighted sum of a part's rows, exact to the bit, and the built-in vector that proves a machine can do it.

Every product and every sum is rounded to float32 by itself, rows in contributor order, so that
all honest reducers make the same bytes (protocol.md 5.7; redteam.md 20, 30).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .compression import CODECS, get_codec
from .errors import EnvironmentFault
from .gram import Matrix, from_upper
from .ids import digest
from .outer import nesterov_step
from .rules import weights
from .rules.gram_space import total
from .tensors import BLOCK, Vector, check_rows, is_finite

if TYPE_CHECKING:
    from collections.abc import Sequence


def present_scale(row_weights: Sequence[float], present: Sequence[bool]) -> float:
    """s_p = Σ w / Σ_present w, summed in doubles in contributor order, as float32; 0 where nobody is present."""
    here = total([weight for weight, is_here in zip(row_weights, present, strict=True) if is_here])
    if here == 0:
        return 0.0
    return float(np.float32(total(list(row_weights)) / here))


def weighted_sum(rows: Sequence[Vector], row_weights: Sequence[float], scale: float) -> Vector:
    """scale · Σ w_i x_i as a new float32 [m], over present ``rows`` float32 [m] in contributor order.

    Starts with the first product; rows of weight 0 leave the sum, whatever they hold. Weights
    and scale are rounded to float32 first. Raises ValueError without rows, for rows that differ
    in length or dtype, and when the result is not finite.
    """
    check_rows(rows)
    pairs = [(row, np.float32(w)) for row, w in zip(rows, row_weights, strict=True) if np.float32(w) != 0]
    if not pairs:
        return np.zeros(len(rows[0]), dtype=np.float32)
    out = np.empty(len(rows[0]), dtype=np.float32)
    scratch = np.empty(min(BLOCK, len(out)), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(out), BLOCK):
            block = out[start : start + BLOCK]
            for place, (row, weight) in enumerate(pairs):
                values = row[start : start + BLOCK]
                if place == 0:
                    np.multiply(values, weight, out=block)
                else:
                    np.multiply(values, weight, out=scratch[: len(block)])
                    np.add(block, scratch[: len(block)], out=block)
            if scale != 1:  # which would change nothing
                np.multiply(block, np.float32(scale), out=block)
    if not is_finite(out):
        raise ValueError("the weighted sum is not finite")
    return out


SELF_TEST_DIGESTS = {
    "weighted sum": "5ea7b2ef0910fb9626b3ea0310048ce667ef9661219579a4daa5e860a942e9eb",
    "float32": "3daec196f2fec28c9f10b0ff20ebe4b723e2654cde4e05ab46a681039365bfa3",
    "bf16": "0980040521a13aa702b97e5fcd25be481e4a61b1b35210037e542424ba4ea31b",
    "int8": "b57b77966ce731907634b2ed7c810700971fec612d980693e5914ce2c0a4c91a",
    "int4": "7372be8c8ea383580a8d806f6db9b00fd42a5b75f24d5574b396a2384415a724",
    "weights": "d06a9391aa36385309a231ec2755d8be124954da1b3646944ba1e828734c738f",
    "centered-clip": "8bbc717eb25545b5deae4e5b1af979f6c5936a61fabfa183eac56bb7bd302de0",
    "multi-krum": "3be0953e64992a12d0d07061a4ddb23e3014c3a5a084127659ab3810bdaeb8a7",
    "outer step": "6d08fdc8b70c21aad4c072976c18d82c6843b96dbe4ccca245b8f27cc8982e00",
}
"""BLAKE3 of what the built-in vector must give."""


# One block whose scale is exactly 1, so that 63 codes lie half-way between integers.
_TIES = np.array([127.0, *(k - 31.5 for k in range(63))], dtype=np.float32)


def self_test() -> None:
    """Reproduce the built-in vector; raises EnvironmentFault if this machine's arithmetic is not the protocol's.

    Covers rounding to nearest even, denormals (lost where a library has set flush-to-zero),
    float16 scales and the absence of fused operations. A peer reduces only after this.
    """
    wrong = [name for name, value in self_test_digests().items() if SELF_TEST_DIGESTS.get(name) != value]
    if wrong:
        raise EnvironmentFault(
            f"this machine computes the built-in test vector differently: {', '.join(wrong)}",
            remedy="run without libraries or settings that change floating-point rounding (flush to zero, fast math)",
        )


def self_test_digests() -> dict[str, str]:
    """Hex digests of the built-in vector's weighted sum, its encodings, the rules' weights and an outer step."""
    rows = _built_in_rows(5, 4_133)
    ordinary = weighted_sum(rows, [0.3, 0.25, 2.0**-10, 0.1, 0.2], 1.1)
    # The ordinary result lies in the middle of float32; scaled copies reach denormals and the far end.
    extremes = [ordinary * np.float32(2.0**power) for power in (-140, -30, 90)]
    result = np.concatenate([_TIES, ordinary, *extremes])
    out = {"weighted sum": digest(result.view(np.uint8).data).hex()}
    for name in CODECS:
        data = get_codec(name).encode(result)
        decoded = get_codec(name).decode(data, len(result))
        out[name] = digest(data, np.ascontiguousarray(decoded).view(np.uint8).data).hex()
    gram, rows_weigh = _built_in_gram(7), [1.0, 2.0, 0.5, 1.25, 0.0, 3.0, 1.0]
    for name, rule in (("weights", "default"), ("centered-clip", "centered-clip"), ("multi-krum", "multi-krum")):
        found = weights(gram, rows_weigh, rule=rule, tolerated=1 / 3)
        out[name] = digest(np.array(found, dtype="<f8").view(np.uint8).data).hex()
    params, momentum = rows[0].copy(), rows[1].copy()
    nesterov_step(params, momentum, rows[2], lr=0.7, momentum_factor=0.8)
    out["outer step"] = digest(params.view(np.uint8).data, momentum.view(np.uint8).data).hex()
    return out


def _built_in_rows(count: int, values: int) -> list[Vector]:
    """Finite float32 rows made by integer arithmetic alone: sign, 24 binary exponents, 23 fraction bits."""
    state = np.arange(1, count * values + 1, dtype=np.uint32)
    for shift in (16, 15, 13, 16):
        state ^= state >> np.uint32(shift)
        state *= np.uint32(0x9E37_79B1)
    exponent = np.uint32(112) + (state >> np.uint32(3)) % np.uint32(24)
    bits = (state & np.uint32(0x807F_FFFF)) | (exponent << np.uint32(23))
    return list(bits.view(np.float32).reshape(count, values))


def _built_in_gram(count: int) -> Matrix:
    """Gram of small integer vectors, one of them far out: exact whatever the order of summation."""
    rows = [[((i * 37 + k * k * 11 + i * k * 5) % 17) - 5 for k in range(23)] for i in range(count)]
    rows[1] = [-40 * value for value in rows[1]]
    products = [[float(sum(x * y for x, y in zip(a, b, strict=True))) for b in rows] for a in rows]
    return from_upper([products[i][j] for i in range(count) for j in range(i, count)], count)
