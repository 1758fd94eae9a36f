"""Lighthouses that freeze and die, a home whose cable is cut, and homes without any lighthouse."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from dht.reachability import NO_PUBLIC_PEER
from peer.chain_file import ChainFile
from peer.settings import CELL
from protocols.ids import PeerId
from protocols.statements import Scope
from tests.network.homes import Lighthouse, Program, daemon, founders, identity, identity_of
from tests.peer.live import run_folder, sealed, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from protocols.ids import Hash
    from tests.network.natlab import Lab

HOMES = ("one", "two")
EVERY = 8
"""Of seals that are some rounds old every eighth is kept."""


def _family(program: Program) -> list[int]:
    parent = psutil.Process(program.process.pid)
    return [parent.pid, *(child.pid for child in parent.children(recursive=True))]


def _signal(program: Program, number: signal.Signals) -> None:
    for pid in _family(program):
        os.kill(pid, number)


def _sealed(peers: list[Program]) -> list[int]:
    return [peer.status().get("round", {}).get("last_sealed") or 0 for peer in peers]


def _goes_on(peers: list[Program], within: float) -> None:
    """Both seal two rounds more, each with both."""
    before = max(_sealed(peers))
    everybody = {identity(peer) for peer in peers}

    def whole(peer: Program) -> list[int]:
        return [
            number
            for number, entry in sealed(peer.home.root).items()
            if number > before and set(entry["contributors"]) == everybody
        ]

    until(
        lambda: len(set.intersection(*(set(whole(peer)) for peer in peers))) >= 2,
        within,
        f"rounds go on after {before}",
    )


def _relayed(peers: list[Program]) -> Callable[[], bool]:
    others = {identity(peer) for peer in peers}
    return lambda: all(set(peer.connections()) >= others - {identity(peer)} for peer in peers)


def _relay_of(light: Lighthouse) -> str:
    """The address of its relay."""
    return next(line.split()[1] for line in light.program.printed.read_text().splitlines() if "relay " in line)


def _carries(light: Lighthouse) -> bool:
    """Whether circuits lead through its relay, as it says itself."""
    lines = light.program.printed.read_text().splitlines()
    url = next(line.split()[1] for line in lines if "/healthz" in line).replace("/healthz", "/status")
    ask = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=10).read().decode())"
    answer = json.loads(light.host.run([sys.executable, "-c", ask], timeout=20).stdout)
    return bool(answer["relay"]["circuits"])


def _told(peer: Program) -> str:
    """The addresses that a peer tells others."""
    return " ".join(peer.status().get("reach", {}).get("addresses", []))


def _notice(peers: list[Program], frozen: Lighthouse, other: Lighthouse) -> None:
    """A frozen relay is noticed within 30 s: no connection leads through it any more, and nobody names it."""
    began, relay = time.monotonic(), _relay_of(frozen)

    def noticed() -> bool:
        return (_carries(other) or not any(peer.connections() for peer in peers)) and not any(
            relay in _told(peer) for peer in peers
        )

    assert all(relay in _told(peer) for peer in peers)
    _signal(frozen.program, signal.SIGSTOP)
    until(noticed, 30, "the frozen relay is noticed")
    sys.stdout.write(f"frozen relay noticed after {time.monotonic() - began:.1f} s\n")


def _history(peer: Program, founders: list[str]) -> dict[int, Hash]:
    """Round → seal, of the chain on its disk, which is proven link by link."""
    folder = run_folder(peer.home.root)
    image = ChainFile(folder, Scope(bytes.fromhex(folder.name), CELL)).load([PeerId(each) for each in founders])
    assert image is not None
    return {each.round: each.seal for each in image.heads} | {each.round: each.seal for each in image.milestones}


def _shared(peers: list[Program]) -> dict[int, Hash]:
    """What of their histories all peers have in common; fails where two of them differ."""
    one, two = (_history(peer, [identity(each) for each in peers]) for peer in peers)
    common = one.keys() & two.keys()
    assert {each: one[each] for each in common} == {each: two[each] for each in common}, "one history"
    return {each: one[each] for each in common}


def _logged(peer: Program, until_round: int) -> dict[int, str]:
    """Round → state hash, up to a round, as it has logged them."""
    return {number: entry["state_hash"] for number, entry in sealed(peer.home.root).items() if number <= until_round}


@pytest.mark.timeout(720)
def test_one_lighthouse_of_two_freezes_and_dies_and_a_cable_is_cut(lab: Lab, tmp_path: Path) -> None:
    """Homes that only a relay connects: back within 60 s each time, without a restart (FC03)."""
    lights = [Lighthouse(lab.public(), tmp_path / f"lighthouse-{number}") for number in (1, 2)]
    run = founders(tmp_path, HOMES)
    hosts = [lab.home("symmetric") for _ in HOMES]
    peers = [daemon(host, tmp_path / name, run, lights) for host, name in zip(hosts, HOMES, strict=True)]
    try:
        until(_relayed(peers), 90, "connected")
        assert peers[0].status()["reach"]["rung"] == "relayed"
        until(lambda: all(_told(peer).count("/p2p-circuit") == 2 for peer in peers), 30, "reserved at both")
        _goes_on(peers, 60)
        until(lambda: _carries(lights[0]) or _carries(lights[1]), 30, "one of them carries the circuit")
        used, other = lights if _carries(lights[0]) else reversed(lights)
        _notice(peers, used, other)
        _goes_on(peers, 60)
        _signal(used.program, signal.SIGKILL)
        _goes_on(peers, 60)

        hosts[0].cut()
        before, alone = _shared(peers), _sealed(peers)
        logs = [_logged(peer, max(before)) for peer in peers]
        time.sleep(120)
        until(lambda: min(_sealed(peers)) > max(alone), 30, "training goes on alone, on both sides")
        hosts[0].restore(new_address=True)
        began = time.monotonic()
        until(_relayed(peers), 60, "connected again")
        told = f"{_relay_of(other)}/p2p-circuit/p2p/{identity(peers[0])}"
        until(lambda: _told(peers[0]) == told, 60 - (time.monotonic() - began), "reserved again")
        assert peers[0].status()["reach"]["rung"] == "relayed"
        sys.stdout.write(f"back after {time.monotonic() - began:.1f} s\n")
        _goes_on(peers, 120)
        sys.stdout.write(f"rounds with both after {time.monotonic() - began:.1f} s\n")
        after = _shared(peers)
        assert max(after) > max(before) and max(before.keys() & after.keys()) > max(before) - EVERY
        assert all(after[each] == before[each] for each in before.keys() & after.keys()), "nothing is lost"
        assert [_logged(peer, max(before)) for peer in peers] == logs, "and nothing else was sealed in its place"
        for peer in peers:
            rows = {row["id"]: row["addresses"] for row in peer.ask("peers")["peers"]}
            assert rows.keys() == {identity(each) for each in peers}, "no ghosts"
            assert peer.process.poll() is None
            assert peer.status()["processes"]["p2pd"]["restarts"] == 0
    except AssertionError as error:
        raise AssertionError(f"{error}" + "".join(peer.log() for peer in peers)) from error


@pytest.mark.timeout(240)
def test_homes_without_any_lighthouse_say_so_and_train_alone(lab: Lab, tmp_path: Path) -> None:
    """FC04: said within a minute, with the remedy; nothing spins."""
    run = founders(tmp_path, HOMES)
    hosts = [lab.home(), lab.home()]
    ids = [identity_of(tmp_path / name) for name in HOMES]
    joins = [f"/ip4/{host.public_address}/tcp/4001/p2p/{each}" for host, each in zip(hosts, ids, strict=True)]
    peers = [
        daemon(host, tmp_path / name, run, [], "--p2p-port", "4001", "--join", join)
        for host, name, join in zip(hosts, HOMES, reversed(joins), strict=True)
    ]
    try:
        for peer in peers:
            until(lambda peer=peer: NO_PUBLIC_PEER in str(peer.status().get("warnings")), 75, "it says why")  # type: ignore[misc]
            assert peer.status()["reach"]["rung"] == "none"
            assert peer.process.poll() is None
    except AssertionError as error:
        raise AssertionError(f"{error}" + "".join(peer.log() for peer in peers)) from error
