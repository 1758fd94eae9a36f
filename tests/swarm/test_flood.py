"""A flood of connections, streams, frames, records and requests: four real daemons go on, and newcomers get in."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from dht.p2pd import P2pd, P2pdConfig
from dht.transport import StreamTransport, TransportConfig
from peer.identity import Identity
from peer.paths import Home
from protocols.ids import PeerId
from protocols.manifest import run_id
from protocols.manifest_text import parse
from tests.peer.live import ROOT, address, home_of, sealed, small_run, together, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.peer.live import Live

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

SECONDS = 20
MEMORY = 80e6
"""Bytes by which a daemon and its p2pd may grow: strangers' streams, with buffers on both sides of a socket."""


def resident(live: Live) -> int:
    """Bytes of the daemon and its p2pd."""
    p2pd = [each for each in live.family() if "p2pd" in " ".join(each.cmdline())]
    return sum(each.memory_info().rss for each in (psutil.Process(live.process.pid), *p2pd))


async def newcomer(folder: Path, run: bytes, target: str) -> None:
    """A stranger with a key of its own shakes hands within a few seconds."""
    key = Identity.from_seed(bytes(32))
    home = home_of(folder, key, "newcomer")

    async def unheard(*_: object) -> None:
        pass

    transport = StreamTransport(TransportConfig(run, "test"), unheard)
    async with P2pd(P2pdConfig(home, Home(home).key, host="127.0.0.1")) as p2pd:
        await transport.start(p2pd.control)
        try:
            async with asyncio.timeout(10):
                await transport.connect(PeerId(target.rpartition("/p2p/")[2]), [target])
        finally:
            await p2pd.retire()
            await transport.close()


def test_members_train_on_and_newcomers_get_in_during_a_flood(tmp_path: Path) -> None:
    run, keys = small_run(tmp_path, founders=4, seconds=1)
    identifier = run_id(parse(run.read_text()))
    with together(tmp_path, keys, f"--run={run}") as peers:
        home = peers[0].home.root
        until(lambda: len(sealed(home)) >= 2, 120, "they train together")
        targets = [address(live) for live in peers[:2]]
        before, sizes = max(sealed(home)), [resident(live) for live in peers]
        flooder = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.swarm.flooding",
                f"--run={identifier.hex()}",
                f"--seconds={SECONDS}",
                *targets,
            ],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            until(lambda: refused(peers[0]) > 20, 60, "the flood has come")
            asyncio.run(newcomer(tmp_path, identifier, targets[0]))
            answer, _ = flooder.communicate(timeout=SECONDS + 60)
        finally:
            flooder.kill()
            flooder.wait()
        outcome: dict[str, Any] = json.loads(answer)
        assert outcome["keys"] >= 2 and sum(outcome["failed"].values()) > 200, outcome
        status = peers[0].status()
        assert any(each["code"] == "refused" for each in status["warnings"])
        assert status["peers"]["total"] >= 3, "no member was let go of"
        assert all(resident(live) - size < MEMORY for live, size in zip(peers, sizes, strict=True))
        made = {number: entry for number, entry in sealed(home).items() if number > before}
        assert len(made) >= 5, "rounds go on"
        full = [entry for entry in made.values() if len(entry["contributors"]) == len(keys)]
        assert len(full) >= len(made) - 1 and not any(entry["void"] for entry in made.values())
        for live in peers:
            assert live.log.count("\n") < 400, "one line a peer and minute"
            assert "of the member" not in live.log and "Traceback" not in live.log, live.log


def refused(live: Live) -> int:
    """How much it has refused so far."""
    return sum(each["refused"] for each in live.status().get("limits", {}).values())
