"""``murmur lighthouse``: its flags, a real one on loopback, and what it says where the relay cannot run."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from argparse import ArgumentParser
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from peer import cli_lighthouse, lighthouse
from peer.exits import Exit
from peer.identity import Identity
from peer.options import LighthouseOptions
from protocols.errors import ConfigError
from tests.peer.live import ROOT, gone, murmur, until

if TYPE_CHECKING:
    from pathlib import Path

PEER = Identity.from_seed(bytes(32)).peer
RUN = bytes(range(32)).hex()
LOCAL = ("--listen", "127.0.0.1", "--p2p-port", "0", "--relay-port", "0")


def options(home: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> LighthouseOptions:
    """What is started for these flags."""
    started: list[LighthouseOptions] = []

    def run(given: LighthouseOptions) -> int:
        started.append(given)
        return 0

    monkeypatch.setattr(lighthouse, "run", run)
    parser = ArgumentParser()
    cli_lighthouse.add(parser.add_subparsers())
    arguments: dict[str, Any] = vars(parser.parse_args(["lighthouse", "--home", str(home), *words]))
    assert arguments.pop("command")(arguments) == 0
    return started[0]


def test_without_flags_it_is_what_the_options_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert options(tmp_path, monkeypatch) == LighthouseOptions(home=tmp_path)


def test_each_flag_arrives_in_its_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    join = f"/ip4/8.8.8.8/tcp/4001/p2p/{PEER}"
    words = [
        *("--listen", "127.0.0.1", "--p2p-port", "1", "--relay-port", "2", "--join", join),
        *("--announce", "8.8.8.8", "--announce", "2001:4860:0::8", "--announce", "Light.Example.org"),
        *("--run", RUN, "--run", RUN.upper(), "--http-host", "0.0.0.0", "--http-port", "3", "--bandwidth", "7"),
    ]
    assert options(tmp_path, monkeypatch, *words) == LighthouseOptions(
        home=tmp_path,
        listen="127.0.0.1",
        p2p_port=1,
        relay_port=2,
        announce=("/ip4/8.8.8.8", "/ip6/2001:4860::8", "/dns4/light.example.org"),
        runs=(bytes(range(32)),) * 2,
        join=(join,),
        http_host="0.0.0.0",
        http_port=3,
        total_rate=7e6,
    )
    assert options(tmp_path, monkeypatch, "--relay-only").relay_only
    with pytest.raises(ConfigError, match="no directory"):
        options(tmp_path, monkeypatch, "--relay-only", "--run", RUN)


@pytest.mark.parametrize(
    "words",
    [
        ("--listen", "banana"),
        ("--listen", "fe80::1"),
        ("--p2p-port", "65536"),
        ("--relay-port", "-1"),
        ("--announce", ""),
        ("--announce", "8.8.8.8:4001"),
        ("--announce", "/ip4/8.8.8.8"),
        ("--announce", "-example.org"),
        ("--announce", "exa mple.org"),
        ("--announce", "8.8.8.256"),
        ("--announce", "8.8.8"),
        ("--run", RUN[:-1]),
        ("--run", RUN[:-1] + "x"),
        ("--join", "banana"),
        ("--http-host", "localhost"),
        ("--http-port", "x"),
        ("--bandwidth", "0"),
        ("--relay", "1"),
    ],
    ids=" ".join,
)
def test_a_flag_that_means_nothing_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as caught:
        options(tmp_path, monkeypatch, *words)
    assert caught.value.code == Exit.USAGE
    assert "error:" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'libp2p' else find(name, *more)\n"
    )
    path = os.pathsep.join([str(tmp_path / "shim"), str(ROOT)])
    with murmur(tmp_path / "home", "lighthouse", *LOCAL, environment={"PYTHONPATH": path}) as started:
        assert started.ends(20) == Exit.ENVIRONMENT
        assert started.printed == ""
        assert started.complaints.splitlines() == [
            "murmur: the relay needs py-libp2p, which is not installed",
            "  try: pip install 'murmuration[lighthouse]'",
        ]
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("listen", "expected"), [("127.0.0.1", {"/ip4/127.0.0.1"}), ("2001:db8::7", {"/ip6/2001:db8::7"})]
)
def test_it_tells_the_one_address_at_which_it_listens(listen: str, expected: set[str]) -> None:
    assert set(lighthouse.own_hosts(listen)) == expected


def test_listening_everywhere_it_tells_its_own_addresses() -> None:
    own = lighthouse.own_hosts("0.0.0.0")
    assert own[0].startswith("/ip4/") and "/ip4/127.0.0.1" in own
    assert all(each.startswith(("/ip4/", "/ip6/")) and "%" not in each for each in own)
    assert lighthouse.own_hosts("::") == tuple(each for each in own if each.startswith("/ip6/"))


def get(base: str, path: str) -> tuple[str, str]:
    """Content type and body."""
    with urllib.request.urlopen(base + path, timeout=10) as response:  # noqa: S310 - loopback
        return response.headers["content-type"], response.read().decode()


def samples(text: str) -> dict[str, float]:
    """By name and label, none twice."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
    assert len(found) == len(lines)
    return found


@pytest.mark.skipif(find_spec("libp2p") is None, reason="needs the extra: lighthouse")
def test_a_real_one_answers_and_leaves_nothing_when_it_is_told_to_end(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with ExitStack() as stack:
        live = stack.enter_context(murmur(home, "lighthouse", *LOCAL))
        live.says("/metrics", 60)
        entry, relay = (
            re.search(rf"^  {word} .*(/ip4/127\.0\.0\.1/tcp/[1-9][0-9]*/p2p/(\w+))$", live.printed, re.MULTILINE)
            for word in ("join", "relay")
        )
        assert entry and relay and entry[2] != relay[2] and f"peer {entry[2]}" in live.printed.splitlines()[0]
        assert f"  join    murmur up --join {entry[1]}" in live.printed.splitlines()
        base = re.findall(r"http://127\.0\.0\.1:[0-9]+", live.printed)[0]
        family = psutil.Process(live.process.pid).children(recursive=True)
        assert {"p2pd"} < {each.name() for each in family}, "p2pd and a relay beside it"

        assert json.loads(get(base, "/healthz")[1]) == {"schema": 1, "ok": True}
        kind, text = get(base, "/metrics")
        assert kind.startswith("text/plain; version=0.0.4")
        found = samples(text)
        assert found["murmur_relay_circuits"] == 0 and found["murmur_uptime_seconds"] >= 0
        status = json.loads(get(base, "/status")[1])
        assert {each["name"] for each in status["limits"]} >= {"connections", "streams", "runs", "reach"}
        until(lambda: json.loads(get(base, "/status")[1])["relay"]["up_s"] > 0, 20, "the relay tells its figures")

        with murmur(home, "lighthouse", *LOCAL) as second:
            assert second.ends(30) == Exit.ENVIRONMENT and "Traceback" not in second.complaints
        assert live.asked(signal.SIGTERM, 20) == Exit.DONE
        assert live.printed.endswith("lighthouse stopped\n") and live.complaints == ""
        gone(family)

        again = stack.enter_context(murmur(home, "lighthouse", *LOCAL, "--relay-only"))
        again.says("/metrics", 60)
        assert relay[2] in again.printed and "join" not in again.printed, "the key is kept"
        assert "p2pd" not in {each.name() for each in psutil.Process(again.process.pid).children(recursive=True)}
        assert again.asked(signal.SIGINT, 20) == Exit.DONE
