"""Lighthouses that freeze and die, a home whose cable is cut, and homes without any lighthouse."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from dht.reachability import NO_PUBLIC_PEER
from tests.network.homes import Lighthouse, Program, daemon, founders, identity, identity_of
from tests.peer.live import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.network.natlab import Lab

HOMES = ("one", "two")


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
    until(lambda: min(_sealed(peers)) >= before + 2, within, f"rounds go on after {before}")


def _relayed(peers: list[Program]) -> Callable[[], bool]:
    others = {identity(peer) for peer in peers}
    return lambda: all(set(peer.connections()) >= others - {identity(peer)} for peer in peers)


@pytest.mark.timeout(720)
def test_one_lighthouse_of_two_freezes_and_dies_and_a_cable_is_cut(lab: Lab, tmp_path: Path) -> None:
    """Homes that only a relay connects: back within 60 s each time, without a restart (FC03)."""
    lights = [Lighthouse(lab.public(), tmp_path / f"lighthouse-{number}") for number in (1, 2)]
    run = founders(tmp_path, HOMES)
    hosts = [lab.home("symmetric") for _ in HOMES]
    peers = [daemon(host, tmp_path / name, run, lights) for host, name in zip(hosts, HOMES, strict=True)]
    pids = [peer.process.pid for peer in peers]
    try:
        until(_relayed(peers), 60, "connected")
        reach = peers[0].status()["reach"]
        assert reach["rung"] == "relayed"
        until(lambda: len(peers[0].status()["reach"]["addresses"]) >= 2, 20, "reserved at both")
        _goes_on(peers, 60)
        _signal(lights[0].program, signal.SIGSTOP)
        _goes_on(peers, 90)
        _signal(lights[0].program, signal.SIGKILL)
        _goes_on(peers, 90)
        hosts[0].cut()
        time.sleep(120)
        assert peers[0].process.poll() is None
        alone = _sealed(peers)
        hosts[0].restore(new_address=True)
        began = time.monotonic()
        until(_relayed(peers), 60, "connected again")
        until(lambda: min(_sealed(peers)) > max(alone), 60 - (time.monotonic() - began) + 30, "rounds go on")
        for peer in peers:
            assert len(peer.ask("peers")["peers"]) == len(HOMES), "no ghosts"
        assert [peer.process.pid for peer in peers] == pids
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
