"""Frames of the blob protocol: what is encoded comes back, anything else is refused, a reply keeps to its size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from peer import corpus
from peer.identity import Identity
from protocols.blobs import (
    BUSY,
    HERE,
    LEAST,
    MAX_BLOB,
    MAX_POSITION,
    MAX_WAITS,
    NONE,
    TURN,
    WAIT,
    AskBlob,
    Incoming,
    Reply,
    decode_manifest,
    encode_manifest,
    needed_blobs,
)
from protocols.canonical import Value, pack
from protocols.errors import ConfigError, RemoteError
from protocols.frames import PAYLOAD_LIMITS
from protocols.ids import Hash
from protocols.manifest import ShardEntry, run_id, sign, to_plain
from protocols.manifest_defaults import Choices, default_manifest

SENDER = "12D3KooWSender"
HASH = Hash(bytes(range(32)))
KEYS = [Identity.from_seed(bytes([number]) * 32) for number in (1, 2)]
MANIFEST = sign(
    default_manifest(Choices(), founders=[KEYS[0].peer], shards=corpus.SHARDS[:2]), KEYS[0].peer, KEYS[0].sign
)

hashes = st.binary(min_size=32, max_size=32).map(Hash)


@given(hashes, st.integers(0, MAX_BLOB), st.integers(1, MAX_BLOB))
def test_requests_come_back(digest: Hash, offset: int, length: int) -> None:
    ask = AskBlob(digest, offset, length)
    assert AskBlob.decode(ask.encode(), sender=SENDER) == ask
    assert len(ask.encode()) <= PAYLOAD_LIMITS["ask-blob"]


@given(st.sampled_from([HERE, WAIT, TURN, NONE, BUSY]), st.integers(0, MAX_BLOB), st.integers(0, MAX_POSITION))
def test_replies_come_back(word: str, size: int, position: int) -> None:
    reply = Reply(word, size, position)
    assert Reply.decode(reply.encode(), sender=SENDER) == reply
    assert len(reply.encode()) <= PAYLOAD_LIMITS["blob"]


@given(st.binary(max_size=300))
def test_anything_else_is_refused_by_name(payload: bytes) -> None:
    for decode in (AskBlob.decode, Reply.decode):
        try:
            decoded = decode(payload, sender=SENDER)
        except RemoteError as error:
            assert error.peer == SENDER
        else:
            assert decoded.encode() == payload
    with pytest.raises(RemoteError):
        decode_manifest(payload, HASH, sender=SENDER)


@pytest.mark.parametrize(
    "change",
    [
        {"hash": b"short"},
        {"offset": -1},
        {"offset": MAX_BLOB + 1},
        {"length": 0},
        {"length": True},
        {"length": 1.0},
        {"more": 1},
    ],
    ids=str,
)
def test_a_bent_request_is_refused(change: dict[str, object]) -> None:
    fields = {"hash": HASH, "offset": 0, "length": 1} | change
    with pytest.raises(RemoteError, match=f"{SENDER}: malformed ask-blob"):
        AskBlob.decode(pack(fields), sender=SENDER)  # type: ignore[arg-type]


@given(st.integers(1, 10 * LEAST), st.data())
def test_a_reply_ends_with_the_last_byte_however_it_is_cut(size: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, size - 1))
    incoming = Incoming(AskBlob(HASH, offset), size, SENDER)
    incoming.take("blob", Reply(HERE, size).encode())
    taken = 0
    while incoming.left:
        piece = data.draw(st.integers(min(LEAST, incoming.left), incoming.left))
        assert incoming.take("bytes", bytes(piece)) == bytes(piece)
        taken += piece
    assert taken == size - offset
    with pytest.raises(RemoteError, match="1 bytes of a blob where 0 were to come"):
        incoming.take("bytes", b"x")


def _reply(word: str, size: int = 0) -> tuple[str, bytes]:
    return "blob", Reply(word, size).encode()


BYTES = ("bytes", bytes(LEAST))
SIZE = 3 * LEAST


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ([BYTES], "4096 bytes of a blob where"),
        ([_reply(HERE, SIZE - 1)], "has a blob of 12287 bytes where the run names 12288"),
        ([_reply(HERE, MAX_BLOB)], "where the run names 12288"),
        ([_reply(HERE, SIZE), ("bytes", bytes(SIZE + 1))], "12289 bytes of a blob where 12288"),
        ([_reply(HERE, SIZE), ("bytes", b"")], "0 bytes of a blob"),
        ([_reply(HERE, SIZE), ("bytes", bytes(LEAST - 1))], "4095 bytes of a blob"),
        ([_reply(HERE, SIZE), _reply(HERE, SIZE)], "says here among the bytes"),
        ([_reply(HERE, SIZE), _reply(TURN)], "says turn among the bytes"),
        ([_reply(HERE, SIZE), BYTES, _reply(NONE)], "says none among the bytes"),
        ([_reply(HERE, SIZE), _reply(WAIT)], "says wait among the bytes"),
        ([_reply(WAIT), _reply(TURN)], "says turn before the bytes"),
        ([("manifest", b"")], "a manifest frame in place of a blob"),
        ([("blob", b"\x80")], "malformed blob"),
        ([_reply(WAIT)] * (MAX_WAITS + 1), "tells 257 times"),
        ([("blob", pack({"word": "perhaps", "size": 0, "position": 0}))], "word is no known word"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_honest_donor_sends_is_refused(frames: list[tuple[str, bytes]], complaint: str) -> None:
    incoming = Incoming(AskBlob(HASH), SIZE, SENDER)
    for frame in frames[:-1]:
        incoming.take(*frame)
    with pytest.raises(RemoteError, match=complaint):
        incoming.take(*frames[-1])


def test_waiting_and_giving_way_are_no_offence() -> None:
    incoming = Incoming(AskBlob(HASH), SIZE, SENDER)
    for position in (3, 2, 1):
        assert incoming.take("blob", Reply(WAIT, position=position).encode()) == Reply(WAIT, position=position)
    incoming.take(*_reply(HERE, SIZE))
    incoming.take(*BYTES)
    assert incoming.take(*_reply(TURN)) == Reply(TURN)
    assert incoming.left == SIZE - LEAST


def test_a_range_ends_where_it_was_asked_to() -> None:
    incoming = Incoming(AskBlob(HASH, offset=LEAST, length=10), SIZE, SENDER)
    incoming.take(*_reply(HERE, SIZE))
    assert incoming.left == 10
    assert Incoming(AskBlob(HASH, offset=SIZE + 1), SIZE, SENDER).left == 0


def _frame() -> bytes:
    return b"".join(encode_manifest(MANIFEST))


def test_a_manifest_comes_back_with_its_signature() -> None:
    run = run_id(MANIFEST)
    assert decode_manifest(_frame(), run, sender=SENDER) == MANIFEST
    body = encode_manifest(MANIFEST)[1]
    assert blake3(body).digest() == run, "the run id is the hash of what travels"


def test_another_run_s_manifest_is_refused_before_it_is_read() -> None:
    with pytest.raises(RemoteError, match="another manifest"):
        decode_manifest(_frame(), HASH, sender=SENDER)
    with pytest.raises(RemoteError, match="cut short"):
        decode_manifest(_frame()[:50], run_id(MANIFEST), sender=SENDER)
    with pytest.raises(RemoteError, match="another manifest"):
        decode_manifest(_frame() + b"\x00", run_id(MANIFEST), sender=SENDER)


def test_a_manifest_that_no_founder_signed_is_refused() -> None:
    body, run = encode_manifest(MANIFEST)[1], run_id(MANIFEST)

    def sealed(fields: dict[str, Value]) -> bytes:
        seal = pack(fields)
        return len(seal).to_bytes(4, "little") + seal + bytes(body)

    other: dict[str, Value] = {"peer": KEYS[1].peer, "signature": KEYS[1].sign(b"anything")}
    with pytest.raises(RemoteError, match="not a founder"):
        decode_manifest(sealed(other), run, sender=SENDER)
    with pytest.raises(RemoteError, match="does not fit"):
        decode_manifest(sealed(other | {"peer": KEYS[0].peer}), run, sender=SENDER)
    with pytest.raises(RemoteError, match="signature is not a signature of 64 bytes"):
        decode_manifest(sealed({"peer": KEYS[0].peer, "signature": b""}), run, sender=SENDER)
    with pytest.raises(ConfigError, match="not signed"):
        encode_manifest(replace(MANIFEST, signature=None))


def test_bytes_that_hash_to_the_run_must_still_be_a_manifest() -> None:
    """Whoever makes a run chooses its id: canonical bytes that parse to another id are nobody's manifest."""
    seal = bytes(encode_manifest(MANIFEST)[0])
    plain = to_plain(replace(MANIFEST, signature=None))
    inner = {**plain["inner"], "lr": "25e-4"}  # type: ignore[dict-item]
    for bent, complaint in (
        (pack({**plain, "inner": inner}), "not in canonical form"),
        (pack({**plain, "model": {}}), "is missing"),
        (pack([1]), "is not a map"),
        (b"\xc1", "cannot be used"),
    ):
        with pytest.raises(RemoteError, match=complaint):
            decode_manifest(seal + bent, blake3(bent).digest(), sender=SENDER)


def test_a_blob_is_needed_once_whatever_it_is_called() -> None:
    one, two, three = "11" * 32, "22" * 32, "33" * 32
    shards = (ShardEntry("a", 5, one), ShardEntry("b", 5, one), ShardEntry("c", 7, two))
    manifest = replace(MANIFEST, data=replace(MANIFEST.data, shards=shards))
    assert [(entry.id, entry.hash) for entry in needed_blobs(manifest)] == [("a", one), ("c", two)]
    liar = (*shards, ShardEntry("d", 8, one), ShardEntry("e", 1, three))
    with pytest.raises(ConfigError, match="two sizes"):
        needed_blobs(replace(manifest, data=replace(manifest.data, shards=liar)))
