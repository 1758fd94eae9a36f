"""FC17: six real daemons, split three from three for two minutes by lost packets, become one swarm again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from peer.settings import CELL
from peer.state import Checkpoint, StateStore
from protocols.manifest import run_id
from protocols.manifest_text import parse
from protocols.statements import Scope
from protocols.table import STANDING
from tests.peer.live import PROGRAM, ROOT, Live, home_of, murmur, run_folder, small_run
from tests.swarm.namespaces import SIDES, Host, Wires, wired

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.network,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
]

SPLIT_S = 120.0
WINDOW_S = 6
"""Of training: the rounds of a run are never much shorter, and whoever fell behind has time to catch up."""
PORT = 4001
KEEP = 1000
"""Checkpoints: all of them."""
LOOK_S = 0.5
UNTIDY = re.compile(r"Traceback|ResourceWarning|never (awaited|retrieved)|destroyed but|ERROR|CRITICAL")


@dataclass
class Member:
    """One daemon on its machine, and what it has written."""

    name: str
    host: Host
    live: Live
    scope: Scope

    def log(self) -> list[dict[str, Any]]:
        """Its seals in the order in which it adopted them, each as known last."""
        file = next(iter(self.live.home.root.glob("runs/*/rounds.jsonl")), None)
        lines = file.read_text().splitlines(keepends=True) if file else []
        entries = [json.loads(line) for line in lines if line.endswith("\n")]
        return list({entry["seal"]: entry for entry in entries}.values())

    def head(self) -> dict[str, Any]:
        """Its newest seal."""
        return self.log()[-1]

    def status(self) -> dict[str, Any]:
        """The status as ``murmur status`` tells it, on its own machine."""
        command = (*self.host.enter, *PROGRAM, "status", "--json", f"--home={self.live.home.root}")
        answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        assert answer.returncode == 0, answer.stderr
        document: dict[str, Any] = json.loads(answer.stdout)
        return document

    def warned(self) -> list[str]:
        """Its warnings that something is provisional."""
        return [each["text"] for each in self.status()["warnings"] if each["code"] == "provisional"]

    def checkpoint(self, number: int) -> Checkpoint:
        """The state of a round as it lies on its disk."""
        return StateStore(run_folder(self.live.home.root), self.scope, self._values, KEEP).read(number)

    @cached_property
    def _values(self) -> int:
        return int(self.status()["model"]["parameters"])


@dataclass
class Swarm:
    """All of them, and waiting for what all of them do."""

    members: list[Member]
    wires: Wires

    def side(self, name: str) -> list[Member]:
        """Those at one switch."""
        return [each for each in self.members if each.host.side == name]

    def until(self, condition: Callable[[], bool], within: float, what: str) -> float:
        """Seconds until ``condition`` holds; fails when that takes too long or a daemon ends."""
        began = time.monotonic()
        while not condition():
            for each in self.members:
                assert each.live.process.poll() is None, f"{each.name} ended: {each.live.complaints}"
            waited = time.monotonic() - began
            assert waited < within, f"after {waited:.0f} s still not so: {what}\n{self.seals()}"
            time.sleep(LOOK_S)
        return time.monotonic() - began

    def seals(self) -> str:
        """The newest seals of everybody, for a person."""
        lines = []
        for each in self.members:
            marks = (f"{entry['round']}:{entry['seal'][:6]}{'*' * entry['synced']}" for entry in each.log()[-8:])
            lines.append(f"{each.host.side} {each.name[-6:]} {' '.join(marks)}")
        return "\n".join(lines)

    def shared(self) -> dict[int, list[dict[str, Any]]]:
        """Rounds that everybody has sealed, and everybody's entries of them."""
        logs = [{entry["round"]: entry for entry in each.log()} for each in self.members]
        rounds = sorted(set.intersection(*(set(log) for log in logs)))
        return {number: [log[number] for log in logs] for number in rounds}

    def one_chain(self, after: float) -> list[int]:
        """Rounds from the first on, sealed after ``after`` (unix seconds), that all have alike."""
        alike = {
            number: len({(each["seal"], each["state_hash"]) for each in entries}) == 1
            and all(each["unix"] > after for each in entries)
            for number, entries in self.shared().items()
        }
        different = max((number for number, same in alike.items() if not same), default=-1)
        return [number for number, same in alike.items() if same and number > different]


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    """Six founders, each on its own machine, that reach each other through the first."""
    run, keys = small_run(tmp_path, founders=6, seconds=WINDOW_S)
    identifier = run_id(parse(run.read_text()))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp", prefix="m"))  # a socket's path is short
        wires = stack.enter_context(wired(3, 3))
        entry = f"--join=/ip4/{wires.hosts[0].address}/tcp/{PORT}/p2p/{keys[0].peer}"
        options = ("up", f"--run={run}", "--threads=1", f"--keep-checkpoints={KEEP}", f"--p2p-port={PORT}")
        members = []
        for index, (key, host) in enumerate(zip(keys, wires.hosts, strict=True)):
            live = stack.enter_context(
                murmur(
                    home_of(tmp_path, key, f"home-{index}"),
                    *(*options, entry) if index else options,
                    environment={"TMPDIR": folder, "OMP_NUM_THREADS": "1"},
                    program=(*host.enter, *PROGRAM),
                )
            )
            members.append(Member(key.peer, host, live, Scope(identifier, CELL)))
        yield Swarm(members, wires)


def test_a_split_swarm_goes_on_on_both_sides_and_becomes_one_again(swarm: Swarm) -> None:
    swarm.until(lambda: together(swarm) >= 2, 240, "all have worked on two rounds")
    assert not any(each.warned() for each in swarm.members)

    reached = max(each.head()["round"] for each in swarm.members)
    swarm.until(lambda: all(each.head()["round"] > reached for each in swarm.members), 120, "a round begins")
    swarm.wires.cut()
    cut = time.time()
    swarm.until(lambda: all(shrunk(each) for each in swarm.members), 240, "both sides go on without the other")
    swarm.until(lambda: all(alone(each) for each in swarm.members), 120, "both sides seal rounds alone")
    for each in swarm.members:
        assert each.warned() == ["provisional: 3 of 6 members"]
    time.sleep(max(0.0, cut + SPLIT_S - time.time()))
    before = {each.name: each.log() for each in swarm.members}
    assert not {entry["seal"] for entry in before[swarm.members[0].name]} & set(ahead(swarm, before, SIDES[1]))
    learned = {each.name: gained(each, before[each.name]) for each in swarm.members}

    swarm.wires.heal()
    healed = time.time()
    swarm.until(lambda: len(swarm.one_chain(healed)) >= 1, 240, "all are on one chain")
    swarm.until(lambda: everybody_stands(swarm), 180, "those who were lost vote again")
    reached = max(each.head()["round"] for each in swarm.members)
    swarm.until(lambda: max(swarm.one_chain(healed)) >= reached + 2, 120, "they go on together")

    lost, won = losers(swarm, cut)
    for each in lost:
        (resync,) = synced(each, cut)
        drift = each.checkpoint(resync["round"]).drift
        kept = float(drift @ learned[each.name] / (learned[each.name] @ learned[each.name]))
        assert kept > 0.5, f"of what its side had learned, {kept:.2f} came back as drift"
    rounds = [entry for entry in won[0].log() if entry["unix"] > healed and not entry["void"]]
    for each in lost:
        assert any(each.name in entry["contributors"] for entry in rounds), "its update entered"
    # What they had learned is the same, so the rule may take it from any of them.
    assert any(entry["weights"].get(each.name, 0) > 0 for entry in rounds for each in lost)
    assert rounds[-2]["final"], "with everybody back, seals are final again"
    for each in swarm.members:
        assert each.warned() == []
        assert each.live.asked(signal.SIGTERM, 20) == 0
        assert not UNTIDY.search(each.live.log), each.live.log


def together(swarm: Swarm) -> int:
    """Rounds to which everybody has contributed."""
    whole = {each.name for each in swarm.members}
    return sum(set(entries[0]["contributors"]) == whole for entries in swarm.shared().values())


def shrunk(member: Member) -> bool:
    return any(entry["lost"] for entry in member.log())


def alone(member: Member) -> bool:
    """Whether it has sealed a round of its side's since the others were lost."""
    log = member.log()
    start = max(index for index, entry in enumerate(log) if entry["lost"])
    return any(len(entry["contributors"]) == 3 and not entry["void"] for entry in log[start:])


def ahead(swarm: Swarm, logs: dict[str, list[dict[str, Any]]], side: str) -> list[str]:
    """Seals of one side from its shrink on."""
    out = []
    for each in swarm.side(side):
        log = logs[each.name]
        start = next(index for index, entry in enumerate(log) if entry["lost"])
        out += [entry["seal"] for entry in log[start:]]
    return out


def gained(member: Member, log: list[dict[str, Any]]) -> Any:
    """How far its side's parameters have moved since it goes on alone."""
    shrink = next(entry for entry in log if entry["lost"])
    return member.checkpoint(log[-1]["round"]).params - member.checkpoint(shrink["round"]).params


def everybody_stands(swarm: Swarm) -> bool:
    """Whether everybody's newest table has everybody in standing."""
    with contextlib.suppress(ValueError):  # a newer checkpoint takes its place just now
        tables = [each.checkpoint(each.head()["round"]).head.table for each in swarm.members]
        return all(row.state == STANDING for table in tables for row in table.members.values())
    return False


def synced(member: Member, since: float) -> list[dict[str, Any]]:
    """Seals whose state it fetched, from a time on."""
    return [entry for entry in member.log() if entry["synced"] and entry["unix"] > since]


def losers(swarm: Swarm, since: float) -> tuple[list[Member], list[Member]]:
    """(the side that changed over, each of it once; the side that never did)."""
    moved = {side: [len(synced(each, since)) for each in swarm.side(side)] for side in SIDES}
    assert sorted(moved.values()) == [[0, 0, 0], [1, 1, 1]], f"{moved}\n{swarm.seals()}"
    (side,) = (side for side in SIDES if all(moved[side]))
    (other,) = set(SIDES) - {side}
    return swarm.side(side), swarm.side(other)
