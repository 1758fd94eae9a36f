"""Offers of hole punching: strict, one spelling of each, and nobody sent into a home."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.canonical import pack
from protocols.errors import RemoteError
from protocols.frames import PAYLOAD_LIMITS
from protocols.punch import AFTER_MS, Punch

SENDER = "whoever sent it"

ends = st.builds(
    lambda ip, port: f"/ip{ip.version}/{ip}/udp/{port}/quic-v1",
    st.ip_addresses().filter(
        lambda ip: ip.is_global and not ip.is_multicast and getattr(ip, "ipv4_mapped", None) is None
    ),
    st.integers(1, 65535),
)


@given(st.just("") | ends, st.integers(0, AFTER_MS))
def test_offers_come_back_as_they_were(address: str, after_ms: int) -> None:
    raw = Punch(address, after_ms).encode()
    assert len(raw) <= PAYLOAD_LIMITS["punch"]
    assert Punch.decode(raw, sender=SENDER) == Punch(address, after_ms)


@given(st.binary(max_size=PAYLOAD_LIMITS["punch"]))
def test_garbage_raises_what_callers_expect(raw: bytes) -> None:
    with contextlib.suppress(RemoteError):
        assert Punch.decode(raw, sender=SENDER).encode() == raw


@given(st.text(max_size=80))
def test_any_text_is_refused_in_the_senders_name(address: str) -> None:
    if address:
        with pytest.raises(RemoteError, match=f"{SENDER}: malformed punch"):
            Punch.decode(Punch(address).encode(), sender=SENDER)


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/127.0.0.1/udp/4001/quic-v1",
        "/ip4/192.168.1.1/udp/53/quic-v1",
        "/ip4/100.64.0.1/udp/4001/quic-v1",
        "/ip4/169.254.1.1/udp/4001/quic-v1",
        "/ip4/0.0.0.0/udp/4001/quic-v1",
        "/ip4/224.0.0.1/udp/4001/quic-v1",
        "/ip4/255.255.255.255/udp/4001/quic-v1",
        "/ip6/fe80::1/udp/4001/quic-v1",
        "/ip6/fd00::1/udp/4001/quic-v1",
        "/ip6/::ffff:8.8.8.8/udp/4001/quic-v1",
        "/ip6/2001:4860:0::8888/udp/4001/quic-v1",
        "/ip4/8.8.8.8/udp/0/quic-v1",
        "/ip4/8.8.8.8/udp/04001/quic-v1",
        "/ip4/8.8.8.8/udp/65536/quic-v1",
        "/ip4/8.8.8.8/udp/4001",
        "/ip4/8.8.8.8/tcp/4001",
        "/ip4/8.8.8.8/tcp/4001/quic-v1",
        "/ip4/8.8.8.8/udp/4001/quic-v1/p2p/12D3KooW",
        "/ip4/8.8.8.8/udp/4001/quic-v1 ",
        "/dns4/example.org/udp/4001/quic-v1",
        "/ip4/8.8.8.8/udp/4001/quic-v1/p2p-circuit",
    ],
)
def test_no_packets_are_sent_where_no_hole_can_be(address: str) -> None:
    with pytest.raises(RemoteError, match="no public end"):
        Punch.decode(Punch(address).encode(), sender=SENDER)


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        None,
        {"address": ""},
        {"address": 1, "after_ms": 0},
        {"address": b"", "after_ms": 0},
        {"address": "", "after_ms": 0, "more": 1},
        {"address": "", "after_ms": {"c": []}},
        {"address": "", "after_ms": -1},
        {"address": "", "after_ms": AFTER_MS + 1},
        {"address": "", "after_ms": 1.0},
        {"address": "", "after_ms": True},
    ],
)
def test_other_shapes_are_refused(value: object) -> None:
    with pytest.raises(RemoteError, match="malformed punch"):
        Punch.decode(pack(value), sender=SENDER)  # type: ignore[arg-type]
