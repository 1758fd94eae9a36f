"""Daemons whose clocks are wrong: each tells by how much."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.network.homes import PROGRAM, ROOT, Lighthouse, Program, daemon, founders
from tests.peer.live import until

if TYPE_CHECKING:
    from tests.network.natlab import Lab

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
OFFSETS = {"fast": 47.0, "slow": -3600.0}
"""Seconds."""
EXACT_S = 1.0
_SHIM = """
import select, time
time.sleep = lambda seconds: select.select((), (), (), seconds) and None
"""
"""libfaketime 0.9.10 lets the monotonic clock be, but makes a sleep until a moment of it an error, as Python's is."""


def _warnings(peer: Program) -> list[str]:
    return [each["text"] for each in peer.status().get("warnings", []) if each["code"] == "clock"]


def _figure(text: str) -> float:
    (found,) = re.findall(r"([0-9.]+) s (?:apart|ahead|behind)", text)
    return float(found)


def _doctor(peer: Program) -> dict[str, Any]:
    """What the doctor, whose own clock is right, says of the daemon's."""
    words = [*PROGRAM, "doctor", "--json", "--home", str(peer.home.root)]
    found = json.loads(peer.host.run(words, timeout=60, check=False).stdout)
    return next(each for each in found["checks"] if each["id"] == "clock")


@pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed (package libfaketime)")
@pytest.mark.timeout(300)
def test_a_wrong_clock_is_told_with_its_figure(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the daemon's clock is shifted (p2pd is static), and only that of the day."""
    lighthouse = Lighthouse(lab.public(), tmp_path / "lighthouse")
    run = founders(tmp_path, list(OFFSETS))
    (tmp_path / "sitecustomize.py").write_text(_SHIM)
    peers = {}
    for name, offset in OFFSETS.items():
        host = lab.public()
        with monkeypatch.context() as shifted:
            shifted.setenv("LD_PRELOAD", str(LIBRARY))
            shifted.setenv("FAKETIME", f"{offset:+}")
            shifted.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(ROOT))))
            shifted.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            peers[name] = daemon(host, tmp_path / name, run, [lighthouse])
    try:
        for name, peer in peers.items():
            until(lambda peer=peer: bool(_warnings(peer)), 150, f"{name} warns")  # type: ignore[misc]
            (text,) = _warnings(peer)
            assert abs(_figure(text) - abs(OFFSETS[name])) < EXACT_S, text
            finding = _doctor(peer)
            assert finding["result"] == "fail", finding
            assert abs(_figure(finding["evidence"]) - abs(OFFSETS[name])) < EXACT_S, finding
    except AssertionError as error:
        raise AssertionError(f"{error}" + "".join(peer.log() for peer in peers.values())) from error
