"""FC10 over real p2pd and streams: a donor is killed in the middle of the state, the other one gives the rest."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from protocols.outer import CHUNK_BYTES
from tests.bench.state import Bench, cap, synced
from tests.swarm.namespaces import wired

pytestmark = [
    pytest.mark.network,
    pytest.mark.timeout(200),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces"),
]

VALUES = 5 * CHUNK_BYTES // 4
"""Ten chunks, five of each vector."""
SLOW = "20mbit"


def test_a_killed_donor_costs_the_chunks_that_were_under_way_from_it() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="m") as name, wired(3, 0) as wires:  # a socket's path is short
        bench = Bench(Path(name), wires.hosts, VALUES, 2)
        for host in wires.hosts[:2]:
            cap(host, SLOW)
        bench.start(1)
        bench.start(2, (1,))
        bench.start(3, (1, 2), until_synced=True)
        try:
            bench.until(lambda: any(each["done"] >= 5 for each in bench.log(3, "syncing")), "half of the state is here")
            assert bench.log(1, "sent") and bench.log(2, "sent"), "both give"
            bench.kill(1)
            bench.until(lambda: synced(bench, 3), "the joiner has the state")
        finally:
            bench.end()
        written = len(bench.log(1, "sent")) + len(bench.log(2, "sent"))
        assert bench.log(3, "syncing")[-1]["total"] == 10
        assert len(bench.log(3, "chunk")) == 10, "no chunk came twice"
        assert written <= 10 + 2, "a chunk or two were on the way from the one that died"
