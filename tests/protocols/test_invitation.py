"""Invitations: what goes in comes out, a line made by hand, and one clear complaint for each way to spoil one."""

from __future__ import annotations

import base64

import msgpack
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import ConfigError
from protocols.ids import Hash, peer_id
from protocols.invitation import MAX_CHARS, Anchor, Invitation, decode, encode, is_meant, split

KEYS = [bytes([number]) * 32 for number in range(1, 5)]
PEERS = [peer_id(key) for key in KEYS]
ADDRESS = f"/ip4/203.0.113.7/tcp/4001/p2p/{PEERS[0]}"
ONE = Invitation(bytes(range(32)), (ADDRESS,), Anchor(48, Hash(bytes(range(100, 132)))))

heads = st.from_regex(r"/ip4/[0-9]{1,3}\.[0-9]{1,3}\.0\.1/tcp/[0-9]{1,5}", fullmatch=True)
addresses = st.builds(lambda head, peer: f"{head}/p2p/{peer}", heads, st.sampled_from(PEERS))
invitations = st.builds(
    Invitation,
    run=st.binary(min_size=32, max_size=32),
    addresses=st.lists(addresses, max_size=4, unique=True).map(tuple),
    anchor=st.none()
    | st.builds(
        Anchor,
        round=st.integers(1, 2**53 - 1),
        seal=st.binary(min_size=32, max_size=32).map(Hash),
    ),
)


def line_of(body: bytes) -> str:
    """A sound line around any body, made from the format's description alone."""
    tag = b"murmur/1/invitation"
    check = blake3(len(tag).to_bytes(8, "little") + tag + len(body).to_bytes(8, "little") + body).digest()[:4]
    raw = len(body).to_bytes(2, "big") + body + check
    return "murmur1" + base64.b32encode(raw).decode().rstrip("=").lower()


def body_of(**changes: object) -> bytes:
    fields: dict[str, object] = {
        "anchor": [48, bytes(range(100, 132))],
        "peers": [[KEYS[0], ["/ip4/203.0.113.7/tcp/4001"]]],
        "run": bytes(range(32)),
    }
    return bytes(msgpack.packb(dict(sorted({**fields, **changes}.items()))))


def test_a_line_made_by_hand() -> None:
    assert encode(ONE) == line_of(body_of())
    assert decode(line_of(body_of())) == ONE
    assert len(encode(ONE)) < 300


@given(invitations)
def test_what_goes_in_comes_out_however_the_line_is_broken(given: Invitation) -> None:
    line = encode(given)
    assert decode(line) == given
    assert decode(f"  {line[:40].upper()}\r\n {line[40:]}\n") == given
    assert is_meant(line) and "\n" not in line and line.isascii()


@given(invitations, st.data())
def test_any_one_wrong_character_is_noticed(given: Invitation, data: st.DataObject) -> None:
    line = encode(given)
    at = data.draw(st.integers(7, len(line) - 1))
    other = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz234567").filter(lambda each: each != line[at]))
    with pytest.raises(ConfigError, match="checksum|cut off"):
        decode(line[:at] + other + line[at + 1 :])


@given(invitations, st.data())
def test_a_line_that_was_cut_says_so(given: Invitation, data: st.DataObject) -> None:
    line = encode(given)
    with pytest.raises(ConfigError, match="cut off"):
        decode(line[: data.draw(st.integers(7, len(line) - 1))])


@given(st.text(max_size=300))
def test_no_text_does_worse_than_a_complaint(text: str) -> None:
    for line in (text, f"murmur1{text}"):
        with pytest.raises(ConfigError) as caught:
            decode(line)
        assert caught.value.remedy


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("murmur2abcdef", "of another version"),
        ("murmurabcdef", "of another version"),
        ("https://example.org", "not an invitation"),
        ("murmur1" + "0" * 20, "letters and the digits 2 to 7 only"),
        ("murmur1" + "a" * MAX_CHARS, f"at most {MAX_CHARS} characters"),
        (encode(ONE) + "aaaaaaaa", "checksum"),
        (line_of(b""), "makes no sense"),
        (line_of(body_of(run=bytes(31))), "run is not a 32-byte hash"),
        (line_of(body_of(anchor=[0, bytes(32)])), "anchor is not an integer from 1"),
        (line_of(body_of(anchor=[1])), "anchor is not a pair"),
        (line_of(body_of(more=1)), "unknown fields"),
        (line_of(body_of(peers=[[key, []] for key in [*KEYS, bytes(32)]])), "max_array_len|at most 4 items"),
        (line_of(body_of(peers=[[key, ["/a", "/b"]] for key in KEYS])), "more than 4 addresses"),
        (line_of(body_of(peers=[[KEYS[0], ["relative"]]])), "is not an address"),
        (line_of(body_of(peers=[[KEYS[0], ["/" + "a" * 200]]])), "at most 200 characters"),
    ],
)
def test_each_fault_has_its_words(line: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        decode(line)
    assert caught.value.remedy


def test_what_is_no_invitation_cannot_be_made() -> None:
    for run, addresses in (
        (bytes(31), (ADDRESS,)),
        (bytes(32), (ADDRESS, ADDRESS)),
        (bytes(32), ("/ip4/1.2.3.4/tcp/1",)),
    ):
        with pytest.raises(ValueError):
            Invitation(run, addresses)
    with pytest.raises(ValueError):
        Invitation(bytes(32), (), Anchor(0, Hash(bytes(32))))


def test_an_address_is_split_at_its_peer() -> None:
    assert split(ADDRESS) == ("/ip4/203.0.113.7/tcp/4001", PEERS[0])
    for bad in ("", "x", "/ip4/1.2.3.4/tcp/1", f"ip4/p2p/{PEERS[0]}", "/ip4/1.2.3.4/p2p/Qm", f"/a b/p2p/{PEERS[0]}"):
        with pytest.raises(ValueError):
            split(bad)
