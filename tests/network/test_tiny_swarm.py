"""A swarm as people have it: one public peer, two homes behind ordinary routers, one behind a symmetric NAT."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.numpy import load_file

from protocols.outer import state_root
from tests.network.homes import Lighthouse, daemon, founders, identity
from tests.peer.live import run_folder, sealed, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.network.homes import Program
    from tests.network.natlab import Lab

NAMES = ("public", "one", "two", "symmetric")
ROUNDS = 5


def _by_all(peers: list[Program]) -> dict[int, list[dict[str, Any]]]:
    """Round → what each peer has logged of it, of the rounds that every one of them has sealed with all of them."""
    logs, everybody = [sealed(peer.home.root) for peer in peers], {identity(peer) for peer in peers}

    def whole(entry: dict[str, Any]) -> bool:
        return not entry["void"] and set(entry["contributors"]) == everybody

    common = set.intersection(*(set(log) for log in logs))
    return {each: [log[each] for log in logs] for each in sorted(common) if all(whole(log[each]) for log in logs)}


def _in_a_row(peers: list[Program], after: int) -> list[int]:
    """The first ``ROUNDS`` such rounds after that one with no other between them; none while there are not so many."""
    found = [each for each in _by_all(peers) if each > after]
    runs = (range(each, each + ROUNDS) for each in found)
    return next((list(run) for run in runs if all(number in found for number in run)), [])


def _on_disk(peer: Program, number: int) -> str:
    """The state hash of a round, computed from the bytes of its checkpoint."""
    tensors = load_file(run_folder(peer.home.root) / f"round-{number:08d}.safetensors")
    return state_root(tensors["params"], tensors["momentum"]).hex()


@pytest.mark.timeout(300)
def test_four_peers_of_three_kinds_train_five_rounds_of_tiny_with_equal_hashes(lab: Lab, tmp_path: Path) -> None:
    """All four contribute in each of five rounds in a row, and all end each of them with the same bits."""
    began = time.monotonic()
    lighthouse = Lighthouse(lab.public(), tmp_path / "lighthouse")
    run = founders(tmp_path, NAMES, size="tiny", steps=4)
    hosts = [lab.public(), lab.home(), lab.home(), lab.home("symmetric")]
    peers = [
        daemon(host, tmp_path / name, run, [lighthouse], "--keep-checkpoints", "64")
        for host, name in zip(hosts, NAMES, strict=True)
    ]
    try:
        until(lambda: all(len(peer.connections()) == len(NAMES) - 1 for peer in reversed(peers)), 90, "all connected")
        before = max(number for peer in peers for number in (0, *sealed(peer.home.root)))
        sys.stdout.write(f"all connected after {time.monotonic() - began:.0f} s, at round {before}\n")
        until(lambda: bool(_in_a_row(peers, before)), 90, f"{ROUNDS} rounds in a row, each of them with all")
        found = _by_all(peers)
        for number in _in_a_row(peers, before):
            (seal,) = {entry["seal"] for entry in found[number]}
            (state,) = {entry["state_hash"] for entry in found[number]}
            assert seal and {_on_disk(peer, number) for peer in peers} == {state}, f"round {number}"
        ways = peers[-1].connections()
        assert ways[identity(peers[0])] == "direct"
        assert ways[identity(peers[1])] == ways[identity(peers[2])] == "relayed", ways
    except AssertionError as error:
        raise AssertionError(f"{error}" + "".join(peer.log() for peer in peers)) from error
