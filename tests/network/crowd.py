"""A crowd that joins at a lighthouse: when each of them is in, how the lighthouse answers meanwhile, what it takes.

The lighthouse, ``murmur lighthouse`` as anybody runs it, and the run's founder are on public machines. The joiners live
behind four home routers, a quarter of them each, one process a home; each joiner has a key, a p2pd and a network of its
own (``crowd_node``). So addresses are shared as in a hall of residence, and no limit of the lighthouse is changed.

A joiner is *in* when all of this has come true: the lighthouse answered it as a directory node; it reserved at the
relay, and so has addresses of its own; it holds somebody else's record; the founder reads its record, with the relayed
addresses, in the run's directory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tests.network.crowd_node import key_of
from tests.network.homes import ROOT, Lighthouse
from tests.network.wires import next_line
from tests.peer.live import until

if TYPE_CHECKING:
    from tests.network.natlab import Lab
    from tests.network.rulesets import Nat
    from tests.network.wires import Host

HOMES: tuple[Nat, ...] = ("port_preserving", "symmetric", "port_preserving", "symmetric")
STAGES = ("seed", "met", "stands", "record")
READY_S = 60.0
MEMORY_EVERY_S = 0.5


@dataclass
class Outcome:
    """What was measured. Seconds, bytes."""

    span: float
    """From the first start to the last."""
    in_after: dict[int, float]
    """Joiner → from its start until it was in; only of those that came in."""
    late: float
    """From the last start until the last of them was in; of those that came in."""
    stages: dict[str, list[float]]
    """Stage → seconds from the start, sorted."""
    health: dict[str, Any]
    memory: dict[str, int]
    """The lighthouse's processes at the moment when they took most together (PSS)."""
    status: dict[str, Any]
    """Its own report at the end."""


@dataclass
class Node:
    """One process of joiners, and what it has told."""

    process: subprocess.Popen[str]
    told: dict[tuple[str, str], float] = field(default_factory=dict)
    """(stage, peer) → when."""

    def read(self) -> None:
        """Take in what it tells, until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            self.told[said["stage"], said["peer"]] = said["at"]


def start_node(host: Host, folder: Path, join: str, numbers: list[int], *words: str) -> Node:
    """A ``crowd_node`` that has imported everything and waits for its joiners' times."""
    folder.mkdir(mode=0o700)
    command = [sys.executable, "-m", "tests.network.crowd_node", "--folder", str(folder), "--join", join]
    command += ["--numbers", *map(str, numbers), *words]
    with (folder / "complaints").open("w") as complaints:
        process = host.popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints, cwd=str(ROOT), bufsize=1
        )
    return Node(process)


def begin(node: Node, starts: list[float]) -> None:
    """Let its joiners start at these times."""
    assert node.process.stdin is not None
    node.process.stdin.write(json.dumps(starts) + "\n")
    node.process.stdin.flush()
    threading.Thread(target=node.read, daemon=True).start()


def pss(pid: int) -> int:
    """Proportional set size, bytes; 0 for a process that is no more."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


def family(pid: int) -> dict[str, int]:
    """Memory by process."""
    parent = psutil.Process(pid)
    found = {"lighthouse": pss(pid)}
    for child in parent.children(recursive=True):
        name = "p2pd" if child.name() == "p2pd" else f"relay {child.pid}"
        found[name] = pss(child.pid)
    return found


def join(lab: Lab, folder: Path, count: int, span: float, within: float) -> Outcome:
    """``count`` joiners start within ``span`` seconds, evenly, and have ``within`` seconds more from the last start."""
    light = Lighthouse(lab.public(), folder / "lighthouse")
    url = next(each for each in light.program.printed.read_text().split() if each.endswith("/healthz"))
    founder = start_node(lab.public(), folder / "founder", light.address, [0], "--founder")
    numbers = list(range(1, count + 1))
    shares = [numbers[position :: len(HOMES)] for position in range(len(HOMES))]
    nodes = [
        start_node(lab.home(nat), folder / f"home-{share[0]}", light.address, share)
        for nat, share in zip(HOMES, shares, strict=True)
    ]
    for node in (founder, *nodes):
        assert json.loads(next_line(node.process.stdout, READY_S)) == {"ready": True}
    begin(founder, [time.monotonic()])
    until(lambda: ("record", key_of(0).peer) in founder.told, 60, "the founder is in")
    health = light.host.popen(
        [sys.executable, "-m", "tests.network.crowd_health", url],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=str(ROOT),
    )  # fmt: skip
    first = time.monotonic() + 0.5
    starts = {number: first + span * position / (count - 1) for position, number in enumerate(numbers)}
    for node, share in zip(nodes, shares, strict=True):
        begin(node, [starts[number] for number in share])
    times = _Times({number: key_of(number).peer for number in numbers}, starts, founder, nodes)
    most: dict[str, int] = {}
    while time.monotonic() < first + span + within and len(times.entered()) < count:
        now = family(light.program.process.pid)
        most = max(most, now, key=lambda each: sum(each.values()))
        time.sleep(MEMORY_EVERY_S)
    answers, _ = health.communicate(timeout=20)
    status = light.host.run(["curl", "-s", url.replace("healthz", "status")]).stdout
    return times.outcome(span, json.loads(answers), most, json.loads(status))


@dataclass
class _Times:
    """What became so, and when."""

    peers: dict[int, str]
    starts: dict[int, float]
    founder: Node
    nodes: list[Node]

    def stage(self, name: str) -> dict[int, float]:
        """Joiner → when it reached this."""
        nodes = [self.founder] if name == "record" else self.nodes
        told = {key: at for node in nodes for key, at in node.told.copy().items()}
        return {number: told[name, peer] for number, peer in self.peers.items() if (name, peer) in told}

    def entered(self) -> dict[int, float]:
        """Joiner → when it was in."""
        stages = [self.stage(name) for name in STAGES]
        return {
            number: max(each[number] for each in stages)
            for number in self.peers
            if all(number in each for each in stages)
        }

    def outcome(self, span: float, health: dict[str, Any], memory: dict[str, int], status: dict[str, Any]) -> Outcome:
        """All of it."""
        entered, last = self.entered(), max(self.starts.values())
        return Outcome(
            span,
            {number: at - self.starts[number] for number, at in entered.items()},
            max(entered.values(), default=last) - last,
            {
                name: sorted(at - self.starts[number] for number, at in self.stage(name).items())
                for name in ("started", *STAGES)
            },
            health,
            memory,
            status,
        )
