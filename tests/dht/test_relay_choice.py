"""Which relays a daemon tries, of those that strangers name."""

from __future__ import annotations

import pytest

from dht.relay_choice import relay_address
from peer.identity import Identity

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
