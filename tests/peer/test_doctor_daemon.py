"""What the doctor takes from a running daemon's status: reach, peers, punching, relays and its own warnings."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any, get_args

import pytest

from peer import doctor_checks_daemon as checks
from peer import doctor_checks_home as of_home
from peer.status_parts import ReasonCode, Rung
from tests.peer.test_screens import PEER, status


def reach(rung: str, *evidence: str, addresses: tuple[str, ...] = ()) -> dict[str, Any]:
    return status(reach={"rung": rung, "evidence": list(evidence), "addresses": list(addresses)})


@pytest.mark.parametrize("rung", get_args(Rung))
def test_every_rung_says_whether_others_come_in_and_why(rung: str) -> None:
    outcome = checks.inbound(reach(rung, "two peers dialled back"), alone=False)
    results = {"unknown": "skipped", "relayed": "warn", "none": "fail"}
    assert outcome.result == results.get(rung, "pass")
    assert outcome.evidence.endswith("(two peers dialled back)")
    assert (outcome.remedy is None) == (outcome.result in ("pass", "skipped"))


def test_a_relayed_host_is_told_why_and_what_would_help() -> None:
    document = reach(
        "relayed",
        "symmetric NAT: another port for each peer",
        addresses=(f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}/p2p-circuit/p2p/{PEER}",),
    )
    inbound = checks.inbound(document, alone=False)
    assert inbound.result == "warn" and "symmetric NAT" in inbound.evidence and "UPnP" in (inbound.remedy or "")


def test_a_daemon_that_wants_nobody_is_not_blamed() -> None:
    assert checks.inbound(reach("none", "--alone never looks for peers"), alone=False).result == "skipped"
    for look in (checks.inbound, checks.peers, checks.punch):
        assert look(status(), alone=True).result == "skipped"
        assert look(None, alone=False).evidence == checks.NO_DAEMON


@pytest.mark.parametrize(
    ("kinds", "peers", "punch"),
    [
        ({"total": 3, "direct": 1, "punched": 2, "relayed": 0}, "3 connected: 1 direct, 2 punched", "pass"),
        ({"total": 1, "direct": 0, "punched": 0, "relayed": 1}, "1 connected: 1 relayed", "warn"),
        ({"total": 1, "direct": 1, "punched": 0, "relayed": 0}, "1 connected: 1 direct", "skipped"),
    ],
)
def test_peers_are_counted_by_kind_and_punching_shows_in_them(kinds: dict[str, int], peers: str, punch: str) -> None:
    assert checks.peers(status(peers=kinds), alone=False).evidence == peers
    assert checks.punch(status(peers=kinds), alone=False).result == punch


def test_nobody_connected_is_a_warning_where_there_was_an_address() -> None:
    nobody = {"total": 0, "direct": 0, "punched": 0, "relayed": 0}
    assert checks.peers(status(peers=nobody), alone=False).result == "warn"
    assert checks.peers(status(peers=nobody, seeds=[]), alone=False).result == "skipped"


def test_the_daemon_s_warnings_are_findings_but_not_its_clock_twice() -> None:
    both = [{"code": "disk", "text": "full", "remedy": ""}, {"code": "clock", "text": "wrong", "remedy": "set it"}]
    found = checks.warnings(status(warnings=both))
    assert list(found) == ["disk"] and found["disk"].result == "warn" and found["disk"].remedy
    assert checks.warnings(None) == {}


def test_a_daemon_is_well_or_says_what_holds_it_up() -> None:
    well = of_home.daemon(status(), "", held=True)
    assert well.result == "pass" and re.search(r"murmur 0\.1\.0, training", well.evidence)
    full = status(reason={"code": "disk", "text": "waits for the disk"})
    assert of_home.daemon(full, "", held=True).result == "warn"
    assert set(of_home.TROUBLES) <= set(get_args(ReasonCode))
    assert asdict(of_home.daemon(None, "it did not answer within 2 s", held=True))["result"] == "fail"
