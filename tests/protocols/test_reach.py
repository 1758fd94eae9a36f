"""Requests to dial back and their replies: strict, one spelling of each, and nobody sent to where the asker is not."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from protocols.canonical import pack
from protocols.errors import RemoteError
from protocols.frames import PAYLOAD_LIMITS
from protocols.reach import (
    BUSY,
    CLOSED,
    ELSEWHERE,
    MAX_ASKED,
    MAX_CHARS,
    PROVEN,
    UNSEEN,
    WORDS,
    AskReach,
    Outcome,
    ReachReply,
    endpoint,
    plan,
    seen,
    seen_ip,
)

SENDER = "whoever sent it"
SEEN = "/ip4/203.0.113.5/tcp/50000"
LONGEST = "/ip6/" + ":".join(["2001"] * 8)


def dialable(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """What one machine can have."""
    mapped = ip.version == 6 and ip in ipaddress.ip_network("::ffff:0:0/96")
    return not (mapped or ip.is_multicast or ip.is_unspecified or ip.is_link_local or str(ip) == "255.255.255.255")


ips = st.ip_addresses().filter(dialable)
ports = st.integers(1, 65535)
bare = ports.map(lambda port: f"/tcp/{port}")
full = st.builds(lambda ip, port: f"/ip{ip.version}/{ip}/tcp/{port}", ips, ports)
asks = st.lists(bare | full, max_size=MAX_ASKED, unique=True).map(lambda each: AskReach(tuple(each)))
ends = st.builds(
    lambda ip, port, form: f"/ip{ip.version}/{ip}/{form.format(port)}",
    ips,
    ports,
    st.sampled_from(["tcp/{}", "udp/{}/quic-v1"]),
)


@given(asks)
def test_requests_come_back_as_they_were(ask: AskReach) -> None:
    assert AskReach.decode(ask.encode(), sender=SENDER) == ask
    assert all(len(each) <= MAX_CHARS for each in ask.addresses)


@given(asks, ends | st.just(""), st.data())
def test_replies_that_fit_their_request_come_back_as_they_were(
    ask: AskReach, observed: str, data: st.DataObject
) -> None:
    tried = st.sampled_from(sorted(WORDS.keys() - {ELSEWHERE, UNSEEN}))
    reply = ReachReply(
        observed, tuple(Outcome(address, verdict or data.draw(tried)) for address, verdict in plan(ask, observed))
    )
    assert ReachReply.decode(reply.encode(), ask, sender=SENDER) == reply


def test_the_longest_messages_fit_into_their_frames() -> None:
    addresses = tuple(f"{LONGEST}/tcp/{port}" for port in range(65535, 65535 - MAX_ASKED, -1))
    ask, observed = AskReach(addresses), f"{LONGEST}/udp/65535/quic-v1"
    assert len(ask.encode()) <= PAYLOAD_LIMITS["ask-reach"] and len(observed) <= MAX_CHARS
    word = max(WORDS.keys() - {ELSEWHERE, UNSEEN}, key=len)
    reply = ReachReply(observed, tuple(Outcome(each, word) for each in addresses))
    assert len(reply.encode()) <= PAYLOAD_LIMITS["reach"]
    assert ReachReply.decode(reply.encode(), ask, sender=SENDER) == reply


@given(asks, ends | st.just(""))
def test_nothing_is_dialled_but_the_address_that_the_asker_is_seen_at(ask: AskReach, observed: str) -> None:
    planned = plan(ask, observed)
    assert len(planned) == len(ask.addresses)
    for asked, (address, verdict) in zip(ask.addresses, planned, strict=True):
        assert address.endswith(asked)
        if not verdict:
            assert address.split("/")[1:3] == observed.split("/")[1:3]
            assert endpoint(address).ip == seen_ip(observed) is not None
            assert endpoint(address).port == endpoint(asked).port
        elif observed:
            assert verdict == ELSEWHERE and endpoint(asked).ip not in {None, seen_ip(observed)}
        else:
            assert verdict == UNSEEN


@given(st.binary(max_size=200))
def test_arbitrary_bytes_name_their_sender(raw: bytes) -> None:
    try:
        assert AskReach.decode(raw, sender=SENDER).encode() == raw
    except RemoteError as error:
        assert error.peer == SENDER
    try:
        assert ReachReply.decode(raw, AskReach(("/tcp/1",)), sender=SENDER).encode() == raw
    except RemoteError as error:
        assert error.peer == SENDER


@given(st.text(max_size=80))
def test_an_address_has_one_spelling(address: str) -> None:
    try:
        ip, port = endpoint(address)
    except ValueError:
        return
    assert address == (f"/ip{ip.version}/{ip}" if ip else "") + f"/tcp/{port}"


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/tcp/0",
        "/tcp/01",
        "/tcp/65536",
        "/tcp/٣",
        "/tcp/1\n",
        "/udp/1/quic-v1",
        "/ip4/1.2.3/tcp/1",
        "/ip4/01.2.3.4/tcp/1",
        "/ip4/::1/tcp/1",
        "/ip6/1.2.3.4/tcp/1",
        "/ip6/0:0:0:0:0:0:0:1/tcp/1",
        "/ip6/::ffff:1.2.3.4/tcp/1",
        "/ip6/::ffff:102:304/tcp/1",
        "/ip6/fe80::1%eth0/tcp/1",
        "/ip6/fe80::1/tcp/1",
        "/ip4/0.0.0.0/tcp/1",
        "/ip4/224.0.0.1/tcp/1",
        "/ip4/255.255.255.255/tcp/1",
        "/dns4/example.org/tcp/1",
        "/ip4/1.2.3.4/tcp/1/p2p/12D3KooW",
        "/ip4/1.2.3.4/tcp/1/http",
    ],
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError):
        endpoint(address)
    with pytest.raises(ValueError):
        AskReach((address,))
    with pytest.raises(RemoteError, match="malformed ask-reach"):
        AskReach.decode(pack({"addresses": [address]}), sender=SENDER)


def test_too_many_addresses_and_one_twice_are_refused() -> None:
    for addresses in (tuple(f"/tcp/{port}" for port in range(1, MAX_ASKED + 2)), ("/tcp/1", "/tcp/1")):
        with pytest.raises(RemoteError, match="malformed ask-reach"):
            AskReach.decode(pack({"addresses": addresses}), sender=SENDER)
        with pytest.raises(ValueError):
            AskReach(addresses)


@pytest.mark.parametrize(
    ("multiaddr", "expected"),
    [
        (SEEN, SEEN),
        (f"{SEEN}/p2p/12D3KooWPUdpY2sYsJwzS8cCZm1nHnQp8KkMzWjcVGe5EkkNbkxx", SEEN),
        ("/ip4/203.0.113.5/udp/4001/quic-v1", "/ip4/203.0.113.5/udp/4001/quic-v1"),
        ("/ip6/2001:db8::7/tcp/9", "/ip6/2001:db8::7/tcp/9"),
        ("/ip6/::ffff:203.0.113.5/tcp/50000", SEEN),
        ("/ip6/::ffff:0.0.0.0/tcp/50000", ""),
        ("/ip4/203.0.113.5/tcp/50000/p2p/12D3KooWPUdpY2sYsJwzS8cCZm1nHnQp8KkMzWjcVGe5EkkNbkxx/p2p-circuit", ""),
        ("/ip6zone/eth0/ip6/fe80::1/tcp/4", ""),
        ("/ip6/fe80::1/tcp/4", ""),
        ("/ip4/203.0.113.5/udp/4001", ""),
        ("/ip4/203.0.113.5/tcp/4001/quic-v1", ""),
        ("/ip4/203.0.113.5/tcp/0", ""),
        ("/unix/run/socket", ""),
        ("", ""),
    ],
)
def test_what_the_end_of_a_connection_tells_about_the_peer(multiaddr: str, expected: str) -> None:
    assert seen(multiaddr) == expected == seen(expected)


@given(asks, ends)
def test_a_reply_to_something_else_is_refused(ask: AskReach, observed: str) -> None:
    assume(ask.addresses)
    planned = plan(ask, observed)
    good = tuple(Outcome(address, verdict or CLOSED) for address, verdict in planned)
    wrong = [
        good[:-1],
        (*good[:-1], Outcome("/ip4/198.51.100.1/tcp/99", PROVEN)),
        (*good[:-1], Outcome(good[-1].address, CLOSED if planned[-1][1] else UNSEEN)),
        (*good[:-1], Outcome(good[-1].address, PROVEN if planned[-1][1] else ELSEWHERE)),
    ]
    assume(good[-1].address != "/ip4/198.51.100.1/tcp/99")
    for outcomes in wrong:
        with pytest.raises(RemoteError, match="tells of"):
            ReachReply.decode(ReachReply(observed, outcomes).encode(), ask, sender=SENDER)


@pytest.mark.parametrize(
    "fields",
    [
        {"observed": SEEN, "outcomes": [{"address": "/ip4/203.0.113.5/tcp/1", "found": "maybe"}]},
        {"observed": SEEN, "outcomes": [{"address": "/ip4/203.0.113.5/tcp/1", "found": 1}]},
        {"observed": SEEN, "outcomes": [{"address": "/ip4/203.0.113.5/tcp/1"}]},
        {"observed": f"{SEEN}/p2p/12D3KooW", "outcomes": [{"address": "/ip4/203.0.113.5/tcp/1", "found": BUSY}]},
        {"observed": "x" * (MAX_CHARS + 1), "outcomes": []},
        {"observed": SEEN, "outcomes": [{"address": "/ip4/203.0.113.5/tcp/1", "found": BUSY}] * (MAX_ASKED + 1)},
        {"observed": SEEN},
        [],
    ],
)
def test_malformed_replies_are_refused(fields: object) -> None:
    with pytest.raises(RemoteError, match="malformed reach"):
        ReachReply.decode(pack(fields), AskReach(("/tcp/1",)), sender=SENDER)  # type: ignore[arg-type]


def test_every_word_has_a_meaning_in_words() -> None:
    assert all(word.isalpha() and len(meaning) > 8 for word, meaning in WORDS.items())
