"""Which relays a daemon tries, of those that strangers name."""

from __future__ import annotations

import pytest

from dht.relay_choice import candidates, drawn, family_of, relay_address, replacement
from peer.identity import Identity
from protocols.ids import PeerId

RELAY = Identity.from_seed(bytes(32)).peer
OTHER = Identity.from_seed(bytes([1]) * 32).peer


@pytest.mark.parametrize(
    "end",
    ["/ip4/11.22.33.4/tcp/4002", "/ip4/8.8.4.4/udp/4002/quic-v1", "/ip6/2a0b::1/tcp/1", "/dns4/a.example/tcp/65535"],
)
def test_a_public_address_is_taken(end: str) -> None:
    good = f"{end}/p2p/{RELAY}"
    assert relay_address(["/ip4/10.0.0.1/tcp/1", f"/ip4/10.0.0.1/tcp/1/p2p/{RELAY}", good], RELAY) == good


@pytest.mark.parametrize(
    "address",
    [
        "garbage",
        "",
        "/ip4/8.8.4.4/tcp/4002",
        f"/ip4/8.8.4.4/tcp/4002/p2p/{OTHER}",
        f"/ip4/8.8.4.4/tcp/99999/p2p/{RELAY}",
        f"/dns4/a.example/tcp/99999/p2p/{RELAY}",
        f"/dns4/a.example,/ip4/8.8.4.4/tcp/1/p2p/{RELAY}",
        f"/dns4/localhost/tcp/1/p2p/{RELAY}",
        f"/ip4/8.8.4.4/tcp/1,/ip4/8.8.4.4/tcp/2/p2p/{RELAY}",
        f"/ip4/192.168.1.1/tcp/80/p2p/{RELAY}",
        f"/ip4/127.0.0.1/tcp/80/p2p/{RELAY}",
        f"/ip4/224.0.0.1/tcp/80/p2p/{RELAY}",
        f"/ip4/8.8.4.4/tcp/1/p2p/{OTHER}/p2p-circuit/p2p/{RELAY}",
        f"/ip4/8.8.4.4/tcp/1/ws/p2p/{RELAY}",
    ],
)
def test_what_would_end_p2pd_or_lead_into_a_home_is_not(address: str) -> None:
    assert relay_address([address], RELAY) == ""


def test_of_a_relays_addresses_that_beside_a_seed_comes_first_then_those_of_a_family_in_which_one_answers() -> None:
    four, six = (f"{each}/tcp/4002/p2p/{RELAY}" for each in ("/ip4/8.8.8.8", "/ip6/2a0b::1"))
    assert relay_address([four, six], RELAY) == four
    assert relay_address([four, six], RELAY, {"/ip6/2a0b::1"}) == six
    assert relay_address([four, six], RELAY, {"/ip6/2a0b::2"}, "6") == six
    assert relay_address([four, six], RELAY, {"/dns4/a.example"}, family_of("/dns4/a.example")) == four


def test_no_choice_of_an_id_comes_first_but_what_stands_beside_a_seed_does() -> None:
    relays = {
        PeerId(f"peer {number:03}"): f"/ip4/11.22.33.{number}/tcp/1/p2p/peer {number:03}" for number in range(100)
    }
    orders = {drawn(relays, bytes([salt]))[0] for salt in range(20)}
    assert len(orders) > 10
    assert set(drawn(relays, b"")) == set(relays.values())
    assert drawn(relays, b"", {"/ip4/11.22.33.77"})[0] == relays[PeerId("peer 077")]


def test_each_relay_has_its_turn_before_one_that_failed_has_another() -> None:
    known, failed, tried = ["a", "b", "c", "d", "e"], dict[str, int](), {"a", "b"}
    using: tuple[str, ...] = ("a", "b")
    for _ in range(2):
        failed = {each: failed.get(each, 0) + (each in using) for each in known}
        using = candidates(known, using, failed)[:2]
        tried |= set(using)
    assert tried == set(known)
    assert candidates(known, ("c",), {}) == ("c", "a", "b", "d", "e"), "what is in use stays in use"


@pytest.mark.parametrize(
    ("known", "using", "serving", "chosen"),
    [
        ("ab", "ab", "ab", ""),
        ("abc", "ab", "ab", ""),
        ("b", "ab", "b", ""),
        ("ab", "ab", "b", "ba"),
        ("abc", "ab", "b", "bc"),
        ("abc", "a", "", "bc"),
        ("ab", "a", "a", ""),
    ],
)
def test_a_lost_relay_gives_way_to_another_or_comes_back_itself(
    known: str, using: str, serving: str, chosen: str
) -> None:
    assert replacement(tuple(known), tuple(using), tuple(serving), {"a": 1}, 2) == tuple(chosen)
