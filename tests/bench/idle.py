"""What a paused daemon costs: memory (PSS of daemon and p2pd), processor time, and how soon its trainer is gone.

Prints one JSON line for each. A real daemon of the embedded run (``tiny``) is started on the loopback, seals a round,
and is paused; what it takes while nobody asks it anything is read from /proc. ``against`` are the bounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from peer import client
from peer.paths import Home
from protocols.errors import MurmurError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
PSS_BOUND = 420e6
"""Bytes."""
CPU_BOUND = 0.01
"""Of one core."""
PAUSE_BOUND = 2.0
"""Seconds."""
START_S = 35.0
LONG_START_S = 180.0
SETTLE_S = 3.0
"""From the pause to the first look: what was under way is over."""
WATCH_S = {False: 60.0, True: 6.0}
PAUSES = {False: 5, True: 1}


@contextlib.contextmanager
def daemon(home: Home) -> Iterator[None]:
    """A daemon that takes peers on the loopback; it has ended afterwards."""
    command = [sys.executable, "-m", "peer", "up", "--listen=127.0.0.1", "--threads=1"]
    environment = {**os.environ, "MURMUR_HOME": str(home.root)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def status(home: Home) -> dict[str, Any]:
    """The status document; empty while nobody answers."""
    try:
        return client.request(home, "GET", "/api/v1/status")
    except MurmurError:
        return {}


def until(home: Home, holds: Callable[[dict[str, Any]], bool], within: float, what: str) -> dict[str, Any]:
    """The first status of which something holds; raises RuntimeError when it does not come."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        found = status(home)
        if found and holds(found):
            return found
        time.sleep(0.1)
    raise RuntimeError(f"after {within:.0f} s still not: {what}")


def pss(pid: int) -> int:
    """Proportional set size, bytes: shared pages count for each of their users in part."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel does not tell PSS")


def spent(pids: list[int]) -> float:
    """Processor seconds so far."""
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in times)


def pause(home: Home, within: float) -> float:
    """Pause while the trainer is in a window, see it gone; the seconds that took."""

    def trains(now: dict[str, Any]) -> bool:
        return bool(now["processes"]["trainer"]["pid"] and now["round"]["progress"])

    trainer = psutil.Process(until(home, trains, within, "it trains")["processes"]["trainer"]["pid"])
    began = time.monotonic()
    client.request(home, "POST", "/api/v1/pause", within=15.0)
    with contextlib.suppress(psutil.NoSuchProcess):
        trainer.wait(15.0)
    return time.monotonic() - began


def measure(home: Home, *, quick: bool) -> list[dict[str, Any]]:
    """One line for each case."""
    within = START_S if quick else LONG_START_S
    until(home, lambda now: (now["round"]["last_sealed"] or 0) >= 1, within, "a sealed round")
    took = []
    for number in range(PAUSES[quick]):
        if number:
            client.request(home, "POST", "/api/v1/resume")
        took.append(pause(home, within))
    paused = until(home, lambda now: now["state"] == "paused", 5.0, "it shows the pause")["processes"]
    pids = {name: paused[name]["pid"] for name in ("daemon", "p2pd")}
    time.sleep(SETTLE_S)
    before, began = spent(list(pids.values())), time.monotonic()
    time.sleep(WATCH_S[quick])
    share = (spent(list(pids.values())) - before) / (time.monotonic() - began)
    sizes = {name: pss(pid) for name, pid in pids.items()}
    sys.stderr.write(f"pss: {sizes}\npauses: {took}\n")
    if until(home, bool, 5.0, "a status")["processes"]["trainer"]["pid"] is not None:
        raise RuntimeError("there is a trainer although it is paused")
    return [
        line("paused/pss", float(sum(sizes.values())), "B", PSS_BOUND, [float(sum(sizes.values()))], quick=quick),
        line("paused/cpu", share, "cores", CPU_BOUND, [share], quick=quick),
        line("pause/seconds", max(took), "s", PAUSE_BOUND, took, quick=quick),
    ]


def line(case: str, value: float, unit: str, bound: float, runs: list[float], *, quick: bool) -> dict[str, Any]:
    """A benchmark's line: against its bound."""
    ratios = sorted(each / bound for each in runs)
    return {
        "schema": 1, "bench": "idle", "case": case, "value": value, "unit": unit,
        "against": {"name": "bound", "value": bound}, "ratio": value / bound, "better": "lower", "bound": 1.0,
        "ok": value <= bound, "runs": len(runs), "spread": [ratios[0], ratios[-1]], "seed": 0, "quick": quick,
    }  # fmt: skip


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="murmur-idle-") as folder:
        home = Home(Path(folder))
        with daemon(home):
            lines = measure(home, quick=given.quick)
    for each in lines:
        sys.stdout.write(json.dumps(each) + "\n")


if __name__ == "__main__":
    main()
