"""Frames of catching up: what fits exactly is taken, anything else names the sender."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.identity import Identity
from protocols import chain_payloads
from protocols.canonical import pack
from protocols.chain_payloads import (
    MAX_LINKS,
    MAX_LOCATOR,
    AskChain,
    ChainReply,
    Link,
)
from protocols.errors import RemoteError
from protocols.frames import PAYLOAD_LIMITS
from protocols.ids import Hash, peer_id
from protocols.messages import MAX_VIEW, MAX_VOTERS, Ready, Seal, Vote
from protocols.outer import CHUNK_BYTES
from protocols.state_payloads import MAX_CHUNKS, MAX_WANTED, StateChunk, WantState
from protocols.statements import Scope, Statement
from protocols.table import STANDING, Member, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.messages import Body

SCOPE = Scope(b"r" * 32, "model")
SENDER = "whoever sent it"
ZERO = Hash(b"0" * 32)
KEYS = [Identity.from_seed(bytes([number]) * 32) for number in range(4)]

hashes = st.binary(min_size=32, max_size=32).map(Hash)


def stated(key: Identity, body: Body) -> Statement:
    return SCOPE.state(key.peer, body, key.sign)


def table(count: int = 4) -> Table:
    peers = [key.peer for key in KEYS[:count]] + [peer_id(number.to_bytes(32, "big")) for number in range(count - 4)]
    return Table({each: Member(each, 1.0, STANDING, True, ZERO, MAX_VIEW) for each in peers})


def make(view: int = 1, *, final: bool = False, votes: int = 4) -> Link:
    members = table()
    body = Seal(view, ZERO, view, ZERO, b"", (), (), (), (), (), members.root, ZERO)
    readys = [stated(key, Ready(view + 1, ZERO, view, (), b"", 0, ())) for key in KEYS] if final else []
    cast = tuple(stated(key, Vote(view, ZERO)) for key in KEYS[:votes])
    return Link(stated(KEYS[0], body), cast, members, tuple(readys))


LINKS = (make(1), make(2, final=True), make(3, votes=0))
REPLY = ChainReply(ZERO, LINKS, more=True)


def refused(decode: Callable[[], object], match: str = ".") -> None:
    with pytest.raises(RemoteError, match=match) as caught:
        decode()
    assert caught.value.peer == SENDER


def read(raw: bytes) -> ChainReply:
    return ChainReply.decode(raw, SCOPE, sender=SENDER)


# --- requests ----------------------------------------------------------------------------------------


@given(st.lists(hashes, max_size=MAX_LOCATOR), st.lists(st.integers(0, MAX_CHUNKS - 1), max_size=MAX_WANTED))
def test_requests_come_back_as_they_were_and_fit(locator: list[Hash], indices: list[int]) -> None:
    ask, want = AskChain(tuple(locator)), WantState(ZERO, tuple(indices))
    assert AskChain.decode(ask.encode(), sender=SENDER) == ask
    assert WantState.decode(want.encode(), sender=SENDER) == want
    assert len(ask.encode()) <= PAYLOAD_LIMITS["ask-chain"]
    assert len(want.encode()) <= PAYLOAD_LIMITS["want-state"]


@given(st.binary(max_size=200))
def test_garbage_is_refused(raw: bytes) -> None:
    for decode in (AskChain.decode, WantState.decode, StateChunk.decode):
        refused(lambda decode=decode: decode(raw, sender=SENDER), "malformed")  # type: ignore[misc]
    if raw != ChainReply(None, ()).encode():
        refused(lambda: read(raw))


@pytest.mark.parametrize(
    "fields",
    [
        {"locator": [ZERO] * (MAX_LOCATOR + 1), "show": False},
        {"locator": [b"short"], "show": False},
        {"locator": [[ZERO]], "show": False},
        {"locator": {}, "show": False},
        {"locator": [], "show": 1},
        {"locator": [], "show": True, "more": 1},
        {"locator": []},
        {},
    ],
)
def test_an_ask_with_one_thing_wrong_is_refused(fields: dict[str, Any]) -> None:
    refused(lambda: AskChain.decode(pack(fields), sender=SENDER), "malformed ask-chain")


@pytest.mark.parametrize(
    "changes",
    [
        {"indices": [0] * (MAX_WANTED + 1)},
        {"indices": [-1]},
        {"indices": [MAX_CHUNKS]},
        {"indices": [True]},
        {"indices": [0.0]},
        {"seal": b"short"},
        {"more": 1},
    ],
)
def test_a_want_with_one_thing_wrong_is_refused(changes: dict[str, Any]) -> None:
    raw = pack({"seal": ZERO, "indices": [1], **changes})
    refused(lambda: WantState.decode(raw, sender=SENDER), "malformed want-state")


# --- chain -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", [REPLY, ChainReply(ZERO, ()), ChainReply(None, ()), replace(REPLY, more=False)])
def test_a_reply_comes_back_as_it_was(reply: ChainReply) -> None:
    assert read(reply.encode()) == reply


@settings(max_examples=30)
@given(st.data())
def test_a_reply_cut_short_or_extended_is_refused(data: st.DataObject) -> None:
    raw = REPLY.encode()
    refused(lambda: read(raw[: data.draw(st.integers(0, len(raw) - 1))]), "malformed chain")
    refused(lambda: read(raw + data.draw(st.binary(min_size=1, max_size=9))), "bytes after its end")


@settings(max_examples=60)
@given(st.data())
def test_a_reply_with_a_flipped_bit_is_refused_or_about_other_hashes_only(data: st.DataObject) -> None:
    """Everything but the start and the table, which a hash in the seal binds, is signed or counted."""
    raw = bytearray(REPLY.encode())
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    try:
        found = read(bytes(raw))
    except RemoteError as error:
        assert error.peer == SENDER
        return
    assert [(each.proposal, each.votes, each.final) for each in found.links] == [
        (each.proposal, each.votes, each.final) for each in LINKS
    ]
    tables = [each.table.root != mine.table.root for each, mine in zip(found.links, LINKS, strict=True)]
    assert (found.start != ZERO) + (found.more is not True) + sum(tables) == 1


def test_a_reply_that_says_what_cannot_be_is_refused() -> None:
    refused(lambda: read(ChainReply(None, LINKS).encode()), "on top of nothing")
    refused(lambda: read(ChainReply(None, (), more=True).encode()), "on top of nothing")
    refused(lambda: read(ChainReply(ZERO, (), more=True).encode()), "none is here")
    refused(lambda: read(ChainReply(Hash(b"short"), LINKS).encode()), "no seal to start from")
    refused(lambda: read(ChainReply(ZERO, (LINKS[1], LINKS[1])).encode()), "more than one seal shown final")
    refused(lambda: read(ChainReply(ZERO, LINKS * 6).encode()), "at most 16")


def test_statements_of_another_run_or_signer_are_refused() -> None:
    link = LINKS[0]
    elsewhere = Scope(b"x" * 32, "model").state(KEYS[0].peer, Vote(1, ZERO), KEYS[0].sign)
    refused(lambda: read(ChainReply(ZERO, (replace(link, votes=(elsewhere,)),)).encode()), "another run")
    forged = replace(link.votes[0], peer=KEYS[1].peer)
    refused(lambda: read(ChainReply(ZERO, (replace(link, votes=(forged,)),)).encode()), "wrong signature")


def test_a_table_has_each_member_once() -> None:
    link = LINKS[0]
    raw = ChainReply(ZERO, (link,)).encode()
    rows = [pack(link.table.members[each].to_wire()) for each in sorted(link.table.members)]
    assert rows[1] in raw
    refused(lambda: read(raw.replace(rows[1], rows[0])), "out of order")


def test_too_many_of_anything_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    link = LINKS[1]
    many = replace(link, votes=link.votes[:1] * (MAX_VOTERS + 1))
    refused(lambda: read(ChainReply(ZERO, (many,)).encode()), f"at most {MAX_VOTERS}")
    monkeypatch.setattr(chain_payloads, "MAX_ROWS", 3)
    refused(lambda: read(ChainReply(ZERO, (link,)).encode()), "4 where at most 3")
    monkeypatch.setattr(chain_payloads, "MAX_PROOF", 2)
    refused(lambda: read(ChainReply(ZERO, (link,)).encode()), "at most")


def test_a_reply_is_cut_where_the_frame_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ChainReply.fitting(ZERO, LINKS) == replace(REPLY, more=False)
    assert ChainReply.fitting(None, ()) == ChainReply(None, ())
    many = ChainReply.fitting(ZERO, [LINKS[0]] * (MAX_LINKS + 1))
    assert (len(many.links), many.more) == (MAX_LINKS, True)
    size = len(REPLY.encode())
    monkeypatch.setattr(chain_payloads, "_REPLY_BYTES", size)
    cut = ChainReply.fitting(ZERO, LINKS)
    assert cut == ChainReply(ZERO, LINKS[:2], more=True)
    assert read(cut.encode()) == cut
    assert len(cut.encode()) <= size


def test_a_reply_is_no_more_than_can_be_checked_at_once() -> None:
    """By signatures and by rows; a single link, which cannot be divided, may be more."""
    wide = replace(LINKS[0], table=table(1200))
    assert len(ChainReply.fitting(ZERO, [wide] * 4).links) == 2, "200 signatures' worth of rows each, and 5 signatures"
    voted = replace(LINKS[0], votes=LINKS[0].votes * 24)
    assert len(ChainReply.fitting(ZERO, [voted] * 8).links) == 4, "97 signatures each"
    refused(lambda: read(ChainReply(ZERO, (voted,) * 5).encode()), "too much to check at once")
    assert len(read(ChainReply(ZERO, (replace(voted, final=LINKS[1].final * 48),)).encode()).links) == 1


def test_the_largest_link_fits_a_frame() -> None:
    crowd = Table({each: replace(row, state="x" * 16) for each, row in table(4096).members.items()})
    vote = stated(KEYS[0], Vote(MAX_VIEW, ZERO))
    full = Ready(MAX_VIEW, ZERO, MAX_VIEW, (ZERO,) * 128, ZERO, MAX_VIEW, (KEYS[0].peer,) * 16)
    seal = replace(make().proposal, raw=bytes(256 * 1024))
    link = Link(seal, (vote,) * MAX_VOTERS, crowd, (stated(KEYS[0], full),) * MAX_VOTERS)
    assert len(ChainReply.fitting(ZERO, [link]).links) == 1


@pytest.mark.parametrize("filler", [b"\x90", b"\x00", b"\xff", b"\x01\x00\x00\x00\x90"])
def test_a_huge_reply_of_nothing_allocates_little(filler: bytes) -> None:
    """Wherever in a frame the honest bytes stop, what follows is bounded before it is decoded."""
    good = ChainReply(ZERO, LINKS[:1]).encode()
    row = pack(LINKS[0].table.members[min(LINKS[0].table.members)].to_wire())
    rows = good.index(row)
    for honest in (good[: rows - 8] + (1 << 12).to_bytes(4, "little"), good[:rows], good[:37], good[:41]):
        raw = honest + (filler * (4 << 20))[: PAYLOAD_LIMITS["chain"] - len(honest)]
        tracemalloc.start()
        refused(lambda raw=raw: read(raw))  # type: ignore[misc]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2 << 20


# --- state -------------------------------------------------------------------------------------------


def joined(chunk: StateChunk) -> bytes:
    return b"".join(bytes(each) for each in chunk.encode())


def chunk(raw: bytes) -> StateChunk:
    return StateChunk.decode(raw, sender=SENDER)


@settings(max_examples=30)
@given(
    hashes,
    st.integers(0, MAX_CHUNKS - 1),
    st.lists(hashes, max_size=20),
    st.binary(min_size=1),
)
def test_a_chunk_comes_back_as_it_was(seal: Hash, index: int, path: list[Hash], data: bytes) -> None:
    sent = StateChunk(seal, index, tuple(path), data)
    found = chunk(joined(sent))
    assert replace(found, data=bytes(found.data)) == sent


def test_the_largest_chunk_fits_and_a_larger_or_empty_one_does_not() -> None:
    path = (ZERO,) * 20
    largest = StateChunk(ZERO, MAX_CHUNKS - 1, path, bytes(CHUNK_BYTES))
    assert len(joined(largest)) <= PAYLOAD_LIMITS["state"]
    assert len(chunk(joined(largest)).data) == CHUNK_BYTES
    refused(lambda: chunk(joined(replace(largest, data=bytes(CHUNK_BYTES + 1)))), "limit")
    refused(lambda: chunk(joined(replace(largest, data=b""))), "0 bytes")
    refused(lambda: chunk(joined(replace(largest, path=(ZERO,) * 33))), "malformed state")
    refused(lambda: chunk(joined(replace(largest, index=MAX_CHUNKS))), "index is not")
    refused(lambda: chunk(b"\xff" * 100), "cut short")
