"""``murmur doctor`` on a public host, behind a symmetric NAT and with the cable cut: what it names, on 80 columns."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from peer.doctor_report import NO_NETWORK, Finding, report
from tests.network.homes import PROGRAM, ROOT, Lighthouse, daemon, founders
from tests.peer.live import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.network.natlab import Lab
    from tests.network.wires import Host

NAMES = ("public", "symmetric")
DOCTOR_S = 75.0


class Visit:
    """A doctor at work on a host, as JSON; ``found`` waits for it."""

    def __init__(self, host: Host, home: Path, lighthouse: Lighthouse) -> None:
        words = [*PROGRAM, "doctor", "--json", "--home", str(home), "--join", lighthouse.address]
        self._process = host.popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=str(ROOT))

    def found(self) -> dict[str, dict[str, Any]]:
        """Each check by its id, also printed as a person sees it."""
        said, _ = self._process.communicate(timeout=DOCTOR_S)
        checks = json.loads(said)["checks"]
        lines = report([Finding(**each) for each in checks], 80)
        print(lines)  # noqa: T201 - for whoever looks at the screens: pytest -rP
        assert max(map(len, lines.splitlines())) <= 80
        return {each["id"]: each for each in checks}


@pytest.mark.timeout(240)
def test_each_host_is_told_what_holds_it_up(lab: Lab, tmp_path: Path) -> None:
    """A healthy host has no failure; a relayed one is told of its NAT and its relay; a cut one of its cable."""
    lighthouse = Lighthouse(lab.public(), tmp_path / "lighthouse")
    run = founders(tmp_path, NAMES)
    hosts = {"public": lab.public(), "symmetric": lab.home("symmetric"), "cut": lab.public()}
    hosts["cut"].cut()
    peers = {name: daemon(hosts[name], tmp_path / name, run, [lighthouse]) for name in NAMES}
    try:
        without = Visit(hosts["cut"], tmp_path / "cut", lighthouse).found()
        assert {name for name, each in without.items() if each["result"] == "fail"} == {"network", "join/1"}
        assert without["network"]["evidence"].startswith("no network")
        assert without["join/1"]["remedy"] == NO_NETWORK
        assert without["nat"]["result"] == without["udp"]["result"] == "skipped"

        until(lambda: peers["symmetric"].status().get("reach", {}).get("rung") == "relayed", 60, "relayed")
        until(lambda: peers["public"].status().get("peers", {}).get("total") == 1, 60, "they have met")
        relayed, healthy = (Visit(hosts[name], tmp_path / name, lighthouse) for name in reversed(NAMES))
        home = relayed.found()
        assert not [each for each in home.values() if each["result"] == "fail"], home
        assert home["inbound"]["result"] == "warn" and "through a relay only" in home["inbound"]["evidence"]
        assert home["nat"]["result"] == "warn" and "changes the port" in home["nat"]["evidence"]
        assert home["port"]["evidence"].startswith("any free one")
        assert home["relays"]["result"] == "pass" and "holds a place for this peer" in home["relays"]["evidence"]
        assert " ms there and back" in home["relays"]["evidence"]

        well = healthy.found()
        assert not [each for each in well.values() if each["result"] == "fail"], well
        assert well["nat"]["evidence"].startswith("none: 11.22.33.")
        assert well["inbound"]["result"] == "pass" and "directly" in well["inbound"]["evidence"]
        rows = [each for each in peers["public"].ask("peers")["peers"] if each["connection"]]
        assert rows and all(each["rtt_s"] is not None and each["rtt_s"] > 0 for each in rows), rows
    except AssertionError as error:
        raise AssertionError(f"{error}" + "".join(peer.log() for peer in peers.values())) from error
