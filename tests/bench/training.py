"""What local training with an outer step costs in loss: one peer, four peers, and plain AdamW on the same data.

One process, no network: the mean of the updates in float32, then the project's own outer step. Prints one JSON line
for each comparison and one for each run on stderr. All of it takes about half an hour on one core; `--quick`
replaces the model by `nano` and the runs by a few steps, to show that it works (its losses mean nothing).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, replace
from statistics import fmean

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is imported

import numpy as np
import torch

from peer import corpus
from peer.data import Corpus
from peer.evaluate import held_out_loss
from peer.learner import Learner
from peer.models import SIZES, initial_vector
from peer.training import DEALS, DataConfig, InnerConfig, TrainConfig, Window
from protocols.ids import digest
from protocols.outer import nesterov_step

CASES = ("alone/limit", "alone/adamw", "swarm/alone", "swarm/adamw")
PEERS = 4
OUTER = (0.9, 0.5)
"""Rate and momentum of the outer optimizer, as in the manifest of a new run."""
LIMIT = 2.40
"""Nats per byte that one peer has to reach in 16 rounds."""


@dataclass(frozen=True)
class Plan:
    """How much to run: ``tiny`` in full, or ``nano`` to see that it works."""

    size: str
    steps: int
    long: int
    """Rounds of one peer alone (``alone/…``)."""
    short: int
    """Rounds of the comparison with four peers (``swarm/…``)."""
    rates: tuple[float, ...]
    seeds: tuple[int, ...]


FULL = Plan(size="tiny", steps=25, long=16, short=8, rates=(4e-3, 8e-3, 12e-3), seeds=(0, 1, 2))
QUICK = Plan(size="nano", steps=5, long=2, short=2, rates=(8e-3,), seeds=(0,))


class Bench:
    """Runs of one plan; each is computed once, whatever asks for it."""

    def __init__(self, plan: Plan, inner: InnerConfig, *, outer: tuple[float, float], deal: str) -> None:
        self.plan = plan
        self._inner = inner
        self._outer = outer
        self._data = DataConfig(corpus.SHARDS, deal=deal)
        self._shards = corpus.shakespeare()
        self._known: dict[tuple[str, int, int, float, int], float] = {}

    def swarm(self, peers: int, rounds: int, *, lr: float, seed: int) -> float:
        """Held-out loss of ``peers`` after ``rounds`` outer steps on the plain mean of their updates."""
        return self._once("local", peers, rounds, lr, seed)

    def adamw(self, rounds: int, *, lr: float, seed: int) -> float:
        """Held-out loss of one uninterrupted AdamW run over the same number of steps."""
        return self._once("adamw", 1, rounds, lr, seed)

    def best(self, kind: str, peers: int, rounds: int) -> float:
        """Lowest loss over the rates, each averaged over the seeds."""
        plan = self.plan
        return min(fmean(self._once(kind, peers, rounds, lr, seed) for seed in plan.seeds) for lr in plan.rates)

    def _once(self, kind: str, peers: int, rounds: int, lr: float, seed: int) -> float:
        key = (kind, peers, rounds, lr, seed)
        if key not in self._known:
            began = time.monotonic()
            run = self._local if kind == "local" else self._plain
            self._known[key] = run(peers, rounds, lr, seed)
            named = dict(zip(("kind", "peers", "rounds", "lr", "seed"), key, strict=True))
            line = {**named, "loss": self._known[key], "seconds": round(time.monotonic() - began, 1)}
            sys.stderr.write(json.dumps(line) + "\n")
        return self._known[key]

    def _local(self, peers: int, rounds: int, lr: float, seed: int) -> float:
        learner = self._learner(replace(self._inner, lr=lr), seed)
        state = initial_vector(self.plan.size, SIZES[self.plan.size].context, seed)
        momentum, end = np.zeros_like(state), np.empty_like(state)
        for number in range(rounds):
            update = np.zeros_like(state)
            for peer in range(peers):
                window = Window(_parent(seed, number), f"peer {peer}", steps=self.plan.steps)
                learner.train(state, window, end=end)
                update += (state - end) * np.float32(1 / peers)
            nesterov_step(state, momentum, update, lr=self._outer[0], momentum_factor=self._outer[1])
        return held_out_loss(state, learner.config, self._shards)

    def _plain(self, peers: int, rounds: int, lr: float, seed: int) -> float:
        """One window as long as all rounds, with the same inner optimizer but for a warm-up of a tenth of it."""
        steps = rounds * self.plan.steps
        inner = replace(self._inner, lr=lr, warmup=steps // 10)
        learner = self._learner(inner, seed)
        state = initial_vector(self.plan.size, SIZES[self.plan.size].context, seed)
        learner.train(state, Window(_parent(seed, 0), "peer 0", steps=steps), end=state)
        return held_out_loss(state, learner.config, self._shards)

    def _learner(self, inner: InnerConfig, seed: int) -> Learner:
        context = SIZES[self.plan.size].context
        config = TrainConfig(self._data, size=self.plan.size, context=context, seed=seed, inner=inner)
        return Learner(config, Corpus(self._shards, self._data, context=context))


def _parent(seed: int, number: int) -> bytes:
    """Stands for the seal that a round builds on: it only has to differ from round to round."""
    return digest(b"bench", seed.to_bytes(8, "little"), number.to_bytes(8, "little"))


def measure(bench: Bench, case: str, lr: float) -> dict[str, object]:
    """The pairs of losses that a case compares, as (name of the other, bound, values, others)."""
    plan = bench.plan
    if case.startswith("alone/"):
        values = [bench.swarm(1, plan.long, lr=lr, seed=seed) for seed in plan.seeds]
        if case == "alone/limit":
            return compare("limit", 1.0, values, [LIMIT] * len(values))
        return compare("adamw", 1.005, values, [bench.adamw(plan.long, lr=lr, seed=seed) for seed in plan.seeds])
    best = bench.best("local", PEERS, plan.short)
    if case == "swarm/alone":
        return compare("alone", 0.98, [best], [bench.best("local", 1, plan.short)])
    return compare("adamw", 1.0, [best], [bench.best("adamw", 1, plan.short)])


def compare(name: str, bound: float, values: list[float], others: list[float]) -> dict[str, object]:
    """The measured part of a benchmark's line; ``spread`` is that of the single ratios."""
    ratios = sorted(value / other for value, other in zip(values, others, strict=True))
    ratio = fmean(values) / fmean(others)
    return {
        "value": fmean(values),
        "unit": "nats/byte",
        "against": {"name": name, "value": fmean(others)},
        "ratio": ratio,
        "better": "lower",
        "bound": bound,
        "ok": ratio <= bound,
        "runs": len(values),
        "spread": [ratios[0], ratios[-1]],
    }


def main() -> None:
    """Run the cases asked for."""
    default = InnerConfig()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", choices=CASES, action="append", help="default: all")
    parser.add_argument("--seeds", type=int, help="number of seeds (default 3)")
    parser.add_argument("--lr", type=float, default=default.lr, help="inner rate of the cases alone/…")
    parser.add_argument("--betas", type=float, nargs=2, default=default.betas)
    parser.add_argument("--warmup", type=int, default=default.warmup)
    parser.add_argument("--deal", choices=DEALS, default="round")
    parser.add_argument("--outer", type=float, nargs=2, default=OUTER, metavar=("LR", "MOMENTUM"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    plan = QUICK if given.quick else FULL
    if given.seeds:
        plan = replace(plan, seeds=tuple(range(given.seeds)))
    inner = replace(default, betas=tuple(given.betas), warmup=given.warmup)
    bench = Bench(plan, inner, outer=tuple(given.outer), deal=given.deal)
    for case in given.case or CASES:
        line = {"schema": 1, "bench": "training", "case": case, **measure(bench, case, given.lr)}
        if given.quick:
            line |= {"bound": None, "ok": None}
        sys.stdout.write(json.dumps({**line, "seed": plan.seeds[0], "quick": given.quick}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
