"""Two machines in one home find each other and connect directly, and nobody outside hears of it."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import pytest

from tests.network.homes import Lighthouse, Program, daemon, founders, identity
from tests.network.rooms import call
from tests.peer.live import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.network.natlab import Lab
    from tests.network.wires import Host

NAMES = ("one", "two")
SPY = """
table inet spy {{
  chain out {{
    type filter hook postrouting priority -300;
    oifname "{card}" udp dport 5353 counter
    oifname "{card}" udp sport 5353 counter
  }}
}}
"""


def spy(host: Host, card: str) -> None:
    """Count the packets of mDNS that a machine sends out there."""
    call(*host.enter, "nft", "-f", "-", text=SPY.format(card=card))


def counted(host: Host) -> int:
    """How many there were."""
    words = call(*host.enter, "nft", "list", "table", "inet", "spy").split()
    return sum(int(words[at + 1]) for at, word in enumerate(words) if word == "packets")


def seal(*peers: Program, rounds: int = 2) -> bool:
    """Whether all have sealed so many rounds with each other."""
    return all(
        (each.status().get("round", {}).get("last_sealed") or 0) >= rounds and identity(other) in each.connections()
        for each in peers
        for other in peers
        if each is not other
    )


def fails(error: AssertionError, *peers: Program) -> AssertionError:
    """The error, with what the daemons have said."""
    return AssertionError(f"{error}\n" + "".join(each.log() for each in peers))


@pytest.mark.timeout(240)
def test_neighbours_find_each_other_without_any_help_and_nothing_of_it_leaves_the_house(
    lab: Lab, tmp_path: Path
) -> None:
    run, home = founders(tmp_path, NAMES), lab.home()
    hosts = home, home.neighbour()
    spy(home.router, "wan")
    for host in hosts:
        spy(host, "eth0")
    one, two = (daemon(host, tmp_path / name, run, []) for host, name in zip(hosts, NAMES, strict=True))
    try:
        until(lambda: seal(one, two), 150, "both are connected and seal")
        assert one.connections() == {identity(two): "direct"} and two.connections() == {identity(one): "direct"}
        assert min(counted(host) for host in hosts) > 0, "they are announced in the house"
        assert counted(home.router) == 0
    except AssertionError as error:
        raise fails(error, one, two) from error


def is_private(multiaddr: str) -> bool:
    """Whether an address of a record is of use in one house only."""
    return not ipaddress.ip_address(multiaddr.split("/")[2]).is_global


@pytest.mark.timeout(240)
def test_with_a_lighthouse_neighbours_are_still_connected_in_the_house_and_the_directory_is_told_nothing(
    lab: Lab, tmp_path: Path
) -> None:
    """A third member, out in the world, sees what the directory says of them."""
    lighthouse = Lighthouse(lab.public(), tmp_path / "lighthouse")
    run, home = founders(tmp_path, (*NAMES, "far")), lab.home()
    hosts = home, home.neighbour(), lab.public()
    peers = [
        daemon(host, tmp_path / name, run, [lighthouse]) for host, name in zip(hosts, (*NAMES, "far"), strict=True)
    ]
    one, two, far = peers
    names, told = {identity(one), identity(two)}, dict[str, set[str]]()

    def looks() -> bool:
        for row in far.ask("peers").get("peers", []):
            told.setdefault(row["id"], set()).update(row["addresses"])
        ways = one.connections().get(identity(two)), two.connections().get(identity(one))
        return ways == ("direct", "direct") and all(told.get(name) for name in names) and seal(*peers)

    try:
        until(looks, 150, "neighbours are connected directly, are in the directory, and all three seal")
        assert not [each for name in names for each in told[name] if is_private(each)]
        assert all("/p2p-circuit" in each for name in names for each in told[name]), "nobody outside can dial them"
        invited = one.ask("invite")["addresses"]
        assert invited and not [each for each in invited if is_private(each)]
        ends = one.host.run(["ss", "-Htn", "state", "established"]).stdout
        assert f"{two.host.address}:" in ends, "by the cable between them"
    except AssertionError as error:
        raise fails(error, *peers) from error
