"""How a state gets to those who join: rate on a link, chunks sent twice after a cut, twelve joiners at one slow donor.

Prints one JSON line a case. Real p2pd, streams and sessions in network namespaces (root), links capped with tbf; the
trainers sleep. `rate/50mbit`, `rate/200mbit`: bytes of the state per second, from the first request to the last chunk,
against the link's rate, bound 0.8. `cut`: chunks written by the donor beyond those of the state, where the joiner is
killed half way, bound 1. `twelve/total`: twelve joiners that know one donor behind 20 Mbit/s, time until all have the
state against size × 12 / rate, bound 1.3. `twelve/rounds`: the training peers' round time meanwhile against before,
bound 1.2.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from tests.bench import state_node
from tests.bench.state_node import Spec
from tests.swarm.namespaces import Host, wired

if TYPE_CHECKING:
    from collections.abc import Callable

VALUES = {False: 6 << 20, True: 1 << 20}
TWELVE_VALUES = {False: 1 << 19, True: 1 << 18}
RATES = {False: (50, 200), True: (200,)}
ROUNDS = 8
"""Made before: the state of the last one is kept by every peer."""
JOINERS, SLOW = 12, "20mbit"
BEFORE = {False: 6, True: 3}
WINDOW_S = {False: 6.0, True: 4.0}
PATIENCE_S = 100.0


class Bench:
    """A folder, hosts, and the nodes on them."""

    def __init__(self, folder: Path, hosts: list[Host], values: int, founders: int) -> None:
        self.folder, self.hosts, self.values, self.founders = folder, hosts, values, founders
        self.past = state_node.made(folder, values, founders, ROUNDS)
        self.pids: dict[int, int] = {}

    def start(self, number: int, dials: tuple[int, ...] = (), **options: Any) -> None:
        """Node ``number`` on its host; nodes count from 1."""
        host = self.hosts[number - 1]
        known = tuple((each, self.hosts[each - 1].address) for each in dials)
        home = self.folder / str(number)
        self.pids[number] = state_node.fork(
            Spec(
                number,
                host.namespace,
                host.address,
                home,
                self.values,
                self.founders,
                known,
                past=self.past.get(number),
                **options,
            )  # fmt: skip
        )

    def kill(self, number: int) -> None:
        """At once."""
        pid = self.pids.pop(number)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def log(self, number: int, what: str) -> list[dict[str, Any]]:
        """What node ``number`` has said of one kind."""
        path = self.folder / f"{number}.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [
            each for each in map(json.loads, (line for line in lines if line.endswith("\n"))) if each["what"] == what
        ]

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait, and fail with what the nodes complained about."""
        end = time.monotonic() + PATIENCE_S
        while not holds():
            errors = [path.read_text() for path in self.folder.glob("*.err")]
            if errors or time.monotonic() > end:
                raise SystemExit(f"never came to that: {what}\n" + "\n".join(errors))
            time.sleep(0.02)

    def end(self) -> None:
        """Kill what is left."""
        for number in list(self.pids):
            self.kill(number)


def cap(host: Host, rate: str) -> None:
    """Limit what a host sends."""
    shape = f"tc qdisc replace dev eth0 root tbf rate {rate} burst 64k latency 50ms"
    subprocess.run([*host.enter, *shape.split()], check=True, capture_output=True)


def synced(bench: Bench, number: int) -> bool:
    """Whether a node has got the state."""
    return any(each["synced"] for each in bench.log(number, "sealed"))


def rate(folder: Path, values: int, mbit: int) -> dict[str, Any]:
    """One donor, one joiner, one link."""
    with wired(2, 0) as wires:
        bench = Bench(folder, wires.hosts, values, 1)
        cap(wires.hosts[0], f"{mbit}mbit")
        bench.start(1)
        bench.start(2, (1,), until_synced=True)
        try:
            bench.until(lambda: synced(bench, 2), "the joiner has the state")
        finally:
            bench.end()
        shown = bench.log(2, "syncing")
        seconds = bench.log(2, "chunk")[-1]["t"] - shown[0]["t"]
    share = 8 * values / seconds / (mbit * 125_000)
    return line(f"rate/{mbit}mbit", share, "of the link", "higher", 0.8, {"name": "link", "value": 1.0})


def cut(folder: Path, values: int) -> dict[str, Any]:
    """The joiner is killed half way and comes again."""
    with wired(2, 0) as wires:
        bench = Bench(folder, wires.hosts, values, 1)
        cap(wires.hosts[0], "50mbit")
        bench.start(1)
        bench.start(2, (1,))
        try:
            bench.until(lambda: any(each["done"] * 2 >= each["total"] for each in bench.log(2, "syncing")), "half")
            bench.kill(2)
            bench.start(2, (1,), until_synced=True)
            bench.until(lambda: synced(bench, 2), "the joiner has the state")
        finally:
            bench.end()
        total = bench.log(2, "syncing")[0]["total"]
        came, sent = len(bench.log(2, "chunk")), len(bench.log(1, "sent"))
    sys.stderr.write(f"{total} chunks, {sent} written by the donor, {came} came\n")
    return line("cut", sent - total, "chunks", "lower", 1.0, None)


def twelve(folder: Path, values: int, *, quick: bool) -> list[dict[str, Any]]:
    """Four that train, one of them behind a slow line, which is all that the joiners know."""
    with wired(4 + JOINERS, 0) as wires:
        bench = Bench(folder, wires.hosts, values, 4)
        cap(wires.hosts[0], SLOW)
        for number in range(1, 5):
            bench.start(number, tuple(range(1, number)), window_s=WINDOW_S[quick])
        try:
            before = 1 + BEFORE[quick]
            bench.until(lambda: len(bench.log(2, "sealed")) > before, "rounds are made")
            began, joiners = time.monotonic(), range(5, 5 + JOINERS)
            for number in joiners:
                bench.start(number, (1,), until_synced=True)
            bench.until(lambda: all(bench.log(number, "syncing") for number in joiners), "all have asked")
            asked = time.monotonic()
            bench.until(lambda: all(synced(bench, number) for number in joiners), "all have the state")
            ended = max(bench.log(number, "sealed")[-1]["t"] for number in joiners)
            told = sum(any(each["position"] for each in bench.log(number, "syncing")) for number in joiners)
        finally:
            bench.end()
        ends = [each["t"] for each in bench.log(2, "sealed")]
        first = min(bench.log(number, "syncing")[0]["t"] for number in joiners)
    calm = [two - one for one, two in zip(ends, ends[1:], strict=False) if two < began][1:]
    busy = [two - one for one, two in zip(ends, ends[1:], strict=False) if one >= first and two <= ended + 2]
    ideal = JOINERS * 8 * values / (int(SLOW.removesuffix("mbit")) * 125_000)
    sys.stderr.write(f"{told} joiners waited; the last asked {asked - began:.1f} s after the start; {calm} {busy}\n")
    total = line("twelve/total", ended - first, "s", "lower", 1.3, {"name": "size × 12 / rate", "value": ideal})
    rounds = line("twelve/rounds", mean(busy), "s", "lower", 1.2, {"name": "before", "value": mean(calm)})
    return [total, {**rounds, "spread": [min(busy), max(busy)]}]


def line(
    case: str, value: float, unit: str, better: str, bound: float, against: dict[str, Any] | None
) -> dict[str, Any]:
    """A benchmark's line."""
    ratio = value / against["value"] if against else value
    fine = ratio >= bound if better == "higher" else ratio <= bound
    return {
        "schema": 1, "bench": "state", "case": case, "value": value, "unit": unit, "against": against,
        "ratio": ratio if against else None, "better": better, "bound": bound, "ok": fine, "runs": 1,
        "spread": [value, value], "seed": 0,
    }  # fmt: skip


def main() -> None:
    """Run the cases asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    cases, words = ("rate", "cut", "twelve"), "default: all; with --quick without twelve, and rate at 200 Mbit/s only"
    parser.add_argument("--case", choices=cases, action="append", help=words)
    given = parser.parse_args()
    if os.geteuid():
        sys.exit("it needs root for network namespaces")
    for case in given.case or (cases[:2] if given.quick else cases):
        for mbit in RATES[given.quick] if case == "rate" else (0,):
            with tempfile.TemporaryDirectory(dir="/tmp", prefix="m") as name:
                folder, values = Path(name), VALUES[given.quick]
                if case == "rate":
                    found = [rate(folder, values, mbit)]
                elif case == "cut":
                    found = [cut(folder, values)]
                else:
                    found = twelve(folder, TWELVE_VALUES[given.quick], quick=given.quick)
            for each in found:
                sys.stdout.write(json.dumps({**each, "quick": given.quick}) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
