"""A private run with real daemons: who is on its list takes part, a stranger is told why it may not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from peer import corpus
from peer.identity import Identity
from protocols.manifest import render, sign
from protocols.manifest_defaults import Choices, default_manifest
from protocols.manifest_text import parse
from tests.peer.live import address, home_of, murmur, sealed, until

if TYPE_CHECKING:
    from pathlib import Path

NEAR = ("up", "--threads=1", "--listen=127.0.0.1")


def private_run(folder: Path, founder: Identity, guest: Identity) -> Path:
    """Windows of two seconds: the state of a run that seals ten rounds a second is gone before it can be fetched."""
    choices = Choices(size="nano", codec="int8", allow=(guest.peer,))
    manifest = default_manifest(choices, founders=[founder.peer], shards=corpus.SHARDS)
    manifest = replace(manifest, round=replace(manifest.round, steps=None, seconds=2))
    path = folder / "private.toml"
    path.write_text(render(sign(manifest, founder.peer, founder.sign)))
    return path


def test_a_stranger_is_told_before_anything_is_started(tmp_path: Path) -> None:
    founder, guest, stranger = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
    run = private_run(tmp_path, founder, guest)
    with murmur(home_of(tmp_path, stranger), *NEAR, f"--run={run}", "--join=/ip4/127.0.0.1/tcp/1/p2p/x") as live:
        assert live.ends(30) == 2
    first, second = live.complaints.splitlines()[-2:]
    assert first == f"murmur: private run: this key is not on its list ({stranger.peer})"
    assert "ask its founders" in second


@pytest.mark.real
@pytest.mark.timeout(240)
def test_an_allowed_key_joins_a_closed_run_and_its_commits_are_sealed(tmp_path: Path) -> None:
    founder, guest = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
    run = private_run(tmp_path, founder, guest)
    homes = [home_of(tmp_path, each, f"home-{number}") for number, each in enumerate((founder, guest))]
    with murmur(homes[0], *NEAR, f"--run={run}") as one:
        where = address(one)
        with murmur(homes[1], *NEAR, f"--run={run}", f"--join={where}") as two:
            until(
                lambda: any(guest.peer in entry["tokens"] for entry in sealed(homes[0]).values()), 120,
                f"a commit of the guest is sealed: {one.complaints}{two.complaints}",
            )  # fmt: skip


def test_init_takes_the_list_and_show_shows_it(tmp_path: Path) -> None:
    guest, other = (Identity.from_seed(bytes([number]) * 32).peer for number in (2, 3))
    file = tmp_path / "private.toml"
    with murmur(tmp_path / "home", "run", "init", f"--allow={guest}", f"--allow={other}", "-o", str(file)) as live:
        assert live.ends(30) == 0, live.complaints
    assert parse(file.read_text()).members.allow == (guest, other)
    with murmur(tmp_path / "home", "run", "show", str(file)) as live:
        assert live.ends(30) == 0, live.complaints
    assert "allow = [" in live.printed and guest in live.printed and other in live.printed
    with murmur(tmp_path / "home", "run", "init", f"--allow={guest}", "--open") as live:
        assert live.ends(30) == 2
    assert "keep one of the two" in live.complaints
