"""Which addresses a peer tells."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dht.addresses import best_addresses, told
from dht.records import MAX_ADDRESSES, PeerRecord, encode_record
from peer.identity import Identity

BRIDGES = [f"/ip4/172.{16 + number}.0.1/tcp/4001/p2p/x" for number in range(16)]
PUBLIC = "/ip4/203.0.114.7/tcp/4001/p2p/x"
PUBLIC6 = "/ip6/2606:4700::1/tcp/4001/p2p/x"
LAN = "/ip4/192.168.1.5/tcp/4001/p2p/x"
LOOPBACK = ["/ip4/127.0.0.1/tcp/4001/p2p/x", "/ip6/::1/tcp/4001/p2p/x"]
LINK_LOCAL = ["/ip6/fe80::1/tcp/4001/p2p/x", "/ip4/169.254.3.4/tcp/4001/p2p/x"]


def test_public_first_then_private_and_loopback_only_alone() -> None:
    given_ = [*LOOPBACK, *BRIDGES, *LINK_LOCAL, LAN, PUBLIC, PUBLIC6]
    assert best_addresses(given_) == (PUBLIC, PUBLIC6, *BRIDGES[:14])
    assert best_addresses([*LOOPBACK, LAN]) == (LAN,)
    assert best_addresses(LOOPBACK) == tuple(LOOPBACK)
    assert best_addresses(["/dns4/seed.example.org/tcp/4001/p2p/x", *BRIDGES])[0].startswith("/dns4")
    assert best_addresses(["/ip4/nonsense/tcp/1", LAN, "/ip4/203.0.114.7/" + "x" * 512]) == (LAN,)
    assert best_addresses([]) == ()


def test_nothing_private_is_told_beside_something_public() -> None:
    assert told([*LOOPBACK, LAN, PUBLIC, PUBLIC6]) == (PUBLIC, PUBLIC6)
    assert told([*LOOPBACK, LAN]) == (LAN,)
    assert told(LOOPBACK) == tuple(LOOPBACK)
    assert told([]) == ()


@given(st.lists(st.sampled_from([*LOOPBACK, *BRIDGES, *LINK_LOCAL, LAN, PUBLIC, PUBLIC6]), max_size=60))
def test_any_choice_fits_into_a_record(addresses: list[str]) -> None:
    """A machine with many bridges could not announce itself at all."""
    chosen = best_addresses(addresses)
    useful = [each for each in addresses if each not in {*LOOPBACK, *LINK_LOCAL}]
    assert len(chosen) == min(MAX_ADDRESSES, len(useful or addresses))
    key = Identity.from_seed(bytes(32))
    encode_record(PeerRecord(bytes(32), key.peer, chosen, ("contributor",), "0.1.0", 0, 1, 1), key.sign)
