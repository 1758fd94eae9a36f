"""How long a robust, verified outer round takes, beside hivemind's bare all-reduce of the same vectors.

Four processes on loopback, each with a p2pd, session and round machine of its own: encode, commit, roster, exchange,
Gram, weights by the default rule, weighted sums, results, outer step, state root, seal, votes. The yardstick is
``hivemind.DecentralizedAverager`` (plain mean, no check) in four processes, without its matchmaking. Both do one round
after the other by turns; the first of each is not counted.

Statements are journalled and synced as ever, on a file system in memory where there is one; vectors are not written.

Prints one JSON line a case: ``exchange/<codec>`` from the end of training to the last result byte, ``total/<codec>``
to the adopted seal; each from the first start to the last end over all peers, the median of its rounds over that of
hivemind's. ``floor/<codec>``: only moving what has to move between the same peers over the same streams, beside
hivemind's whole rounds. ``bytes/<codec>``: all bytes that the peers sent over those of encoded parts that have to move.
int8 stands beside hivemind's uniform 8-bit, whose rounds come in two modes: fast ones first, then slow ones; both are
printed. Phases, CPU seconds and the flags of p2pd go to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from protocols.compression import get_codec
from protocols.round.exchange import part_sizes
from protocols.tensors import PART_VALUES

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
PEERS = 4
VALUES = {False: 25_000_000, True: 2_000_000}
PAIRS = {False: 6, True: 1}
BOUNDS = {"total/float32": 0.75, "exchange/float32": 0.6, "exchange/int8": 1.0, "total/int8": 1.4, "bytes": 1.15}
RESULTS = {"float32": "float32", "int8": "int8", "int4": "int8"}
PATIENCE_S = 60.0
HOMES = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where the peers' homes are: in memory, because the yardstick writes nothing. The environment's TMPDIR else."""
MOVES = 4
"""Times that bytes are only moved; the first is not counted."""
FRAME = 1 << 20
"""Bytes of a frame that is only moved, at most."""
QUIET = 0.3
"""Cores that other processes may use during a round; one during which they used more is told apart."""


class Fleet:
    """The processes of one side, and what they say."""

    def __init__(self, module: str, arguments: Sequence[Sequence[str]]) -> None:
        self.nodes = [
            subprocess.Popen(
                [sys.executable, "-m", module, *each], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                start_new_session=True, cwd=ROOT, env={**os.environ, "GOLOG_LOG_LEVEL": "error"},
            )
            for each in arguments
        ]  # fmt: skip
        self._said: list[list[dict[str, Any]]] = [[] for _ in self.nodes]
        self._rest = [b""] * len(self.nodes)
        self._selector = DefaultSelector()
        for place, node in enumerate(self.nodes):
            assert node.stdout is not None
            os.set_blocking(node.stdout.fileno(), False)
            self._selector.register(node.stdout, EVENT_READ, place)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            assert node.stdin is not None
            node.stdin.close()
        for node in self.nodes:
            try:
                node.wait(20)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()
        self._selector.close()

    def tell(self, what: str, *places: int, **fields: Any) -> None:
        """An order to these nodes, or to all."""
        for place in places or range(len(self.nodes)):
            stdin = self.nodes[place].stdin
            assert stdin is not None
            stdin.write(json.dumps({"what": what, **fields}).encode() + b"\n")
            stdin.flush()

    def hear(self, what: str, *places: int) -> list[dict[str, Any]]:
        """Each node's next line of this kind."""
        end = time.monotonic() + PATIENCE_S
        return [self._next(place, what, end) for place in places or range(len(self.nodes))]

    def _next(self, place: int, what: str, end: float) -> dict[str, Any]:
        while True:
            for said in self._said[place]:
                if said["what"] == what:
                    self._said[place].remove(said)
                    return said
            if time.monotonic() > end or self.nodes[place].poll() is not None:
                raise SystemExit(f"node {place} of {self.nodes[place].args!r} never came to {what!r}")
            self._read()

    def _read(self) -> None:
        for key, _ in self._selector.select(timeout=0.2):
            data = os.read(key.fd, 1 << 16)
            if not data:
                self._selector.unregister(key.fileobj)
            *lines, self._rest[key.data] = (self._rest[key.data] + data).split(b"\n")
            for said in (json.loads(line) for line in lines if line.startswith(b"{")):
                if said["what"] == "trouble":
                    sys.stderr.write(f"node {key.data}: {said['text']}\n")
                else:
                    self._said[key.data].append(said)


@dataclass
class Rounds:
    """What was measured of one side."""

    total: list[float] = field(default_factory=list)
    exchange: list[float] = field(default_factory=list)
    cpu: list[tuple[float, float]] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    """Cores that other processes used."""
    wire: list[int] = field(default_factory=list)
    """Bytes that crossed the loopback interface, p2pd's and the kernel's share of them included."""

    def add(self, found: list[dict[str, Any]], busy: float | None = None) -> None:
        """One round, of all peers; ``busy`` CPU seconds of the whole machine, where they were counted."""
        start, end = min(each["start"] for each in found), max(each["end"] for each in found)
        self.total.append(end - start)
        if "results" in found[0]:
            self.exchange.append(max(each["results"] for each in found) - start)
        self.cpu.append((sum(each["cpu"] for each in found), sum(each["p2pd"] for each in found)))
        if busy is not None:
            self.others.append(max(0.0, busy - sum(self.cpu[-1])) / (end - start))


def our_round(fleet: Fleet, rounds: Rounds | None) -> list[dict[str, Any]]:
    """One round of ours."""
    fleet.hear("waiting")
    fleet.tell("fill")
    fleet.hear("filled")
    time.sleep(0.3)
    before, crossed = _busy(), _crossed()
    fleet.tell("go")
    found = fleet.hear("sealed")
    if len({each["state"] for each in found}) != 1 or any(each["contributors"] != PEERS for each in found):
        raise SystemExit(f"a round without everybody: {found}")
    if rounds is not None:
        rounds.add(found, _busy() - before)
        rounds.wire.append(_crossed() - crossed)
    return found


def their_round(fleet: Fleet, rounds: Rounds | None) -> None:
    """One all-reduce of hivemind's."""
    fleet.tell("fill")
    fleet.hear("filled")
    fleet.tell("go")
    found = fleet.hear("averaged")
    squares = [each["square"] for each in found]
    if max(squares) > 1.01 * min(squares) or not 0.8e-4 / PEERS < squares[0] < 1.2e-4 / PEERS:
        raise SystemExit(f"hivemind did not average: {squares}")
    if rounds is not None:
        rounds.add(found)


def moves(fleet: Fleet, volume: int) -> Rounds:
    """``volume`` bytes in all, evenly from every peer of ours to every other one, without a round around them."""
    fleet.hear("waiting")
    found, each = Rounds(), volume // (PEERS * (PEERS - 1))
    frames = -(-each // FRAME)
    order = {"frames": frames, "frame": each // frames}
    for _ in range(MOVES):
        fleet.tell("brace", **order)
        fleet.hear("braced")
        time.sleep(0.3)
        fleet.tell("move", **order)
        found.add(fleet.hear("moved"))
    return Rounds(total=found.total[1:], cpu=found.cpu[1:])


def _busy() -> float:
    """CPU seconds that this machine has spent since its start."""
    fields = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def _crossed() -> int:
    """Bytes that the loopback interface has carried."""
    line = next(each for each in Path("/proc/net/dev").read_text().splitlines() if each.strip().startswith("lo:"))
    return int(line.split()[1])


def fleets(stack: ExitStack, values: int, codec: str, *, alone: bool) -> tuple[Fleet, Fleet | None]:
    """Our four, connected, and hivemind's, the first of which the others join; they start at the same time."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="m", dir=HOMES)))
    sys.stderr.write(f"homes in {folder}\n")
    what = [str(PEERS), str(values), codec]
    us = stack.enter_context(
        Fleet("tests.bench.round_node", [[str(k), *what, RESULTS[codec], str(folder / str(k))] for k in range(PEERS)])
    )
    them = None
    if not alone:
        them = stack.enter_context(Fleet("tests.bench.round_hivemind", [[str(k), *what] for k in range(PEERS)]))
    up = us.hear("up")
    sys.stderr.write(f"p2pd of ours: {' '.join(up[0]['flags'])}\n")
    us.tell("connect", addresses=[each["address"] for each in up])
    us.hear("connected")
    if them is not None:
        them.tell("join", 0, addresses=[])
        first = them.hear("up", 0)[0]
        sys.stderr.write(f"p2pd of hivemind's: {' '.join(first['flags'])}\n")
        them.tell("join", *range(1, PEERS), addresses=first["addresses"])
        them.hear("up", *range(1, PEERS))
    return us, them


def measure(values: int, codec: str, pairs: int, *, alone: bool) -> list[dict[str, Any]]:
    """All cases of one codec."""
    mine, other = Rounds(), Rounds()
    must = (PEERS - 1) * sum(sum(part_sizes(get_codec(each), values, PART_VALUES)) for each in (codec, RESULTS[codec]))
    with ExitStack() as stack:
        us, them = fleets(stack, values, codec, alone=alone)
        our_round(us, None)
        if them is not None:
            their_round(them, None)
        for _ in range(pairs):
            found = our_round(us, mine)
            if them is not None:
                their_round(them, other)
            _tell(found, mine, other)
        floor = moves(us, must)
        _tell_all(mine, other, found)
        _tell_cpu("bytes alone", floor)
        sys.stderr.write(f"bytes on the loopback interface: {median(mine.wire) / 1e6:.1f} MB a round\n")
    sent = sum(each["sent"] for each in found)
    lines = [
        line(f"exchange/{codec}", mine.exchange, other.total),
        line(f"total/{codec}", mine.total, other.total),
        line(f"floor/{codec}", floor.total, other.total),
    ]
    need = {"name": "encoded parts and results", "value": must}
    ratio = sent / must
    lines.append({
        **line(f"bytes/{codec}", [float(sent)], []), "unit": "bytes", "against": need, "ratio": ratio,
        "bound": BOUNDS["bytes"], "ok": ratio <= BOUNDS["bytes"],
    })  # fmt: skip
    return lines


def modes(times: list[float]) -> tuple[float, float]:
    """Medians of the fast and of the slow rounds, parted where the gap is widest; of one mode they agree."""
    ordered = sorted(times)
    if len(ordered) < 2:
        return ordered[0], ordered[0]
    cut = max(range(1, len(ordered)), key=lambda at: ordered[at] - ordered[at - 1])
    return median(ordered[:cut]), median(ordered[cut:])


def line(case: str, values: list[float], against: list[float]) -> dict[str, Any]:
    """A benchmark's line: medians, and the spread of the rounds."""
    value, bound = median(values), BOUNDS.get(case)
    yardstick = None
    if against:
        yardstick = {"name": "hivemind", "value": median(against)}
    ratio = value / median(against) if against else None
    return {
        "schema": 1, "bench": "round", "case": case, "value": value, "unit": "s", "against": yardstick, "ratio": ratio,
        "better": "lower", "bound": bound if against else None, "ok": ratio <= bound if ratio and bound else None,
        "runs": len(values), "spread": [min(values), max(values)], "seed": 0,
    }  # fmt: skip


def _tell(found: list[dict[str, Any]], mine: Rounds, other: Rounds) -> None:
    worst: dict[str, float] = {}
    for each in found:
        for phase, seconds in each["seconds"].items():
            worst[phase] = max(worst.get(phase, 0.0), seconds)
    phases = ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in worst.items() if phase != "train")
    text = f"ours {mine.exchange[-1]:.3f}/{mine.total[-1]:.3f} s ({phases}; others {mine.others[-1]:.2f} cores)"
    if other.total:
        text += f"; hivemind {other.total[-1]:.3f} s"
    sys.stderr.write(text + "\n")


def _tell_all(mine: Rounds, other: Rounds, found: list[dict[str, Any]]) -> None:
    for name, side in (("ours", mine), ("hivemind", other)):
        if side.cpu:
            _tell_cpu(name, side)
    peak = max(each["peak"] for each in found)
    if other.total:
        fast, slow = modes(other.total)
        sys.stderr.write(
            f"hivemind's fast rounds {fast:.3f} s, its slow ones {slow:.3f} s; ours in total "
            f"{median(mine.total) / fast:.2f} and {median(mine.total) / slow:.2f} times that, exchange alone "
            f"{median(mine.exchange) / fast:.2f} and {median(mine.exchange) / slow:.2f}\n"
        )
    loop, kernel, faults = (sum(each[name] for each in found) for name in ("loop", "system", "faults"))
    sys.stderr.write(
        f"ours: {loop:.2f} s in event loops, {kernel:.2f} s in the kernel, {faults} page faults in the last round\n"
    )
    sys.stderr.write(f"ours: peak RSS {peak / 1e6:.0f} MB; noisy rounds {sum(each > QUIET for each in mine.others)}\n")


def _tell_cpu(name: str, side: Rounds) -> None:
    python, wire = (median(each[place] for each in side.cpu) for place in (0, 1))
    sys.stderr.write(f"{name}: CPU {python:.2f} s Python, {wire:.2f} s p2pd; times {_list(side.total)}\n")


def _list(times: list[float]) -> str:
    return " ".join(f"{each:.2f}" for each in times)


def main() -> None:
    """Run the codecs asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{VALUES[True]} values, {PAIRS[True]} pairs")
    parser.add_argument(
        "--codec",
        choices=("float32", "int8", "int4"),
        action="append",
        help="default: float32 and int8, of --quick int8",
    )
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--values", type=int)
    parser.add_argument("--alone", action="store_true", help="without hivemind")
    given = parser.parse_args()
    pairs, values = given.pairs or PAIRS[given.quick], given.values or VALUES[given.quick]
    for codec in given.codec or (("int8",) if given.quick else ("float32", "int8")):
        for found in measure(values, codec, pairs, alone=given.alone):
            if given.quick or values != VALUES[False]:
                found |= {"bound": None, "ok": None}
            sys.stdout.write(json.dumps({**found, "quick": given.quick}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
