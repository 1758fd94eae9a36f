"""Two homes and one lighthouse, and no other public peer: how soon, and how surely, a hole is punched."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.network.homes import ROOT, Lighthouse
from tests.peer.live import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.network.natlab import Lab
    from tests.network.rulesets import Nat
    from tests.network.wires import Host

TRIES, NEEDED = 10, 9
EVERY_S = 4.0
"""Between two tries: a lighthouse dials back for each address 0.5 times a second."""
AT_ONCE = 2
GIVE_UP_S = 40.0
"""Of one try, from the start."""
PUNCHED_S = 10.0
"""From the moment when both peers are connected with each other by the relay."""
BACK_S = 1.5
"""For the circuit after a punch in vain, from the moment when the connection is dropped."""


class Seen(NamedTuple):
    """What one peer is connected by at a moment."""

    kind: str
    open: bool
    at: float


@dataclass
class Side:
    """The peers of one home, one for each number."""

    printed: Path
    process: subprocess.Popen[str]
    began: dict[int, float] = field(default_factory=dict)

    def tell(self, number: int) -> None:
        """Start the peer with this number, or end it."""
        assert self.process.stdin is not None
        self.began.setdefault(number, time.monotonic())
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()

    def seen(self) -> dict[int, list[Seen]]:
        """All that its peers have printed."""
        found: dict[int, list[Seen]] = defaultdict(list)
        for line in self.printed.read_text().splitlines(keepends=True):
            if line.startswith("{") and line.endswith("\n"):
                told = json.loads(line)
                found[told["number"]].append(Seen(told["kind"], told["open"], told["at"]))
        return found

    def when(self, number: int, kind: str, *, is_open: bool = False) -> float | None:
        """When its peer was first connected in such a way, or had a stream that way; None: it never was."""
        return next((each.at for each in self.seen()[number] if each.kind == kind and each.open >= is_open), None)


def _sides(lab: Lab, folder: Path, *nats: Nat) -> list[Side]:
    lighthouse = Lighthouse(lab.public(), folder / "lighthouse")
    hosts = [lab.home(nat) for nat in nats]
    sides = [_side(host, folder, number, lighthouse) for number, host in enumerate(hosts)]
    until(lambda: all("ready" in side.printed.read_text() for side in sides), 60, "both homes are ready")
    return sides


def _side(host: Host, folder: Path, side: int, lighthouse: Lighthouse) -> Side:
    home, printed = folder / f"home-{side}", folder / f"printed-{side}"
    home.mkdir()
    command = [sys.executable, "-m", "tests.network.pair_node", str(home), str(side), lighthouse.address]
    with printed.open("w") as out, (folder / f"log-{side}").open("w") as log:
        process = host.popen(command, stdin=subprocess.PIPE, stdout=out, stderr=log, cwd=str(ROOT))
    return Side(printed, process)


def _tell(sides: list[Side], number: int) -> None:
    for side in sides:
        side.tell(number)


def _after(sides: list[Side], number: int) -> tuple[float, float] | None:
    """Seconds until both had a stream through a hole: since both were connected by the relay, and since the start."""
    ends = [side.when(number, "punched", is_open=True) for side in sides]
    if None in ends:
        return None
    punched = max(end for end in ends if end is not None)
    relayed = max(side.when(number, "relayed") or punched for side in sides)
    return punched - relayed, punched - max(side.began[number] for side in sides)


@pytest.mark.timeout(300)
def test_two_homes_are_punched_in_nine_of_ten_tries_within_10_s(lab: Lab, tmp_path: Path) -> None:
    """Each try is a run with two peers that have never met, on new ports, until they are punched."""
    sides = _sides(lab, tmp_path, "port_preserving", "port_preserving")
    found: dict[int, tuple[float, float] | None] = {}
    begun: dict[int, float] = {}
    try:
        while len(found) < TRIES:
            now = time.monotonic()
            is_time = now - max(begun.values(), default=0.0) > EVERY_S
            if len(begun) < TRIES and len(begun) - len(found) < AT_ONCE and is_time:
                _tell(sides, len(begun))
                begun[len(begun)] = now
            for number in begun.keys() - found.keys():
                took = _after(sides, number)
                if took is not None or now - begun[number] > GIVE_UP_S:
                    found[number] = took
                    _tell(sides, number)
            time.sleep(0.1)
        worked = [each for each in found.values() if each is not None]
        figures = ", ".join(f"{by_relay:.1f} ({since_start:.1f})" for by_relay, since_start in worked)
        sys.stdout.write(f"\npunched so many s after relayed (after the start): {figures}\n")
        assert sum(by_relay <= PUNCHED_S for by_relay, _ in worked) >= NEEDED, figures
    except AssertionError as error:
        raise AssertionError(f"{error}" + _last_words(tmp_path)) from error


@pytest.mark.timeout(120)
def test_after_a_punch_in_vain_the_circuit_is_back(lab: Lab, tmp_path: Path) -> None:
    sides = _sides(lab, tmp_path, "port_preserving", "symmetric")
    try:
        _tell(sides, 0)
        until(lambda: all(len(_gaps(side.seen()[0])) >= 2 for side in sides), 60, "two holes were punched in vain")
        gaps = [gap for side in sides for gap in _gaps(side.seen()[0])]
        sys.stdout.write(f"without a stream for {', '.join(f'{gap:.2f}' for gap in gaps)} s\n")
        assert max(gaps) < BACK_S
        assert not any(each.kind == "punched" for side in sides for each in side.seen()[0])
    except AssertionError as error:
        raise AssertionError(f"{error}" + _last_words(tmp_path)) from error


def _gaps(seen: list[Seen]) -> list[float]:
    """How long each time, after it was there, there was no stream through the relay."""
    found, lost = list[float](), None
    had = False
    for each in seen:
        is_there = each.kind == "relayed" and each.open
        if is_there and lost is not None:
            found.append(each.at - lost)
            lost = None
        if had and not is_there and lost is None:
            lost = each.at
        had |= is_there
    return found


def _last_words(folder: Path) -> str:
    return "".join(f"\n== {path.name}\n{path.read_text()[-6000:]}" for path in sorted(folder.glob("log-*")))
