"""What is announced in a network, and what of it is believed."""

from __future__ import annotations

import ipaddress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.lan import (
    MOST_ADDRESSES,
    MOST_CARDS,
    MOST_PEERS,
    Announcement,
    Card,
    mark_of,
    networks,
    read,
    words_of,
)
from protocols.ids import PeerId, peer_id

RUN, OTHER_RUN = bytes(32), bytes(31) + b"\1"
OWN, FRIEND = peer_id(bytes(32)), peer_id(bytes([1]) * 32)
FLAGS = frozenset({"up", "broadcast", "running", "multicast"})
CARD = Card("192.168.1.7", "255.255.255.0", FLAGS)
HERE = networks([CARD], "0.0.0.0")
PORT = 4001


def said(peer: str, *addresses: str, port: int = PORT, run: bytes = RUN) -> Announcement:
    words = {key.encode(): word.encode() for key, word in words_of(run, PeerId(peer)).items()}
    return Announcement(dict(words), addresses, port)


GOOD = said(FRIEND, "192.168.1.8")


def test_a_neighbour_of_the_run_is_found_where_it_says() -> None:
    assert read([GOOD], RUN, OWN, HERE) == {FRIEND: (f"/ip4/192.168.1.8/tcp/{PORT}/p2p/{FRIEND}",)}


def test_an_announcement_tells_no_run_id_and_is_another_for_each_run() -> None:
    run = bytes(range(32))
    assert set(words_of(run, OWN)) == {"run", "peer"} and words_of(run, OWN)["peer"] == OWN
    assert len(mark_of(run)) == 32 and mark_of(run) != mark_of(RUN)
    assert mark_of(run) not in run.hex() and run.hex()[:32] not in mark_of(run)


@pytest.mark.parametrize(
    "announced",
    [
        said(OWN, "192.168.1.8"),
        said(FRIEND, "192.168.1.8", run=OTHER_RUN),
        said(FRIEND, "192.168.1.8", port=0),
        said(FRIEND, "192.168.1.8", port=65536),
        said(FRIEND),
        said("12D3Koo", "192.168.1.8"),
        said(FRIEND + "1" * 20, "192.168.1.8"),
        replace(GOOD, words={}),
        replace(GOOD, words={**GOOD.words, b"peer": None}),
        replace(GOOD, words={**GOOD.words, b"peer": b"\xff" * 52}),
    ],
)
def test_what_is_not_of_use_is_not_heard(announced: Announcement) -> None:
    assert read([announced], RUN, OWN, HERE) == {}


@pytest.mark.parametrize(
    "address",
    [
        "192.168.1.7",  # this machine
        "127.0.0.1",
        "192.168.1.0",
        "192.168.1.255",
        "192.168.2.8",  # another network
        "10.0.0.1",
        "8.8.8.8",
        "224.0.0.251",
        "0.0.0.0",
        "fe80::1",
        "192.168.1.8/tcp/22",
        "",
    ],
)
def test_only_other_machines_of_this_network_are_believed(address: str) -> None:
    assert read([said(FRIEND, address)], RUN, OWN, HERE) == {}
    both = read([said(FRIEND, address, "192.168.1.8")], RUN, OWN, HERE)
    assert both == read([GOOD], RUN, OWN, HERE)


def test_nobody_is_near_without_a_network() -> None:
    assert read([GOOD], RUN, OWN, ()) == {}


@pytest.mark.parametrize(
    ("card", "listen"),
    [
        (replace(CARD, address="127.0.0.1", netmask="255.0.0.0"), "0.0.0.0"),
        (replace(CARD, flags=FLAGS | {"loopback"}), "0.0.0.0"),
        (replace(CARD, flags=FLAGS | {"pointopoint"}), "0.0.0.0"),
        (replace(CARD, flags=FLAGS - {"multicast"}), "0.0.0.0"),
        (replace(CARD, flags=FLAGS - {"up"}), "0.0.0.0"),
        (replace(CARD, netmask=None), "0.0.0.0"),
        (replace(CARD, netmask="banana"), "0.0.0.0"),
        (replace(CARD, address="100.64.0.7"), "0.0.0.0"),  # a provider's network
        (CARD, "192.168.1.9"),
        (CARD, "127.0.0.1"),
    ],
)
def test_where_nobody_lives_nothing_is_announced(card: Card, listen: str) -> None:
    assert networks([card], listen) == ()


def test_a_machine_out_in_the_world_announces_itself_nowhere() -> None:
    world = replace(CARD, address="8.8.8.8")
    assert networks([CARD], "0.0.0.0") and networks([CARD, world], "0.0.0.0") == ()


def test_it_is_announced_where_it_takes_peers() -> None:
    other = replace(CARD, address="10.0.0.7")
    assert [str(each.ip) for each in networks([CARD, other], "0.0.0.0")] == ["10.0.0.7", "192.168.1.7"]
    assert [str(each.ip) for each in networks([CARD, other], "10.0.0.7")] == ["10.0.0.7"]
    many = [replace(CARD, address=f"10.0.{number}.7") for number in range(100)]
    assert len(networks(many, "0.0.0.0")) == MOST_CARDS


def test_a_flood_has_a_limit_in_peers_and_in_addresses() -> None:
    flood = [
        said(peer_id(number.to_bytes(32, "big")), *(f"192.168.1.{last}" for last in range(100, 120)))
        for number in range(1, 500)
    ]
    repeated = [said(FRIEND, f"192.168.1.{last}") for last in range(20, 80)]
    found = read([*repeated, *flood], RUN, OWN, HERE)
    assert len(found) == MOST_PEERS and {len(each) for each in found.values()} == {MOST_ADDRESSES}
    assert found[FRIEND][0].startswith("/ip4/192.168.1.20/")


WORDS = st.sampled_from([mark_of(RUN).encode(), FRIEND.encode(), OWN.encode(), b"run"]) | st.binary(max_size=80)
KEYS = st.sampled_from([b"run", b"peer"]) | st.binary(max_size=8)
PLACES = st.sampled_from(["192.168.1.8", "192.168.1.7"]) | st.ip_addresses().map(str) | st.text(max_size=40)
HEARD = st.builds(
    Announcement,
    st.dictionaries(KEYS, st.none() | WORDS, max_size=4),
    st.lists(PLACES, max_size=6).map(tuple),
    st.integers(-1, 1 << 17),
)


@given(st.lists(HEARD | st.just(GOOD), max_size=20))
def test_whatever_is_heard_leads_to_other_peers_on_other_machines_of_this_network(heard: list[Announcement]) -> None:
    found = read(heard, RUN, OWN, HERE)
    assert OWN not in found and len(found) <= MOST_PEERS
    assert (FRIEND in found) or GOOD not in heard
    for peer, addresses in found.items():
        assert 1 <= len(addresses) <= MOST_ADDRESSES and len(set(addresses)) == len(addresses)
        for address in addresses:
            empty, ip4, ip, tcp, port, p2p, name = address.split("/")
            assert (empty, ip4, tcp, p2p, name) == ("", "ip4", "tcp", "p2p", peer)
            assert ipaddress.IPv4Address(ip) in HERE[0].network and ip != CARD.address and 0 < int(port) < 1 << 16
