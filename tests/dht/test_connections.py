"""The way to a peer, from the ends of its connections."""

from __future__ import annotations

import itertools

import pytest

from dht.connections import Connection, quic_of, ways
from protocols.ids import PeerId

A, B = PeerId("A"), PeerId("B")
TCP = "/ip4/8.8.8.8/tcp/4001"
QUIC = "/ip4/8.8.8.8/udp/4001/quic-v1"
CIRCUIT = "/ip4/9.9.9.9/tcp/4002/p2p/R/p2p-circuit"


@pytest.mark.parametrize(
    ("address", "punched", "kind", "transport"),
    [
        (TCP, (), "direct", "tcp"),
        (QUIC, (), "direct", "quic"),
        (QUIC, (A,), "punched", "quic"),
        (QUIC, (B,), "direct", "quic"),
        (CIRCUIT, (), "relayed", "tcp"),
        (CIRCUIT, (A,), "relayed", "tcp"),
        ("/ip4/9.9.9.9/udp/4002/quic-v1/p2p/R/p2p-circuit", (), "relayed", "quic"),
    ],
)
def test_the_end_of_a_connection_tells_its_kind_and_transport(
    address: str, punched: tuple[PeerId, ...], kind: str, transport: str
) -> None:
    found = ways([(A, address)], set(punched))[A]
    assert (found.kind, found.transport, found.address) == (kind, transport, address)


def test_of_several_connections_the_most_direct_one_counts_in_any_order() -> None:
    for order in itertools.permutations([(A, CIRCUIT), (A, TCP), (B, CIRCUIT)]):
        assert ways(order, ()) == {A: Connection("direct", "tcp", TCP), B: Connection("relayed", "tcp", CIRCUIT)}
    assert ways([], {A}) == {}


def test_quic_is_beside_a_plain_tcp_address_only() -> None:
    assert quic_of(f"{TCP}/p2p/A") == f"{QUIC}/p2p/A"
    assert quic_of("/ip6/::1/tcp/9/p2p/A") == "/ip6/::1/udp/9/quic-v1/p2p/A"
    assert quic_of("/dns4/example.org/tcp/9/p2p/A") == "/dns4/example.org/udp/9/quic-v1/p2p/A"
    for other in (TCP, f"{QUIC}/p2p/A", f"{CIRCUIT}/p2p/A", f"{TCP}/ws/p2p/A", "", "/", "a/b/c/tcp/e/f/g"):
        assert quic_of(other) == ""
