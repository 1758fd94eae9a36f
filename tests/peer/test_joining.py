"""Real daemons that begin with an address, an invitation, or what they remember: none of them needs anything else."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from peer import client
from peer.identity import Identity
from peer.paths import Home
from protocols.invitation import decode
from protocols.manifest import run_id
from protocols.manifest_text import parse
from tests.peer.live import Live, address, addresses, home_of, murmur, run_folder, sealed, small_run, until

if TYPE_CHECKING:
    from collections.abc import Iterator
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
    until(lambda: bool(addresses(live)) or live.process.poll() is not None, 90, "it has an address")
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
        assert "data       texts, 2 shards" in two.printed
        assert Home(guest).manifest(run_id(parse(run.read_text()))).read_text() == run.read_text()
        blobs = {each.stat().st_size for each in Home(guest).blobs.iterdir()}
        assert blobs == {each.stat().st_size for each in texts.iterdir()}
        assert one.asked(signal.SIGTERM, 20) == 0
    logs = [sealed(each) for each in (home, guest)]
    common = logs[0].keys() & logs[1].keys()
    assert common and all(logs[0][number]["state_hash"] == logs[1][number]["state_hash"] for number in common)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def black_hole() -> Iterator[int]:
    """A port that takes no connection and refuses none: its queue is full."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield int(server.getsockname()[1])


def test_fc01_one_seed_refuses_one_is_silent_one_appears_late(tmp_path: Path) -> None:
    """FC01, with 20 s in place of 90: the daemon seeks and names what each seed did, then joins within 10 s."""
    run, keys = small_run(tmp_path, founders=2)
    late = free_port()
    with black_hole() as silent:
        ports = (free_port(), silent, late)
        owners = (STRANGER.peer, Identity.from_seed(bytes([8]) * 32).peer, keys[1].peer)
        seeds = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}" for port, peer in zip(ports, owners, strict=True)]
        joins = [f"--join={each}" for each in seeds]
        with murmur(home_of(tmp_path, keys[0]), *NEAR, f"--run={run}", *joins) as one:

            def errors() -> list[str]:
                shown = {each["address"]: each["error"] or "" for each in status(one, "seeds") or ()}
                return [shown.get(each, "") for each in seeds]

            until(lambda: all(errors()) or one.process.poll() is not None, 90, "each seed's failure is listed")
            assert "connection refused" in errors()[0] and "connection refused" in errors()[2]
            assert "no answer within 5 s" in errors()[1]
            assert status(one, "state") == "seeking" and status(one, "reason", "code") == "no_peers"
            began = time.monotonic()
            until(lambda: time.monotonic() - began > 20, 30, "some time has passed")
            assert status(one, "state") == "seeking" and one.process.poll() is None
            other = home_of(tmp_path, keys[1], "late")
            with murmur(other, *NEAR, f"--run={run}", f"--p2p-port={late}") as two:
                until(lambda: address(two) is not None and listens(late), 90, "the late seed is up")
                appeared = time.monotonic()
                until(lambda: (status(one, "peers", "total") or 0) >= 1, 30, "they met")
                assert time.monotonic() - appeared <= 10
                until(lambda: status(one, "state") == "training", 60, "it trains")
                assert two.asked(signal.SIGTERM, 20) == 0
            assert one.asked(signal.SIGTERM, 20) == 0


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def test_a_run_outlives_the_seed_it_began_with(tmp_path: Path) -> None:
    """Two that met through a third go on without it after both were started again, with no address given."""
    run, keys = small_run(tmp_path, founders=3, seconds=1)
    homes = [home_of(tmp_path, key, f"home-{index}") for index, key in enumerate(keys)]
    with murmur(homes[0], *NEAR, f"--run={run}") as seed:
        joins = f"--join={address(seed)}"
        with (
            murmur(homes[1], *NEAR, f"--run={run}", joins) as one,
            murmur(homes[2], *NEAR, f"--run={run}", joins) as two,
        ):
            pair = (one, two)
            until(lambda: all((status(each, "peers", "total") or 0) == 2 for each in pair), 120, "all three have met")
            books = [run_folder(home) / "peers.json" for home in homes[1:]]
            until(lambda: all(each.exists() and keys[0].peer in each.read_text() for each in books), 30, "it is noted")
            assert seed.asked(signal.SIGKILL, 5) < 0
            assert all(each.asked(signal.SIGTERM, 30) == 0 for each in pair)
    ident = run_id(parse(run.read_text())).hex()[:8]
    before = [max(sealed(home), default=0) for home in homes[1:]]
    with murmur(homes[1], *NEAR, f"--run={ident}") as one, murmur(homes[2], *NEAR, f"--run={ident}") as two:
        pair = (one, two)
        until(lambda: all((status(each, "peers", "total") or 0) == 1 for each in pair), 60, "they met again")
        assert len(status(one, "seeds")) >= 2, "the dead seed is still tried"
        assert all(each.asked(signal.SIGTERM, 30) == 0 for each in pair)
    assert [max(sealed(home), default=0) for home in homes[1:]] >= before


def test_invite_prints_a_line_and_says_why_not(tmp_path: Path) -> None:
    run, (founder,) = small_run(tmp_path)
    home = home_of(tmp_path, founder)
    with murmur(home, "invite") as none:
        assert none.ends() == 3
        assert "no daemon is running" in none.complaints
    with murmur(home, *NEAR, f"--run={run}", "--alone") as alone:
        until(lambda: bool(alone.status()) or alone.process.poll() is not None, 60, "it answers")
        with murmur(home, "invite") as refused:
            assert refused.ends() == 4
            assert "never looks for peers" in refused.complaints and "without --alone" in refused.complaints
    with murmur(home, *NEAR, f"--run={run}") as live:
        line = invitation(live)
        with murmur(home, "invite") as printed:
            assert printed.ends() == 0
            assert decode(printed.printed).addresses == decode(line).addresses == (address(live),)
        with murmur(home, "invite", "--json") as document:
            assert document.ends() == 0
            assert json.loads(document.printed)["run"] == run_id(parse(run.read_text())).hex()
    (tmp_path / "other").mkdir()
    other, _ = small_run(tmp_path / "other", founders=2)
    with murmur(home, *NEAR, f"--run={other}", f"--join={line}") as wrong:
        assert wrong.ends() == 2
        assert "the invitation is to run" in wrong.complaints
