"""What the codecs cost: time on 25 M values beside the same formula on the whole vector, and loss beside float32.

`encode/CODEC`, `decode/CODEC`: milliseconds of one thread for a vector in parts, as a round works on it, the fastest
of a few tries; against NumPy on the whole vector at once, which must make the same bytes and values. `gram/CODEC`:
the Gram matrices of four rows, part by part, against one float64 product. `loss/CODEC`: held-out loss of four peers
whose updates take that codec and whose results are int8, with drift, against float32 both ways on the same data; bound
1.003. All rows weigh the same there, for with four rows the default rule's weights jump with any small change, which
moves the loss of a seed by more than the codecs do (``--rule default`` shows it). Prints one JSON line a case;
`--quick` shows that it works, its losses mean nothing.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from protocols.compression import CODECS, get_codec
from protocols.drift import settle
from protocols.gram import part_gram
from protocols.outer import nesterov_step
from protocols.reduce import weighted_sum
from protocols.rules import RULES, weights
from protocols.tensors import PART_VALUES, part_bounds, part_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from protocols.compression import Codec
    from protocols.tensors import Vector

KINDS = ("encode", "decode", "gram", "loss")
LIMITS = {"int8": 127, "int4": 7}
PEERS, ROWS = 4, 4
LOSS_BOUND = 1.003
OUTER = (0.9, 0.5)
"""Rate and momentum of the outer optimizer, as in the manifest of a new run."""


@dataclass(frozen=True)
class Plan:
    """How much to run."""

    values: int
    tries: int
    size: str
    rounds: int
    steps: int
    seeds: tuple[int, ...]
    rule: str = "mean"


FULL = Plan(25_000_000, 5, "tiny", 16, 25, (0, 1, 2))
QUICK = Plan(2_000_000, 2, "nano", 2, 3, (0,))


def whole_encode(codec: str, values: Vector) -> bytes:
    """The codec's formula, each step on the whole vector."""
    if codec == "float32":
        return values.tobytes()
    if codec == "bf16":
        bits = values.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return rounded.astype("<u2").tobytes()
    blocks = values.reshape(-1, 64)
    scales = (np.abs(blocks).max(axis=1) / np.float32(LIMITS[codec])).astype("<f2")
    codes = np.rint(blocks / scales.astype(np.float32)[:, None]).astype(np.int8).reshape(-1)
    if codec == "int4":
        codes = (codes[::2] & 15) | (codes[1::2] << 4)
    return bytes(scales.tobytes() + codes.tobytes())


def whole_decode(codec: str, data: bytes, count: int) -> Vector:
    """Likewise."""
    if codec == "float32":
        return np.frombuffer(data, dtype="<f4").copy()
    if codec == "bf16":
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    scales = np.frombuffer(data, dtype="<f2", count=count // 64).astype(np.float32)
    codes = np.frombuffer(data, dtype=np.int8, offset=count // 32)
    if codec == "int4":
        codes = np.stack([codes << 4 >> 4, codes >> 4], axis=1).reshape(-1)
    values: Vector = (codes.reshape(-1, 64).astype(np.float32) * scales[:, None]).reshape(-1)
    return values


def fastest(work: Callable[[], object], tries: int) -> tuple[float, float]:
    """Milliseconds of the fastest and the slowest try, after one that is not counted."""
    work()
    found = []
    for _ in range(tries):
        start = time.perf_counter()
        work()
        found.append(1e3 * (time.perf_counter() - start))
    return min(found), max(found)


def slices(values: int) -> list[slice]:
    """The parts of a vector."""
    return [slice(*part_bounds(k, values)) for k in range(part_count(values))]


def drawn(values: int, seed: int) -> Vector:
    """Whole parts of normal values, no scale of which is subnormal."""
    count = values - values % PART_VALUES
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def time_encode(codec: Codec, plan: Plan) -> dict[str, Any]:
    """Part by part, against the whole."""
    values = drawn(plan.values, 0)
    places = slices(len(values))
    assert codec.encode(values) == whole_encode(codec.name, values)
    ours = fastest(lambda: [codec.encode(values[place]) for place in places], plan.tries)
    return against(ours, fastest(lambda: whole_encode(codec.name, values), plan.tries), plan)


def time_decode(codec: Codec, plan: Plan) -> dict[str, Any]:
    """Part by part into one vector, against the whole into a new one."""
    values = drawn(plan.values, 0)
    whole, out = codec.encode(values), np.empty_like(values)
    parts = [(place, codec.encode(values[place])) for place in slices(len(values))]

    def decode() -> None:
        for place, data in parts:
            codec.decode(data, place.stop - place.start, out[place])

    ours = fastest(decode, plan.tries)
    assert out.tobytes() == whole_decode(codec.name, whole, len(values)).tobytes()
    return against(ours, fastest(lambda: whole_decode(codec.name, whole, len(values)), plan.tries), plan)


def time_gram(codec: Codec, plan: Plan) -> dict[str, Any]:
    """Decoded part by part into one block, and multiplied, against one float64 product of all rows."""
    rows = [drawn(plan.values, seed) for seed in range(ROWS)]
    places = slices(len(rows[0]))
    parts = [[codec.encode(row[place]) for row in rows] for place in places]
    block = np.empty((ROWS, PART_VALUES), dtype=np.float32)

    def gram() -> NDArray[np.float64]:
        total = np.zeros((ROWS, ROWS))
        for column in parts:
            for row, data in zip(block, column, strict=True):
                codec.decode(data, PART_VALUES, row)
            total += part_gram([*block])
        return total

    wide = np.array([np.concatenate([codec.decode(c[i], PART_VALUES) for c in parts]) for i in range(ROWS)])

    def whole() -> NDArray[np.float64]:
        doubles = wide.astype(np.float64)
        product: NDArray[np.float64] = doubles @ doubles.T
        return product

    assert np.allclose(gram(), whole(), rtol=1e-9, atol=1e-9 * len(rows[0]))
    return against(fastest(gram, plan.tries), fastest(whole, plan.tries), plan)


def against(ours: tuple[float, float], other: tuple[float, float], plan: Plan) -> dict[str, Any]:
    """The measured part of a line in milliseconds; ``spread`` is over our tries."""
    return {
        "value": ours[0],
        "unit": "ms",
        "against": {"name": "whole vector", "value": other[0]},
        "ratio": ours[0] / other[0],
        "better": "lower",
        "bound": None,
        "ok": None,
        "runs": plan.tries,
        "spread": [each / other[0] for each in ours],
    }


def coded(codec: Codec, values: Vector) -> list[bytes]:
    """A vector's encoded parts."""
    return [codec.encode(values[place]) for place in slices(len(values))]


def decoded(codec: Codec, data: Sequence[bytes], values: int) -> Vector:
    """What everybody makes of them."""
    out = np.empty(values, dtype=np.float32)
    for place, part in zip(slices(values), data, strict=True):
        codec.decode(part, place.stop - place.start, out[place])
    return out


def trained(update: str, result: str, plan: Plan, seed: int) -> float:
    """Held-out loss of four peers in one process: training, both codecs, drift, the rule, the outer step."""
    import torch

    from peer import corpus
    from peer.data import Corpus
    from peer.evaluate import held_out_loss
    from peer.learner import Learner
    from peer.models import SIZES, initial_vector
    from peer.training import DataConfig, InnerConfig, TrainConfig, Window
    from protocols.ids import digest

    torch.set_num_threads(1)
    context, data = SIZES[plan.size].context, DataConfig(corpus.SHARDS, deal="round")
    config = TrainConfig(data, size=plan.size, context=context, seed=seed, inner=InnerConfig())
    shards = corpus.shakespeare()
    learner = Learner(config, Corpus(shards, data, context=context))
    params = initial_vector(plan.size, context, seed)
    momentum, end = np.zeros_like(params), np.empty_like(params)
    drifts = [np.zeros_like(params) for _ in range(PEERS)]
    up, down = get_codec(update), get_codec(result)
    for number in range(plan.rounds):
        parent = digest(b"bench", seed.to_bytes(8, "little"), number.to_bytes(8, "little"))
        rows = []
        for peer in range(PEERS):
            learner.train(params + drifts[peer], Window(parent, f"peer {peer}", steps=plan.steps), end=end)
            drift = end - params
            sent = coded(up, -drift)
            rows.append(decoded(up, sent, len(params)))
            drifts[peer] = settle(drift, sent, [True] * len(sent), update)
        wide = np.array(rows, dtype=np.float64)
        found = weights(wide @ wide.T, [1.0] * PEERS, rule=plan.rule, tolerated=1 / 3)
        step = decoded(down, coded(down, weighted_sum(rows, found, 1.0)), len(params))
        nesterov_step(params, momentum, step, lr=OUTER[0], momentum_factor=OUTER[1])
    return held_out_loss(params, config, shards)


def compare_loss(codec: Codec, plan: Plan, known: dict[tuple[str, str, int], float]) -> dict[str, Any]:
    """Against float32 updates and results on the same data."""

    def loss(update: str, result: str, seed: int) -> float:
        key = (update, result, seed)
        if key not in known:
            known[key] = trained(update, result, plan, seed)
            sys.stderr.write(json.dumps({"update": update, "result": result, "seed": seed, "loss": known[key]}) + "\n")
        return known[key]

    values = [loss(codec.name, "int8", seed) for seed in plan.seeds]
    others = [loss("float32", "float32", seed) for seed in plan.seeds]
    ratios = sorted(value / other for value, other in zip(values, others, strict=True))
    ratio = fmean(values) / fmean(others)
    return {
        "value": fmean(values),
        "unit": "nats/byte",
        "against": {"name": "float32", "value": fmean(others)},
        "ratio": ratio,
        "better": "lower",
        "bound": LOSS_BOUND,
        "ok": ratio <= LOSS_BOUND,
        "runs": len(values),
        "spread": [ratios[0], ratios[-1]],
    }


def main() -> None:
    """Run the cases asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    cases = [f"{kind}/{name}" for kind in KINDS for name in CODECS]
    parser.add_argument("--case", choices=[*KINDS, *cases], action="append", help="a kind or a case; default: all")
    parser.add_argument("--rule", choices=RULES, default="mean", help="of the cases of loss")
    given = parser.parse_args()
    plan = replace(QUICK if given.quick else FULL, rule=given.rule)
    known: dict[tuple[str, str, int], float] = {}
    for case in cases:
        kind, name = case.split("/")
        if given.case and not {kind, case} & set(given.case):
            continue
        codec = get_codec(name)
        timed = {"encode": time_encode, "decode": time_decode, "gram": time_gram}
        found = compare_loss(codec, plan, known) if kind == "loss" else timed[kind](codec, plan)
        if given.quick:
            found |= {"bound": None, "ok": None}
        line = {"schema": 1, "bench": "codecs", "case": case, **found, "seed": plan.seeds[0], "quick": given.quick}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
