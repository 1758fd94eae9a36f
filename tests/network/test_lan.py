"""Two machines in one home find each other and connect directly, and nobody outside hears of it."""

from __future__ import annotations

import ipaddress
import json
import sys
from typing import TYPE_CHECKING

import pytest

from tests.network.homes import ROOT, Lighthouse, Program, daemon, founders, identity
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


LOOK = """
import asyncio, json, socket, sys, uvloop
from dht.lan import networks
from dht.mdns import Mdns
from dht.neighbours import own_cards

async def main(own, other, occupied):
    here, mdns = networks(own_cards(), "0.0.0.0"), Mdns()
    if occupied:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(("", 5353))
            try:
                await mdns.open(here, 1, {"peer": own}, lambda: None)
            except OSError as error:
                print(json.dumps(str(error)), flush=True)
    await mdns.open(here, 4001, {"peer": own}, lambda: None)
    found, most = set(), 0
    async with asyncio.timeout(25):
        while other.encode() not in found or most < 8:
            heard = await mdns.look()
            most = max(most, len(mdns._zeroconf.zeroconf.cache.async_entries_with_name("_murmur._tcp.local.")))
            found |= {each.words.get(b"peer") for each in heard}
            await asyncio.sleep(0.2)
    await asyncio.sleep(2)  # for the other to hear it
    await mdns.close()
    print(json.dumps("found"), flush=True)

uvloop.run(main(sys.argv[1], sys.argv[2], len(sys.argv) > 3))
"""
FLOOD = """
import os, random, socket, struct, sys, time
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[1]))
label = lambda text: bytes([len(text)]) + text
kind = label(b"_murmur") + label(b"_tcp") + label(b"local") + bytes(1)
while True:
    name = label(os.urandom(8).hex().encode()) + kind
    record = kind + struct.pack(">HHIH", 12, 1, 4500, len(name)) + name
    packet = struct.pack(">HHHHHH", 0, 0x8400, 0, 1, 0, 0) + record
    out.sendto(packet, ("224.0.0.251", 5353))
    out.sendto(packet[:random.randrange(len(packet))] + os.urandom(9), ("224.0.0.251", 5353))
    time.sleep(0.01)
"""


def test_mdns_bears_a_taken_port_and_a_flood(lab: Lab) -> None:
    """Two machines hear each other among a hundred false announcements a second, and as many that are none at all."""
    home = lab.home()
    neighbour, hostile = home.neighbour(), home.neighbour()
    python = [sys.executable, "-c"]
    hostile.popen([*python, FLOOD, hostile.address])
    other = neighbour.popen([*python, LOOK, "other", "one"], cwd=str(ROOT))
    began = home.run([*python, LOOK, "one", "other", "occupied"], check=False, timeout=50)
    said = [json.loads(line) for line in began.stdout.splitlines()]
    assert len(said) == 2 and "in use" in said[0] and said[1] == "found", began
    assert not began.stderr, "nothing of it reaches the terminal"
    assert other.wait(30) == 0
