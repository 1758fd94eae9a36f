"""How memory grows over many rounds: in the virtual swarm for each round, in a real daemon over minutes.

Prints one JSON line a case. `virtual`: 500 rounds of 8 peers, 20 % of the messages lost, peers that die and come back;
the slope of this process's memory over the second half, per round and for all peers together, bound 10 kB. `real`: 20
minutes of a swarm of 4 daemons; growth of the largest daemon after the first quarter, bound 5 MB.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import psutil

from peer.virtual import Faults, World

BOUND_VIRTUAL, BOUND_REAL = 10e3, 5e6
ROUNDS = {False: 500, True: 40}
MINUTES = {False: 20.0, True: 0.6}
SETTLED = 0.5
"""Share of the rounds after which everything that is kept for a while has reached its size."""


def virtual(seed: int, rounds: int) -> dict[str, object]:
    """Slope of resident memory, bytes a round."""
    world = World(seed, 8, rounds, Faults(loss=0.2, deaths=rounds // 25, restarts=1.0, fresh=0.0, frozen=rounds // 25))
    process = psutil.Process()
    depths, sizes = [], []
    world.begin()
    seen = -1
    while not world.done and world.clock.step():
        depth = max(each.depth for each in world.living())
        if depth > seen:
            seen = depth
            gc.collect()
            depths.append(depth)
            sizes.append(process.memory_info().rss)
    late = [place for place, depth in enumerate(depths) if depth >= SETTLED * rounds]
    slope = float(np.polyfit([depths[each] for each in late], [sizes[each] for each in late], 1)[0])
    return line("virtual", slope, "bytes/round", BOUND_VIRTUAL, [slope, slope])


def real(seed: int, minutes: float) -> dict[str, object]:
    """Growth of the daemons' resident memory, bytes: the worst of four."""
    with tempfile.TemporaryDirectory(prefix="murmur-soak-") as folder:
        command = [
            sys.executable,
            "-m",
            "peer",
            "swarm",
            "--peers=4",
            "--rounds=100000",
            "--size=nano",
            f"--seed={seed}",
        ]
        swarm = subprocess.Popen(
            [*command, f"--timeout={minutes * 60 + 120:.0f}"], stdout=subprocess.DEVNULL, env=_environment(folder)
        )
        try:
            growth = _watch(swarm.pid, time.monotonic() + minutes * 60)
        finally:
            swarm.terminate()
            swarm.wait(60)
    return line("real", max(growth), "bytes", BOUND_REAL, [min(growth), max(growth)])


def _environment(folder: str) -> dict[str, str]:
    return {**os.environ, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}


def _watch(swarm: int, end: float) -> list[float]:
    """For each daemon the mean memory of the last quarter minus that of the second."""
    sizes: dict[int, list[int]] = {}
    while time.monotonic() < end:
        for each in psutil.Process(swarm).children():
            sizes.setdefault(each.pid, []).append(each.memory_info().rss)
        time.sleep(1)
    return [_growth(values) for values in sizes.values() if len(values) >= 8]


def _growth(values: list[int]) -> float:
    quarter = len(values) // 4
    return float(np.mean(values[-quarter:]) - np.mean(values[quarter : 2 * quarter]))


def line(case: str, value: float, unit: str, bound: float, spread: list[float]) -> dict[str, object]:
    """A benchmark's line; what grows is compared with nobody."""
    return {
        "schema": 1, "bench": "soak", "case": case, "value": value, "unit": unit, "against": None, "ratio": None,
        "better": "lower", "bound": bound, "ok": value <= bound, "runs": 1, "spread": spread,
    }  # fmt: skip


def main() -> None:
    """Run the cases asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--case", choices=("virtual", "real"), action="append", help="default: both")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for case in given.case or ("virtual", "real"):
        quick = given.quick
        found = virtual(given.seed, ROUNDS[quick]) if case == "virtual" else real(given.seed, MINUTES[quick])
        if quick:
            found |= {"bound": None, "ok": None}
        sys.stdout.write(json.dumps({**found, "seed": given.seed, "quick": quick}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
