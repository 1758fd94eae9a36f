"""Asks a lighthouse 10 times a second whether it is well, until its input ends; prints what that took as one JSON line.

``{"answers": N, "worst": S, "median": S}`` in seconds from before the connection to the last byte. What does not answer
within ``WITHIN_S``, or answers something else, counts as so long. Asking never waits for an answer.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
import urllib.request

EVERY_S = 0.1
WITHIN_S = 5.0


def ask(url: str, took: list[float]) -> None:
    """Once."""
    began = time.monotonic()
    try:
        with urllib.request.urlopen(url, timeout=WITHIN_S) as answer:  # noqa: S310 - its own loopback
            is_well = json.loads(answer.read()) == {"schema": 1, "ok": True}
    except (OSError, ValueError):
        is_well = False
    took.append(time.monotonic() - began if is_well else WITHIN_S)


def wait_for_end(ended: threading.Event) -> None:
    """Of the input."""
    sys.stdin.read()
    ended.set()


def main() -> None:
    """Run it."""
    took: list[float] = []
    ended = threading.Event()
    threading.Thread(target=wait_for_end, args=(ended,), daemon=True).start()
    asking: list[threading.Thread] = []
    while not ended.wait(EVERY_S):
        asking = [each for each in asking if each.is_alive()]
        asking.append(threading.Thread(target=ask, args=(sys.argv[1], took)))
        asking[-1].start()
    for each in asking:
        each.join()
    found = {"answers": len(took), "worst": max(took), "median": statistics.median(took)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
