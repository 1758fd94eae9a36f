"""Real daemons with p2pd: two train together and resume, a killed one leaves nothing, all end when asked."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dht.directory import Directory
from dht.p2pd import P2pd, P2pdConfig
from dht.transport import StreamTransport, TransportConfig
from peer.identity import Identity
from peer.paths import Home
from peer.settings import CELL
from peer.state import StateStore
from protocols.manifest import run_id
from protocols.manifest_text import parse
from protocols.statements import Scope
from tests.peer.live import Live, address, gone, home_of, journal, murmur, sealed, small_run, until

if TYPE_CHECKING:
    import psutil

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

NEAR = ("up", "--threads=1", "--listen=127.0.0.1")
UNTIDY = re.compile(r"Traceback|ResourceWarning|never (awaited|retrieved)|destroyed but|ERROR|CRITICAL")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def tidy(live: Live) -> None:
    assert "Traceback" not in live.complaints
    assert not UNTIDY.search(live.log), live.log


def test_killed_twice_it_leaves_no_process_and_its_port(tmp_path: Path) -> None:
    """A founder who is missing keeps the other waiting in the middle of the first round."""
    run, keys = small_run(tmp_path, founders=2)
    home, port = home_of(tmp_path, keys[0]), free_port()
    options = (*NEAR, f"--run={run}", f"--p2p-port={port}")
    family: list[psutil.Process] = []
    left: list[Path] = []
    for _ in range(2):
        with murmur(home, *options) as live:
            assert str(port) in address(live), live.complaints
            assert not any(each.exists() for each in left), "the next start clears away what the last left"
            family = live.family()
            names = {" ".join(each.cmdline()) for each in family}
            assert len(family) == 2 and any("p2pd" in name for name in names), names
            left = [Path(json.loads((home / "p2pd.pid").read_text())["directory"])]
            live.process.kill()
            live.process.wait()
            gone(family, 5)
    with murmur(home, *options) as live:
        assert str(port) in address(live)
        family = live.family()
        assert live.asked(signal.SIGTERM, 20) == 0
        gone(family, 0.5)
    tidy(live)
    assert not any(each.exists() for each in left)
    assert sorted(each.name for each in home.iterdir()) == [
        "blobs",
        "daemon.lock",
        "identity.key",
        "murmur.jsonl",
        "murmur.log",
        "runs",
    ]


def test_waiting_for_somebody_it_ends_within_5_s(tmp_path: Path) -> None:
    run, keys = small_run(tmp_path, founders=2)
    with murmur(home_of(tmp_path, keys[0]), *NEAR, f"--run={run}") as live:
        until(lambda: live.status().get("round", {}).get("phase") == "commit", 90, "it has trained and waits")
        family = live.family()
        assert live.asked(signal.SIGINT, 5) == 0
        gone(family, 0.5)
    tidy(live)
    assert live.printed.splitlines()[-1] == "stopped at sealed round 0"


def test_two_train_together_and_go_on_together_after_one_was_killed(tmp_path: Path) -> None:
    run, keys = small_run(tmp_path, founders=2)
    homes = [home_of(tmp_path, key, f"home-{index}") for index, key in enumerate(keys)]
    port = free_port()
    signed: list[dict[tuple[str, bytes], bytes]] = [{}, {}]
    with murmur(homes[0], *NEAR, f"--run={run}", f"--p2p-port={port}") as one:
        joins = f"--join={address(one)}"
        with murmur(homes[1], *NEAR, f"--run={run}", joins) as two:
            until(lambda: len(sealed(homes[1])) >= 2, 90, "two rounds are sealed")
            two.process.kill()
        signed[1] = journal(homes[1])
        had = max(sealed(homes[1]))
        with murmur(homes[1], *NEAR, f"--run={run}", joins) as two:
            until(lambda: max(sealed(homes[1])) >= had + 2, 90, "two more rounds are sealed")
            assert two.asked(signal.SIGTERM, 20) == 0
        tidy(two)
        assert one.asked(signal.SIGINT, 20) == 0
    tidy(one)
    assert signed[1].items() <= journal(homes[1]).items(), "nothing is signed twice"
    common = sealed(homes[0]).keys() & sealed(homes[1]).keys()
    assert len(common) >= 4
    logs = [sealed(home) for home in homes]
    assert all(logs[0][number]["seal"] == logs[1][number]["seal"] for number in common)


def total(live: Live) -> int | None:
    """Its open connections."""
    found = live.status().get("peers", {}).get("total")
    return found if isinstance(found, int) else None


async def listed(folder: Path, run: bytes, seed: str) -> list[str]:
    """The peers of the run's records, as a newcomer's directory node finds them through ``seed``."""
    key = Identity.from_seed(bytes(32))
    home = home_of(folder, key, "observer")

    async def unheard(*_: object) -> None:
        pass

    transport = StreamTransport(TransportConfig(run, "test"), unheard)
    directory = Directory(transport, run, key.sign)
    async with P2pd(P2pdConfig(home, Home(home).key, host="127.0.0.1")) as p2pd:
        await transport.start(p2pd.control)
        try:
            await directory.start([seed])
            async with asyncio.timeout(20):
                while not (found := await directory.peers()):
                    pass
            return [record.peer for record in found]
        finally:
            await p2pd.retire()
            await directory.close()
            await transport.close()


def test_fc08_five_kills(tmp_path: Path) -> None:
    """FC08: five deaths in a row leave one peer for everybody: one connection, one record, one row of the table."""
    run, keys = small_run(tmp_path, founders=2, seconds=1)
    homes = [home_of(tmp_path, key, f"home-{index}") for index, key in enumerate(keys)]
    identifier = run_id(parse(run.read_text()))
    with murmur(homes[0], *NEAR, f"--run={run}") as one:
        seed = address(one)
        options = (*NEAR, f"--run={run}", f"--join={seed}", f"--p2p-port={free_port()}")
        for _ in range(5):
            with murmur(homes[1], *options) as two:
                until(lambda: total(one) == 1 or two.process.poll() is not None, 60, "they met")
                family = two.family()
                two.process.kill()
                gone(family, 5)
            until(lambda: total(one) == 0, 10, "its end is noticed")
        with murmur(homes[1], *options) as two:
            until(lambda: total(two) == 1 or two.process.poll() is not None, 60, "they met again")
            until(lambda: total(one) == 1, 10, "on both sides")
            assert asyncio.run(listed(tmp_path, identifier, seed)) == sorted(key.peer for key in keys)
            before = max(sealed(homes[0]), default=0)
            until(lambda: all(counted(home, keys[1], before) >= 2 for home in homes), 120, "it contributes again")
            values = one.status()["model"]["parameters"]
            assert two.asked(signal.SIGTERM, 20) == 0
        tidy(two)
        assert one.asked(signal.SIGTERM, 20) == 0
    tidy(one)
    for home in homes:
        checkpoint = StateStore(Home(home).run(identifier), Scope(identifier, CELL), values).load()
        assert checkpoint is not None
        assert sorted(checkpoint.head.table.members) == sorted(key.peer for key in keys)


def counted(home: Path, key: Identity, after: int) -> int:
    """Rounds above ``after`` in which a peer's update counted."""
    return sum(bool(entry["weights"].get(key.peer)) for number, entry in sealed(home).items() if number > after)
