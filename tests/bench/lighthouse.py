"""What a lighthouse takes, and how it answers, while 64 peers behind routers join at it within 30 s.

Prints four JSON lines. ``join/last``: seconds from the last start until all are in (what that means:
``tests/network/crowd``). ``healthz/worst``: the slowest of ten questions a second meanwhile. ``join/in``: how many came
in. ``memory``: the lighthouse's processes together at their most (PSS). Joiners, routers and lighthouse share this
machine's cores. Needs root, for network namespaces.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.network.crowd import STAGES, Outcome, join  # noqa: E402
from tests.network.natlab import Lab  # noqa: E402
from tests.network.rooms import missing  # noqa: E402

COUNT = {False: 64, True: 8}
SPAN_S = {False: 30.0, True: 4.0}
WITHIN_S = {False: 90.0, True: 20.0}
"""More than the bound, so that it is known by how much it was missed."""
JOIN_BOUND, HEALTH_BOUND, MEMORY_BOUND = 60.0, 0.5, 700e6


def line(case: str, value: float, bound: float, **more: Any) -> None:
    """One of the bench's lines, against its bound; ``unit`` in ``more``."""
    ratio = value / bound
    better = more.pop("better", "lower")
    result = {
        "schema": 1, "bench": "lighthouse", "case": case, "value": value, "against": {"name": "bound", "value": bound},
        "ratio": ratio, "better": better, "bound": 1.0, "ok": ratio >= 1 if better == "higher" else ratio <= 1,
        "runs": 1, "spread": [ratio, ratio], "seed": 0, **more,
    }  # fmt: skip
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def explain(found: Outcome) -> None:
    """For a person."""
    for name in ("started", *STAGES):
        times = found.stages[name]
        if times:
            text = f"{len(times)}, after {times[0]:.1f}, {times[len(times) // 2]:.1f} and {times[-1]:.1f} s"
            sys.stderr.write(f"{name}: {text} (first, median, last)\n")
    refused = {each["name"]: each["refused"] for each in found.status["limits"] if each["refused"]}
    sys.stderr.write(f"healthz: {found.health}\nmemory: {found.memory}\nrefused: {refused}\n")
    sys.stderr.write(f"relay: {found.status['relay']}\n")


def main() -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    if (why := missing()) is not None:
        sys.stderr.write(f"{why}\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="murmur-lighthouse-") as folder, Lab() as lab:
        found = join(lab, Path(folder), COUNT[quick], SPAN_S[quick], WITHIN_S[quick])
    explain(found)
    line("join/in", len(found.in_after), COUNT[quick], unit="peers", better="higher", quick=quick)
    line("join/last", found.late, JOIN_BOUND, unit="s", quick=quick)
    line("healthz/worst", found.health["worst"], HEALTH_BOUND, unit="s", quick=quick)
    line("memory", sum(found.memory.values()), MEMORY_BOUND, unit="B", quick=quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
