"""The table of everything that reads bytes from a peer, a disk, a person or another process, and what it may raise."""

from __future__ import annotations

import base64
from functools import cache
from typing import TYPE_CHECKING

import msgpack
import numpy as np

from dht.certificate import CERTIFICATE_BYTES, owner
from dht.handshake import HELLO_LIMIT, Hello, decode_hello, encode_hello
from dht.limits import RECORD_BYTES
from dht.records import RECORD_LIMIT, PeerRecord, decode_record, encode_record
from protocols import invitation
from protocols.blobs import BUSY, HERE, AskBlob, Reply, decode_manifest, encode_manifest
from protocols.canonical import pack
from protocols.chain_payloads import AskChain, ChainReply
from protocols.compression import CODECS, get_codec
from protocols.errors import ConfigError, RemoteError
from protocols.frames import HEADER_LIMIT, PAYLOAD_LIMITS, Header, decode_header, encode_header
from protocols.ids import digest
from protocols.manifest import render, run_id
from protocols.manifest_text import TEXT_LIMIT, parse
from protocols.payloads import Digest, Have, Piece, Pieces, Want
from protocols.punch import Punch
from protocols.reach import ELSEWHERE, PROVEN, AskReach, Outcome, ReachReply
from protocols.state_payloads import LeaveState, StateChunk, StateQueue, WantState
from protocols.statements import MAX_RAW

from . import examples as ex
from .decoder import KIB, Decoder
from .disk import files, processes

if TYPE_CHECKING:
    from collections.abc import Callable

ME = ex.ME.peer
SIZES = (160, 160, 64)
"""Bytes of the encoded parts in a frame of parts."""


@cache
def table() -> tuple[Decoder, ...]:
    """Every decoder; those that read files share one temporary folder."""
    return (
        *_frames(),
        *_statements(),
        *_payloads(),
        *_manifests(),
        *_directory(),
        *_people(),
        *files(),
        *processes(),
    )


def _frames() -> list[Decoder]:
    header = tuple(encode_header(Header(kind, ex.RUN, size))[4:] for kind, size in (("parts", 1000), ("ping", 0)))
    hello = (
        encode_hello(Hello(ex.RUN, "murmuration 0.1.0"))[4:],
        encode_hello(Hello(ex.RUN, "x", refusal="private run"))[4:],
    )
    shown = (ex.certificate(),)
    return [
        Decoder("certificate", owner, (ValueError,), shown, CERTIFICATE_BYTES),
        Decoder("header", lambda raw: decode_header(raw, run=ex.RUN, peer=ME), (RemoteError,), header, HEADER_LIMIT),
        Decoder("hello", lambda raw: decode_hello(raw, peer=ME), (RemoteError,), hello, HELLO_LIMIT),
    ]


def _statements() -> list[Decoder]:
    """As they travel; and, since a liar can sign what it likes, each kind's bytes signed as they are."""
    encoded = tuple(ex.say(each).encode() for each in ex.bodies())
    found = [Decoder("statement", _statement, (RemoteError,), encoded, PAYLOAD_LIMITS["statement"], 80)]
    for body in ex.bodies():
        raw = (ex.SCOPE.signed_bytes(body),)
        found.append(Decoder(f"signed {body.kind}", _signed, (RemoteError,), raw, MAX_RAW, 80))
    return found


def _statement(raw: bytes) -> object:
    statement = ex.SCOPE.decode(raw, sender=ME)
    return statement.hash, statement.encode(), statement.body.slot()


def _signed(raw: bytes) -> object:
    return _statement(pack({"peer": ME, "raw": raw, "signature": ex.ME.sign(raw)}))


def _payloads() -> list[Decoder]:
    paths = (ex.ONE, ex.TWO)
    pieces = Pieces(ex.ONE, ME, tuple(Piece(k, bytes(size), paths, 1.5) for k, size in enumerate(SIZES)))
    chunk = StateChunk(ex.ONE, 3, paths, bytes(100))
    have = Have(ex.ONE, b"12345678" * 5, again=True)
    stated = (StateQueue(ex.ONE, 3).encode(), StateQueue(ex.ONE, None).encode())
    asks = (AskBlob(ex.ONE).encode(), AskBlob(ex.TWO, 1 << 20, 1 << 20).encode())
    replies = (Reply(HERE, size=1 << 20).encode(), Reply(BUSY, position=64).encode())
    reach = AskReach(("/ip4/203.0.113.5/tcp/4001", "/ip6/2001:db8::1/tcp/9"))
    found = zip(reach.addresses, (PROVEN, ELSEWHERE), strict=True)
    reached = ReachReply("/ip4/203.0.113.5/tcp/50000", tuple(Outcome(*each) for each in found))
    offers = (Punch("/ip4/8.8.8.8/udp/4001/quic-v1").encode(), Punch().encode())
    kinds: list[tuple[str, Callable[[bytes], object], tuple[bytes, ...]]] = [
        ("parts", lambda raw: Pieces.decode(raw, SIZES, sender=ME), (b"".join(map(bytes, pieces.encode())),)),
        ("want", lambda raw: Want.decode(raw, sender=ME), (Want(ex.ONE, (0, 1, 2)).encode(),)),
        ("digest", lambda raw: Digest.decode(raw, sender=ME), (Digest(ex.ONE, bytes(32)).encode(),)),
        ("have", lambda raw: Have.decode(raw, sender=ME).held, (have.encode(),)),
        ("ask-chain", lambda raw: AskChain.decode(raw, sender=ME), (ex.ask_chain(),)),
        ("chain", lambda raw: ChainReply.decode(raw, ex.SCOPE, sender=ME), ex.chains()),
        ("want-state", lambda raw: WantState.decode(raw, sender=ME), (WantState(ex.ONE, (0, 5)).encode(),)),
        ("leave-state", lambda raw: LeaveState.decode(raw, sender=ME), (LeaveState(ex.ONE).encode(),)),
        ("state-queue", lambda raw: StateQueue.decode(raw, sender=ME), stated),
        ("state", lambda raw: StateChunk.decode(raw, sender=ME), (b"".join(map(bytes, chunk.encode())),)),
        ("ask-blob", lambda raw: AskBlob.decode(raw, sender=ME), asks),
        ("blob", lambda raw: Reply.decode(raw, sender=ME), replies),
        ("ask-reach", lambda raw: AskReach.decode(raw, sender=ME), (reach.encode(), AskReach(()).encode())),
        ("punch", lambda raw: Punch.decode(raw, sender=ME), offers),
        ("reach", lambda raw: ReachReply.decode(raw, reach, sender=ME), (reached.encode(),)),
    ]
    codecs = [
        Decoder(f"codec {name}", _codec(name), (ValueError,), (get_codec(name).encode(ex.vector()),), 64 * KIB, 8)
        for name in CODECS
    ]
    return [*(Decoder(n, run, (RemoteError,), seeds, PAYLOAD_LIMITS[n], 80) for n, run, seeds in kinds), *codecs]


def _codec(name: str) -> Callable[[bytes], object]:
    def decode(raw: bytes) -> object:
        values = get_codec(name).decode(raw, ex.VALUES)
        assert values.shape == (ex.VALUES,) and np.isfinite(values).all()
        return values

    return decode


def _manifests() -> list[Decoder]:
    texts = tuple(render(each).encode() for each in ex.manifests())
    frames = tuple(b"".join(map(bytes, encode_manifest(each))) for each in ex.manifests())

    def of_text(raw: bytes) -> object:
        manifest = parse(raw.decode("utf-8", "replace"))
        assert parse(render(manifest)) == manifest
        return manifest

    def own_hash(raw: bytes) -> object:
        """The frame of whoever made the run: its id is whatever the bytes hash to."""
        from blake3 import blake3

        size = int.from_bytes(raw[:4], "little")
        return decode_manifest(raw, blake3(raw[4 + size :]).digest(), sender=ME)

    run = run_id(ex.manifests()[0])
    limit = PAYLOAD_LIMITS["manifest"]
    return [
        Decoder("manifest text", of_text, (ConfigError,), texts, TEXT_LIMIT, 400, 1 << 20),
        Decoder("manifest", lambda raw: decode_manifest(raw, run, sender=ME), (RemoteError,), frames[:1], limit, 80),
        Decoder("manifest of a hostile run", own_hash, (RemoteError,), frames, limit, 200, 1 << 20),
    ]


def _directory() -> list[Decoder]:
    address = f"/ip4/203.0.113.5/tcp/4001/p2p/{ME}"
    record = PeerRecord(ex.RUN, ME, (address,), ("contributor",), "0.1.0", 12, 1_700_000_000_000, 1_700_000_600)
    encoded = encode_record(record, ex.ME.sign)
    inner = msgpack.packb(msgpack.unpackb(encoded)["record"])

    def signed(raw: bytes) -> object:
        body = b"\x82\xa6record" + raw + b"\xa9signature" + msgpack.packb(ex.ME.sign(b"murmur/1/peer-record\0" + raw))
        return decode_record(body, source=ME)

    return [
        Decoder("record", lambda raw: decode_record(raw, source=ME), (RemoteError,), (encoded,), RECORD_LIMIT, 80),
        Decoder("signed record", signed, (RemoteError,), (inner,), RECORD_LIMIT, 80),
        Decoder(
            "value for hivemind", _loaded, (ValueError,), (_dictionary(encoded), msgpack.packb(ME)), RECORD_BYTES, 80
        ),
        Decoder("stored record", _validated, (), (_dht_value(ME, encoded),), RECORD_LIMIT, 80),
    ]


def _dht_value(owner: str, value: bytes) -> bytes:
    """Subkey and value as hivemind hands them over, one after the other behind a byte for the first one's length."""
    subkey, packed = (bytes(msgpack.packb(each)) for each in (owner, value))
    return bytes([len(subkey)]) + subkey + packed


def _dictionary(record: bytes) -> bytes:
    inner = [2**63 - 1, 1.7e9, [[ME, msgpack.packb(record), 1.7e9]]]
    return bytes(msgpack.packb(msgpack.ExtType(0x50, msgpack.packb(inner))))


def _loaded(raw: bytes) -> object:
    from dht.serializer import BoundedSerializer

    return BoundedSerializer.loads(raw)


def _validated(raw: bytes) -> object:
    from hivemind.dht.validation import DHTRecord

    validator = _validator()
    subkey, value = raw[1 : 1 + raw[0]] if raw else b"", raw[1 + raw[0] :] if raw else b""
    return validator.validate(DHTRecord(validator._key, subkey, value, 1_700_000_600.0))


@cache
def _validator():  # type: ignore[no-untyped-def]
    from dht.validator import RecordValidator

    return RecordValidator(ex.RUN, 600.0, lambda: 1_700_000_000.0)


def _people() -> list[Decoder]:
    """What somebody pastes."""
    peers = (f"/ip4/203.0.113.5/tcp/4001/p2p/{ME}", f"/dns/example.org/tcp/4001/p2p/{ex.OTHER.peer}")
    found = invitation.Invitation(ex.RUN, peers, invitation.Anchor(12, ex.ONE))
    line = invitation.encode(found)
    digits = line.removeprefix("murmur1")
    whole = base64.b32decode(digits.upper() + "=" * (-len(digits) % 8))
    body = whole[2 : 2 + int.from_bytes(whole[:2], "big")]

    def checked(raw: bytes) -> object:
        check = digest(b"murmur/1/invitation", raw)[:4]
        text = base64.b32encode(len(raw).to_bytes(4, "big")[-2:] + raw + check).decode().rstrip("=").lower()
        return invitation.decode("murmur1" + text)

    def decode(raw: bytes) -> object:
        return invitation.decode(raw.decode("utf-8", "replace"))

    limit = invitation.MAX_CHARS
    return [
        Decoder("invitation", decode, (ConfigError,), (line.encode(), line.upper().encode()), limit, 80),
        Decoder("invitation with its check", checked, (ConfigError,), (body,), limit, 80),
    ]
