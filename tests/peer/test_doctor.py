"""The doctor as a whole: checks that cannot hurt each other, the report on every screen, and the command itself."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.doctor import Check, beside, examine
from peer.doctor_report import NO_NETWORK, Finding, Outcome, eased, failed, passed, report, to_json, worst
from peer.exits import Exit
from peer.identity import Identity
from peer.paths import Home
from protocols.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ("pass", "warn", "fail", "skipped")
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def finding(result: str, evidence: str = "seen", remedy: str | None = None, name: str = "x") -> Finding:
    return Finding(name, name, result, evidence, remedy, 0.1)  # type: ignore[arg-type]


def raising(error: Exception) -> Callable[[], Awaitable[Outcome]]:
    async def look() -> Outcome:
        raise error

    return look


async def fine() -> Outcome:
    return passed("fine")


async def endless() -> Outcome:
    await asyncio.Event().wait()
    return passed("never")


def test_no_check_can_crash_or_hold_up_the_others() -> None:
    checks = [
        Check("fine", "fine", fine),
        Check("endless", "endless", endless, 0.05),
        Check("bug", "bug", raising(ZeroDivisionError("division by zero"))),
        Check("ours", "ours", raising(ConfigError("broken", remedy="mend it"))),
        Check("system", "system", raising(OSError(28, "No space left on device", "/home/x"))),
        Check("own time", "own time", raising(TimeoutError("asked long enough"))),
    ]
    heard: list[list[str]] = []
    findings = asyncio.run(examine(checks, heard.append))
    assert [each.id for each in findings] == [each.id for each in checks], "in the order of the list"
    assert [each.result for each in findings] == ["pass", *["fail"] * 5]
    assert findings[1].evidence == "no result within 0 s" and findings[1].seconds >= 0.05
    assert findings[2].evidence == "internal error: ZeroDivisionError: division by zero"
    assert (findings[3].evidence, findings[3].remedy) == ("broken", "mend it")
    assert (findings[4].evidence, findings[4].remedy) == ("/home/x: No space left on device", "free some disk space")
    assert "no result within" not in findings[5].evidence
    assert all(each.remedy for each in findings[1:])
    assert heard[0] == [each.title for each in checks] and heard[-1] == []


def test_checks_run_at_the_same_time() -> None:
    async def main() -> list[Finding]:
        meeting = asyncio.Barrier(3)

        async def look() -> Outcome:
            await meeting.wait()
            return passed("met")

        return await examine([Check(str(number), "x", look, 10) for number in range(3)])

    assert [each.result for each in asyncio.run(main())] == ["pass"] * 3


def test_a_call_that_hangs_holds_neither_the_check_nor_the_end() -> None:
    release = threading.Event()

    async def look() -> Outcome:
        await beside(release.wait)
        return passed("never")

    began = time.monotonic()
    (found,) = asyncio.run(examine([Check("x", "x", look, 0.05)]))
    assert found.result == "fail" and time.monotonic() - began < 10
    release.set()


def test_what_a_call_beside_raises_arrives() -> None:
    async def look() -> Outcome:
        return await beside(lambda: failed(str(1 // 0), "x"))

    (found,) = asyncio.run(examine([Check("x", "x", look)]))
    assert "ZeroDivisionError" in found.evidence


def test_the_worst_counts_and_what_was_skipped_does_not() -> None:
    assert worst([]) == worst([finding("skipped")]) == "pass"
    assert worst([finding("skipped"), finding("warn"), finding("pass")]) == "warn"
    assert worst([finding("fail"), finding("warn")]) == "fail"


def test_one_address_that_answers_is_enough() -> None:
    dead, name = finding("fail", name="join/1"), finding("fail", name="dns/x")
    assert eased([dead, name]) == [dead, name]
    mixed = eased([dead, finding("pass", name="join/2"), name])
    assert [each.result for each in mixed] == ["warn", "pass", "fail"]


def test_without_a_network_the_addresses_are_not_what_is_to_be_mended() -> None:
    network = finding("fail", remedy="connect a cable", name="network")
    found = eased([network, finding("fail", remedy="ask whoever runs it", name="join/1")])
    assert [each.remedy for each in found] == ["connect a cable", NO_NETWORK]
    assert [each.result for each in found] == ["fail", "fail"]


def test_the_json_has_the_keys_of_the_contract() -> None:
    document = json.loads(json.dumps(to_json([finding("fail", remedy="mend it", name="udp"), finding("pass")])))
    assert document == {
        "schema": 1,
        "worst": "fail",
        "checks": [
            {"id": "udp", "title": "udp", "result": "fail", "evidence": "seen", "remedy": "mend it", "seconds": 0.1},
            {"id": "x", "title": "x", "result": "pass", "evidence": "seen", "remedy": None, "seconds": 0.1},
        ],
    }


SAMPLE = [
    finding("fail", "connection refused: nobody listens there " * 4, "ask whoever runs it " * 6, "address"),
    finding("pass", "82.1 GB free", name="disk"),
    finding("warn", "no router answered", "switch UPnP on", name="UPnP"),
    finding("skipped", "only a daemon knows", name="peers"),
    finding("skipped", "only a daemon knows", name="relays"),
]


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_fits_and_what_fails_comes_last_with_its_remedy(width: int) -> None:
    lines = report(SAMPLE, width).split("\n")
    assert max(map(len, lines)) <= width
    assert lines[0] == " ✓ disk       82.1 GB free"
    assert lines[1] == " · skipped    peers, relays: only a daemon knows"
    assert lines[2:4] == [" ! UPnP       no router answered", "              try: switch UPnP on"]
    assert lines[4].startswith(" ✗ address    connection refused: nobody")
    assert lines[-1] == "1 failed, 1 warning, 1 passed, 2 skipped" and lines[-2] == ""
    assert "".join("".join(lines).split()) == "".join(report(SAMPLE).split()), "nothing is lost"
    assert ESCAPES.sub("", report(SAMPLE, width, colours=True)).split("\n") == lines


def test_without_a_terminal_an_entry_is_a_line_and_its_remedy_another() -> None:
    lines = report(SAMPLE).split("\n")
    assert len(lines) == 8 and all("\x1b" not in line for line in lines)
    assert lines[5].startswith("              try: ask whoever runs it ask")


@given(
    st.lists(st.builds(finding, st.sampled_from(RESULTS), st.text(), st.none() | st.text())), st.none() | st.just(80)
)
def test_text_of_strangers_steers_no_terminal(findings: list[Finding], width: int | None) -> None:
    assert all(line.isprintable() for line in report(findings, width).split("\n"))


def murmur(home: Path, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-c", "from peer.cli import main; main()", "doctor", "--home", str(home)]
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False, env=dict(os.environ)
    )


def test_a_healthy_machine_without_a_daemon_exits_0(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    identity = Identity.load_or_create(home.key)
    done = murmur(home.root, "--listen", "127.0.0.1", "--json")
    assert done.returncode == Exit.DONE, done.stdout + done.stderr
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert set(document) == {"schema", "worst", "checks"} and document["worst"] in ("pass", "warn")
    ids = [each["id"] for each in document["checks"]]
    assert len(set(ids)) == len(ids)
    for each in document["checks"]:
        assert set(each) == {"id", "title", "result", "evidence", "remedy", "seconds"}
        assert each["result"] in RESULTS and each["evidence"] and len(each["title"]) <= 10
        assert (each["remedy"] is not None) == (each["result"] in ("warn", "fail")), each
    found = {each["id"]: each for each in document["checks"]}
    assert found["key"]["evidence"].startswith(identity.peer)
    assert {found[name]["result"] for name in ("config", "key", "home", "disk", "run", "torch", "p2pd")} == {"pass"}
    assert {found[name]["result"] for name in ("daemon", "inbound", "peers", "port", "upnp")} == {"skipped"}
    assert sorted(path.name for path in home.root.iterdir()) == ["identity.key"], "a doctor leaves nothing behind"


def test_what_fails_is_named_and_exits_1(tmp_path: Path) -> None:
    home, config = Home(tmp_path / "home"), tmp_path / "config.toml"
    home.create()
    home.key.write_bytes(b"damaged")
    config.write_text('size = "huge"\nalone = true\n')
    done = murmur(home.root, "--config", str(config))
    assert done.returncode == Exit.FAILED and done.stderr == ""
    *_, last_remedy, _, count = done.stdout.splitlines()
    assert count.startswith("2 failed, ") and last_remedy.startswith("              try: move ")
    shown = [line for line in done.stdout.splitlines() if line.startswith(" ✗ ")]
    assert "'huge' is none of nano, tiny, small, base" in shown[0] and "is damaged: 7 bytes, not 68" in shown[1]
    assert "UDP" in next(line for line in done.stdout.splitlines() if "--alone never looks for peers" in line)


@pytest.mark.parametrize("flags", [("--join", "banana"), ("--p2p-port", "x"), ("--frob",)], ids=str)
def test_wrong_usage_exits_2(tmp_path: Path, flags: tuple[str, ...]) -> None:
    done = murmur(tmp_path, *flags)
    assert (done.returncode, done.stdout) == (Exit.USAGE, "") and "doctor --help" in done.stderr


@pytest.mark.network
def test_a_machine_without_network_is_told_so(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root for a network namespace")
    peer = Identity.from_seed(bytes(32)).peer
    join = f"/dns4/seed.invalid/tcp/4001/p2p/{peer}"
    done = murmur(tmp_path / "home", "--join", join, "--json", before=("unshare", "-n"))
    assert done.returncode == Exit.FAILED, done.stderr
    found = {each["id"]: each for each in json.loads(done.stdout)["checks"]}
    assert {name for name, each in found.items() if each["result"] == "fail"} == {
        "network",
        "dns/seed.invalid",
        "join/1",
    }
    assert found["network"]["evidence"] == "no network: only this machine itself can be reached"
    assert found["upnp"]["result"] == found["udp"]["result"] == "skipped"
