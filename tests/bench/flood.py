"""What one flooding peer costs a swarm: round time of four daemons (``nano``) with it / without it, in one run.

Prints one JSON line. The flood comes and goes in turns, so that both are measured on the same daemons; the figures are
medians of the time from seal to seal. The flooder runs at the lowest priority, for it shares the machine with its
victims, which no flooder does; what it used all the same is printed to stderr, with what was refused.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from peer import client
from peer.paths import Home
from protocols.errors import MurmurError

ROOT = Path(__file__).resolve().parents[2]
BOUND = 1.10
PEERS = 4
TARGETS = 2
TURN_S = {False: 20.0, True: 4.0}
TURNS = {False: 8, True: 4}
SETTLE_S = 3.0
"""The first rounds, with loss measurements and late starts, count for neither."""
START_S = 60.0
LEAVE_S = 1.0
"""After a change of turns: rounds that were under way count for neither."""


def statuses(folder: Path) -> list[dict[str, Any]]:
    """The status of every daemon that answers."""
    found = []
    for path in sorted(folder.rglob("api.json")):
        try:
            found.append(client.request(Home(path.parent), "GET", "/api/v1/status"))
        except MurmurError:
            continue
    return found


def seals(folder: Path) -> list[float]:
    """When each round was sealed, unix seconds, as the first daemon saw it."""
    path = min(folder.rglob("rounds.jsonl"), default=None)
    if path is None:
        return []
    times: dict[int, float] = {}
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            entry = json.loads(line)
            times.setdefault(entry["round"], entry["unix"])
    return sorted(times.values())


def ready(folder: Path) -> list[dict[str, Any]]:
    """The daemons' status once all of them train together."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        found = statuses(folder)
        if (
            len(found) == PEERS
            and all(each["peers"]["total"] == PEERS - 1 for each in found)
            and len(seals(folder)) > 1
        ):
            return found
        time.sleep(0.2)
    raise RuntimeError("the swarm did not start")


def turns(run: str, targets: list[str], quick: bool) -> tuple[list[tuple[bool, float, float]], list[dict[str, Any]]]:
    """Flood and calm in turns: (whether flooded, from, to) in unix seconds; what each flood did."""
    spans, floods = [], []
    for number in range(TURNS[quick]):
        flooded, seconds = number % 4 in {1, 2}, TURN_S[quick]  # calm, flood, flood, calm: a trend counts for neither
        began = time.time()
        if flooded:
            command = [sys.executable, "-m", "tests.swarm.flooding", f"--run={run}", f"--seconds={seconds}", *targets]
            flooder = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True)
            try:
                answer, _ = flooder.communicate(timeout=seconds + 30)
            finally:
                flooder.kill()
                flooder.wait()
            floods.append(json.loads(answer))
        else:
            time.sleep(seconds)
        spans.append((flooded, began + LEAVE_S, time.time()))
    return spans, floods


def round_times(times: list[float], spans: list[tuple[bool, float, float]], flooded: bool) -> list[float]:
    """From seal to seal, both within one such span."""
    return [
        last - first
        for was, begin, end in spans
        if was == flooded
        for first, last in zip(times, times[1:], strict=False)
        if begin <= first and last <= end
    ]


def measure(seed: int, quick: bool) -> dict[str, object]:
    """The bench line."""
    with tempfile.TemporaryDirectory(prefix="murmur-flood-") as folder:
        command = [sys.executable, "-m", "peer", "swarm", f"--peers={PEERS}", "--rounds=100000", "--size=nano"]
        swarm = subprocess.Popen(
            [*command, f"--seed={seed}", "--timeout=900"],
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": folder, "OMP_NUM_THREADS": "1"},
        )
        try:
            found = ready(Path(folder))
            time.sleep(SETTLE_S)
            targets = [each["reach"]["addresses"][0] for each in found[:TARGETS]]
            spans, floods = turns(found[0]["run"]["id"], targets, quick)
            times = seals(Path(folder))
            limits = [each["limits"] for each in statuses(Path(folder))[:TARGETS]]
        finally:
            swarm.terminate()
            swarm.wait(60)
    with_it, without = round_times(times, spans, True), round_times(times, spans, False)
    value, against = statistics.median(with_it), statistics.median(without)
    refused = {name: sum(each[name]["refused"] for each in limits) for name in limits[0]}
    sys.stderr.write(f"floods: {json.dumps(floods)}\nrefused: { {name: n for name, n in refused.items() if n} }\n")
    ratios = sorted(each / against for each in with_it)
    return {
        "schema": 1, "bench": "flood", "case": "round/nano", "value": value, "unit": "s",
        "against": {"name": "no flood", "value": against}, "ratio": value / against, "better": "lower",
        "bound": BOUND, "ok": value / against <= BOUND, "runs": len(with_it),
        "spread": [ratios[len(ratios) // 4], ratios[3 * len(ratios) // 4]], "seed": seed, "quick": quick,
    }  # fmt: skip


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.stdout.write(json.dumps(measure(given.seed, given.quick)) + "\n")


if __name__ == "__main__":
    main()
