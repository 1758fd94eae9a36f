"""Peers without IPv4: they enter, meet and train over IPv6 alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.network.homes import Lighthouse, daemon, founders, identity
from tests.peer.live import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.network.homes import Program
    from tests.network.natlab import Lab

NAMES = ("public", "one", "two")


def _sealed(peer: Program) -> int:
    return peer.status().get("round", {}).get("last_sealed") or 0


@pytest.mark.timeout(300)
def test_peers_without_ipv4_meet_and_train(lab: Lab, tmp_path: Path) -> None:
    """A public one, and two homes whose routers let only replies in: between these a hole is punched."""
    lighthouse = Lighthouse(lab.public(ipv4=False, ipv6=True), tmp_path / "lighthouse")
    assert lighthouse.address.startswith("/ip6/")
    run = founders(tmp_path, NAMES)
    hosts = [lab.public(ipv4=False, ipv6=True), lab.home(None, ipv6=True), lab.home(None, ipv6=True)]
    peers = {name: daemon(host, tmp_path / name, run, [lighthouse]) for host, name in zip(hosts, NAMES, strict=True)}
    ids = {name: identity(peer) for name, peer in peers.items()}

    def stand() -> dict[str, tuple[str, dict[str, str]]]:
        return {
            name: (peer.status().get("reach", {}).get("rung", ""), peer.connections()) for name, peer in peers.items()
        }

    holes = {
        "one": {ids["public"]: "direct", ids["two"]: "punched"},
        "two": {ids["public"]: "direct", ids["one"]: "punched"},
    }
    expected = {
        "public": ("ipv6", {ids["one"]: "direct", ids["two"]: "direct"}),
        **{name: ("punched", ways) for name, ways in holes.items()},
    }
    try:
        until(lambda: stand() == expected, 150, "the public one is dialled, the homes punch a hole")
        told = peers["public"].status()["reach"]["addresses"]
        assert told and all(each.startswith(f"/ip6/{hosts[0].address6}/tcp/") for each in told), told
        before = max(_sealed(peer) for peer in peers.values())
        until(lambda: min(_sealed(peer) for peer in peers.values()) >= before + 2, 90, "all of them seal")
    except AssertionError as error:
        raise AssertionError(
            f"{error}\n{stand()}\n{expected}" + "".join(peer.log() for peer in peers.values())
        ) from error
