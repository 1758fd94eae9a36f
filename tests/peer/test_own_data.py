"""A run on a folder of one's own, which is not needed any more once the run is made."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.peer.live import murmur, sealed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real


def test_the_founder_trains_without_the_folder_it_made_the_run_from(tmp_path: Path) -> None:
    folder, home, run = tmp_path / "texts", tmp_path / "home", tmp_path / "run.toml"
    folder.mkdir()
    (folder / "one.txt").write_bytes(b"to be or not to be. " * 400)
    (folder / "two.txt").write_bytes(b"that is the question. " * 400)
    with murmur(home, "run", "init", f"--data={folder}", "--size=nano", "--steps=2", f"--output={run}") as made:
        assert made.ends() == 0, made.complaints
    shutil.rmtree(folder)
    with murmur(home, "up", "--alone", f"--run={run}", "--rounds=2", "--threads=1") as live:
        assert live.ends() == 0, live.complaints
    assert sorted(sealed(home)) == [1, 2]
    (blob, *_) = (home / "blobs").iterdir()
    blob.write_bytes(b"x" * blob.stat().st_size)
    with murmur(home, "up", "--alone", f"--run={run}", "--rounds=2", "--threads=1") as live:
        assert live.ends() == 5
        assert "lacks the shard" in live.complaints
        assert "other peers send it" in live.complaints
