"""``murmur swarm`` with real daemons: its checks, its repeatability, its output, and that it leaves nothing behind."""

from __future__ import annotations

import json
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.peer.live import Live, alive, gone, murmur, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SMALL = ("swarm", "--peers=4", "--size=nano", "--steps=4", "--timeout=200")
MEASURED = {"bytes_sent", "bytes_received", "seconds", "rss_peak", "p2pd_bytes"}
"""All that may differ between two swarms of one seed."""


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A TMPDIR of one's own, so that everything left behind is seen; a socket's path must be short."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="m") as folder:
        yield {"TMPDIR": folder}
        left = [each.name for each in Path(folder).iterdir() if not each.name.startswith("torchinductor_")]
        assert left == [], "it leaves nothing behind; torch keeps a cache of its own"


def without(value: Any, names: set[str]) -> Any:
    """A report without these keys, wherever they are."""
    if isinstance(value, dict):
        return {key: without(item, names) for key, item in value.items() if key not in names}
    return [without(item, names) for item in value] if isinstance(value, list) else value


def differences(one: Any, two: Any, where: str = "") -> list[str]:
    """The paths at which two reports differ."""
    if isinstance(one, dict) and isinstance(two, dict) and one.keys() == two.keys():
        return [text for key in one for text in differences(one[key], two[key], f"{where}/{key}")]
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        pairs = enumerate(zip(one, two, strict=True))
        return [text for index, (a, b) in pairs for text in differences(a, b, f"{where}/{index}")]
    return [] if one == two else [f"{where}: {one!r} / {two!r}"]


def test_a_small_swarm_passes_and_the_same_seed_gives_the_same_report(
    tmp_path: Path, temporary: dict[str, str]
) -> None:
    trace = tmp_path / "trace"
    arguments = (*SMALL, "--rounds=3", "--seed=7")
    with murmur(tmp_path / "one", *arguments, "--json=-", f"--trace={trace}", environment=temporary) as one:
        assert one.ends(200) == 0, one.complaints
    first = json.loads(one.printed)
    assert first["ok"] is True
    assert {"replay_identical", "traffic_bounded", "no_orphans"} <= {each["name"] for each in first["checks"]}
    assert [each["round"] for each in first["rounds"]] == [0, 1, 2, 3]
    assert "round   3   held-out" in one.complaints
    assert one.complaints.splitlines()[-1] == f"ok: {len(first['checks'])} of {len(first['checks'])} checks hold"

    file = tmp_path / "out.json"
    with murmur(tmp_path / "two", *arguments, f"--json={file}", environment=temporary) as two:
        assert two.ends(200) == 0, two.complaints
    assert two.complaints == ""
    assert two.printed.splitlines()[-1].startswith("ok: ")
    second = json.loads(file.read_text())
    traced = [check for check in first["checks"] if check["name"] != "replay_identical"]
    assert differences(without({**first, "checks": traced}, MEASURED), without(second, MEASURED)) == []


def started(live: Live, count: int) -> list[psutil.Process]:
    """Everything below a swarm, once it has so many processes."""
    until(lambda: len(live.family()) >= count or live.process.poll() is not None, 120, "all processes are there")
    return live.family()


def daemons(live: Live) -> list[psutil.Process]:
    return psutil.Process(live.process.pid).children()


def test_a_daemon_that_dies_fails_the_swarm_in_words(tmp_path: Path, temporary: dict[str, str]) -> None:
    with murmur(tmp_path / "home", *SMALL, "--peers=2", "--rounds=1000", environment=temporary) as live:
        family = started(live, 6)
        live.says("round   1", 120)
        victim = daemons(live)[1]
        victim.kill()
        assert live.ends(60) == 1
        assert not any(alive(each) for each in family)
    lines = live.printed.splitlines()
    assert "peer 1 was killed by SIGKILL: ending the others" in lines
    assert any(line.startswith("  ! exit_codes: peer 1: -9") for line in lines)
    assert lines[-1].startswith("FAILED: ")
    assert live.complaints == ""


@pytest.mark.parametrize(
    ("number", "peers", "processes"), [(signal.SIGINT, 2, 6), (signal.SIGTERM, 1, 2)], ids=["SIGINT", "SIGTERM"]
)
def test_interrupted_it_takes_its_daemons_along(
    tmp_path: Path, temporary: dict[str, str], number: signal.Signals, peers: int, processes: int
) -> None:
    arguments = (*SMALL, f"--peers={peers}", "--rounds=1000")
    with murmur(tmp_path / "home", *arguments, environment=temporary) as live:
        family = started(live, processes)
        assert live.asked(number, 20) == 1
        assert not any(alive(each) for each in family)
    assert live.printed.splitlines()[-1] == "interrupted: ending the daemons"
    assert live.complaints == ""


def test_killed_it_takes_its_processes_along(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="m") as folder:  # kill -9 leaves files: here
        arguments = (*SMALL, "--peers=1", "--rounds=1000")
        with murmur(tmp_path / "home", *arguments, environment={"TMPDIR": folder}) as live:
            family = started(live, 2)
            live.process.kill()
            live.process.wait()
            gone(family, 5)


def reported(live: Live, within: float) -> dict[str, Any]:
    """The report of a swarm that must end well."""
    assert live.ends(within) == 0, live.complaints
    document: dict[str, Any] = json.loads(live.printed)
    assert document["ok"] is True
    return document


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kill", "peers"),
    [
        ("coordinator@3:seal", 4),
        ("coordinator@3:roster", 4),
        ("reducer@3:exchange", 4),
        ("reducer@3:reduce", 4),
        ("contributor@3:train", 4),
        ("3x@3:train", 6),  # half of them at once: those who are left shrink the run to themselves
    ],
)
def test_the_others_go_on_without_the_killed(tmp_path: Path, temporary: dict[str, str], kill: str, peers: int) -> None:
    """FC16: whoever is left ends with one state."""
    arguments = (*SMALL, f"--peers={peers}", "--rounds=5", "--timeout=500", f"--kill={kill}", "--json=-")
    with murmur(tmp_path / "home", *arguments, environment=temporary) as live:
        document = reported(live, 560)
    dead = [each for each in document["peers"] if each["killed"] is not None]
    assert len(dead) == (int(kill[0]) if kill[1] == "x" else 1)
    assert {(each["killed"], each["exit_code"]) for each in dead} == {(kill, -9)}
    assert document["config"]["kill"] == [kill]
    last = document["rounds"][-1]
    assert sum(not each["void"] for each in document["rounds"][1:]) == 5
    assert set(last["state_hashes"]) == {each["id"] for each in document["peers"]} - {each["id"] for each in dead}
    assert len(set(last["state_hashes"].values())) == 1
    assert sum(each["void"] for each in document["rounds"][1:]) <= 1
    assert f"killed: {kill}" in live.complaints


@pytest.mark.timeout(500)
def test_who_joins_later_ends_with_the_same_bits(tmp_path: Path, temporary: dict[str, str]) -> None:
    slow = ("--steps=200", "--rounds=9")  # the newcomer needs some seconds to start, the others must not end by then
    arguments = (*SMALL, *slow, "--peers=3", "--join-at=3", "--timeout=400", "--json=-")
    with murmur(tmp_path / "home", *arguments, environment=temporary) as live:
        document = reported(live, 460)
    newcomer, last = document["peers"][3], document["rounds"][-1]
    assert document["config"]["join_at"] == [3]
    assert (newcomer["killed"], newcomer["exit_code"]) == (None, 0)
    joined = newcomer["joined"]
    assert (joined["by"], joined["at"], joined["momentum"]) == ("invitation", 3, True)
    assert 3 < joined["contributed"] <= newcomer["last_round"] and joined["seconds"] < 120
    assert len(last["state_hashes"]) == 4
    assert len(set(last["state_hashes"].values())) == 1
    assert any(newcomer["id"] in each["contributors"] for each in document["rounds"][1:]), "it took part"


def test_what_cannot_be_killed_is_refused_at_once(tmp_path: Path) -> None:
    with murmur(tmp_path / "home", *SMALL, "--kill=auditor@3") as live:
        assert live.ends(20) == 2
    assert live.complaints.startswith("murmur: --kill auditor@3: auditor is not in this version")


def test_a_report_that_has_no_place_is_refused_at_once(tmp_path: Path) -> None:
    with murmur(tmp_path / "home", *SMALL, f"--json={tmp_path}/absent/out.json") as live:
        assert live.ends(20) == 2
    assert live.complaints.startswith("murmur: the report cannot go to ")
