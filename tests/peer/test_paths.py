"""The home directory: where it is, whose it is, and what happens when it cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.paths import Home, default_home
from protocols.errors import EnvironmentFault


def test_the_home_lies_where_the_platform_keeps_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_home() == tmp_path / "data" / "murmur"


def test_a_home_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    home = Home(tmp_path / "a" / "b")
    home.create()
    assert home.root.stat().st_mode & 0o777 == 0o700
    home.root.chmod(0o755)
    home.create()
    assert home.root.stat().st_mode & 0o777 == 0o700


def test_every_file_lies_in_the_home_under_a_name_of_its_own(tmp_path: Path) -> None:
    home = Home(tmp_path)
    files = [home.key, home.api, home.lock, home.log, home.json_log, home.runs]
    assert len(set(files)) == len(files)
    assert {file.parent for file in files} == {tmp_path}
    assert home.run(b"\x01" * 32).relative_to(home.runs) == Path("01" * 32)


def test_a_home_that_is_a_file_is_a_fault_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(EnvironmentFault, match="cannot be used") as caught:
            Home(root).create()
        assert "MURMUR_HOME" in caught.value.remedy
