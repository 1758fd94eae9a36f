"""Real daemons that begin with an address, an invitation, or what they remember: none of them needs anything else."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from peer import client
from peer.identity import Identity
from peer.paths import Home
from protocols.manifest import run_id
from protocols.manifest_text import parse
from tests.peer.live import Live, address, home_of, murmur, sealed, small_run, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

NEAR = ("up", "--threads=1", "--listen=127.0.0.1")
STRANGER = Identity.from_seed(bytes([7]) * 32)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder that nobody else has: two files of 600 kB."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in (1, 2):
        lines = (f"line {index} of file {number} says {index * number}\n" for index in range(20_000))
        (folder / f"{number}.txt").write_text("".join(lines))
    return folder


def invitation(live: Live) -> str:
    """What its daemon gives out."""
    address(live)
    return str(client.request(live.home, "GET", "/api/v1/invite")["invitation"])


def status(live: Live, *keys: str) -> Any:
    """A part of the status document; None while the daemon does not answer."""
    found: Any = live.status()
    for key in keys:
        found = found.get(key) if found else None
    return found


def accepted(home: Path, key: Identity) -> list[int]:
    """Rounds in which the key's update counted, as this home has logged them."""
    return [number for number, entry in sealed(home).items() if entry["weights"].get(key.peer)]


def test_from_nothing_but_an_invitation_to_an_accepted_round(tmp_path: Path, texts: Path) -> None:
    run, (founder,) = small_run(tmp_path, seconds=2, guests=True, data=texts)
    home, guest = home_of(tmp_path, founder), home_of(tmp_path, STRANGER, "guest")
    with murmur(home, *NEAR, f"--run={run}", f"--data={texts}") as one:
        until(lambda: len(sealed(home)) >= 2, 90, "two rounds are sealed")
        line, began = invitation(one), time.monotonic()
        with murmur(guest, *NEAR, f"--join={line}") as two:
            until(lambda: bool(accepted(home, STRANGER)) or two.process.poll() is not None, 120, "its update counts")
            assert time.monotonic() - began < 120
            assert two.asked(signal.SIGTERM, 20) == 0
        assert two.complaints == ""
        assert "  syncing    the run's manifest" in two.printed and "MB" in two.printed
        assert Home(guest).manifest(run_id(parse(run.read_text()))).read_text() == run.read_text()
        blobs = {each.stat().st_size for each in Home(guest).blobs.iterdir()}
        assert blobs == {each.stat().st_size for each in texts.iterdir()}
        assert one.asked(signal.SIGTERM, 20) == 0
    logs = [sealed(each) for each in (home, guest)]
    common = logs[0].keys() & logs[1].keys()
    assert common and all(logs[0][number]["state_hash"] == logs[1][number]["state_hash"] for number in common)
