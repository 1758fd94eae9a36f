"""A restarted founder still leads newcomers to the head: by the manifest alone, and from the seal of an invitation."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from peer import client
from peer.chain_file import ChainFile
from peer.identity import Identity
from protocols.manifest import run_id
from protocols.manifest_text import parse
from protocols.statements import Scope
from tests.peer.live import address, home_of, murmur, run_folder, sealed, small_run, until

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.round.links import Image
    from tests.peer.live import Live

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

NEAR = ("up", "--threads=1", "--listen=127.0.0.1")
FIRST, SECOND = (Identity.from_seed(bytes([number]) * 32) for number in (7, 8))


def invitation(live: Live) -> dict[str, Any]:
    """What its daemon gives out."""
    address(live)
    return client.request(live.home, "GET", "/api/v1/invite")


def accepted(home: Path, key: Identity) -> bool:
    """Whether an update of this key counted in a round that this home has logged."""
    return any(entry["weights"].get(key.peer) for entry in sealed(home).values())


def kept(home: Path, run: Path) -> Image:
    """The chain on a home's disk."""
    manifest = parse(run.read_text())
    image = ChainFile(run_folder(home), Scope(run_id(manifest), "model")).load(manifest.members.founders)
    assert image is not None
    return image


def test_newcomers_find_the_head_through_a_peer_that_was_restarted(tmp_path: Path) -> None:
    run, (founder,) = small_run(tmp_path, seconds=1, guests=True)
    home = home_of(tmp_path, founder)
    first, second = (home_of(tmp_path, key, f"guest-{key.peer[-4:]}") for key in (FIRST, SECOND))
    with murmur(home, *NEAR, f"--run={run}") as one:
        until(lambda: len(sealed(home)) >= 10, 90, "ten rounds are sealed: more than there are checkpoints")
        assert one.asked(signal.SIGTERM, 30) == 0
    with murmur(home, *NEAR, f"--run={run}") as one:
        with murmur(first, *NEAR, f"--run={run}", f"--join={address(one)}") as two:
            until(lambda: accepted(home, FIRST) or two.process.poll() is not None, 90, "its update counts")
            assert two.complaints == ""
            invited = invitation(one)
            assert invited["anchor"]["round"] % 8 == 0
            with murmur(second, *NEAR, f"--join={invited['invitation']}") as three:
                until(lambda: accepted(home, SECOND) or three.process.poll() is not None, 90, "its update counts")
                assert three.complaints == ""
                assert three.asked(signal.SIGTERM, 30) == 0
            assert two.asked(signal.SIGTERM, 30) == 0
        assert one.asked(signal.SIGTERM, 30) == 0
    assert kept(home, run).heads[0].round == kept(first, run).heads[0].round == 0
    root = kept(second, run).heads[0]
    assert root.round == 0 or root.seal.hex() == invited["anchor"]["seal"]
