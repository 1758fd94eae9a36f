"""What a crash left is cleared away, and nothing else, whatever the file in the home names."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from dht import leftovers

if TYPE_CHECKING:
    from pathlib import Path


def reap(home: Path, directory: str) -> None:
    """Clear away what a daemon left that is long dead, and its p2pd too."""
    trace = leftovers.Trace(2**30, 1.7e9, "/usr/bin/p2pd", 2**30 + 1, 1.7e9, directory)
    file = home / "p2pd.pid"
    file.write_text(json.dumps(asdict(trace)))
    assert not leftovers.reap(file) and not file.exists()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_folder_of_a_dead_daemon_is_removed(temporary: Path, tmp_path: Path) -> None:
    folder = tempfile.mkdtemp(prefix=leftovers.PREFIX)
    (temporary / folder / "p2pd.sock").touch()
    reap(tmp_path, folder)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "murmur-", "murmur-abcdefgh1", "other-abcdefgh", "murmur-abcdefgh/in", "\0"])
def test_a_folder_of_another_name_stays(name: str, temporary: Path, tmp_path: Path) -> None:
    folder = temporary / name.replace("\0", "x")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "precious").touch()
    reap(tmp_path, f"{temporary}/{name}" if name else "")
    assert (folder / "precious").exists()


def test_a_folder_elsewhere_a_link_and_one_that_others_may_enter_stay(temporary: Path, tmp_path: Path) -> None:
    elsewhere, shared = tmp_path / "murmur-abcdefgh", temporary / "murmur-abcdefgi"
    link = temporary / "murmur-abcdefgj"
    for folder, mode in ((elsewhere, 0o700), (shared, 0o755)):
        folder.mkdir(mode=mode)
        (folder / "precious").touch()
    link.symlink_to(elsewhere, target_is_directory=True)
    for path in (str(elsewhere), str(shared), str(link), f"{temporary}/../{elsewhere.name}", f"{link}/"):
        reap(tmp_path, path)
    assert (elsewhere / "precious").exists() and (shared / "precious").exists() and link.is_symlink()
