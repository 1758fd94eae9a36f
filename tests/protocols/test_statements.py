"""Statements: what is signed, what is refused, and that the sender is the one named."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.identity import Identity
from protocols import messages
from protocols.canonical import Value, pack, unpack
from protocols.errors import RemoteError
from protocols.ids import Hash
from protocols.messages import BODIES, Body, Commit, Contribution, Leg, Ready, ResultRoot, Vote
from protocols.statements import MAX_RAW, Scope, Statement

SCOPE = Scope(b"r" * 32, "model")
ME = Identity.from_seed(b"m" * 32)
OTHER = Identity.from_seed(b"o" * 32)
SENDER = "whoever sent it"

hashes = st.binary(min_size=32, max_size=32).map(Hash)
peers = st.sampled_from([ME.peer, OTHER.peer])
finite = st.floats(allow_nan=False, allow_infinity=False)
views = st.integers(0, messages.MAX_VIEW)
revisions = st.integers(0, messages.MAX_REVISIONS)
legs = st.builds(Leg, hashes, st.integers(0, messages.MAX_STEPS), st.integers(0, messages.MAX_TOKENS))


def tuples(of: st.SearchStrategy[Any], size: int = 5) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=size).map(tuple)


BUILT: dict[str, st.SearchStrategy[Body]] = {
    "commit": st.builds(Commit, hashes, hashes, tuples(legs, 3), st.integers(0, 1 << 32), st.booleans()),
    "ready": st.builds(
        Ready, views, hashes, views, tuples(hashes), st.binary(max_size=32), views, tuples(peers)
    ),
    "roster": st.builds(
        messages.Roster, views, revisions, hashes, tuples(st.binary(max_size=99)), tuples(st.binary(max_size=99)),
        tuples(peers), st.booleans(),
    ),
    "gram": st.builds(messages.Gram, hashes, st.binary(max_size=99), tuples(finite), hashes),
    "freeze": st.builds(messages.Freeze, views, revisions, hashes, tuples(hashes), tuples(peers)),
    "result": st.builds(messages.Result, hashes, tuples(peers), hashes),
    "seal": st.builds(
        messages.Seal, views, hashes, st.integers(1, messages.MAX_VIEW), hashes, st.binary(max_size=32),
        tuples(peers), tuples(hashes),
        tuples(st.builds(Contribution, peers, hashes, st.integers(0, 3 << 48), st.integers(0, 1 << 20), finite)),
        tuples(st.builds(ResultRoot, peers, st.integers(0, messages.MAX_REDUCERS), hashes)), tuples(peers), hashes,
        hashes,
    ),
    "vote": st.builds(Vote, views, hashes),
}  # fmt: skip
EXAMPLES: dict[str, Body] = {
    "commit": Commit(Hash(b"p" * 32), Hash(b"r" * 32), (Leg(Hash(b"b" * 32), 25, 1000),), 7, True),
    "ready": Ready(3, Hash(b"h" * 32), 2, (Hash(b"c" * 32),), b"k" * 32, 1, (OTHER.peer,)),
    "roster": messages.Roster(3, 1, Hash(b"p" * 32), (b"commit",), (b"ready",), (OTHER.peer,), False),
    "gram": messages.Gram(Hash(b"c" * 32), b"\xc0", (1.0, 0.5, 2.0), Hash(b"r" * 32)),
    "freeze": messages.Freeze(3, 1, Hash(b"c" * 32), (Hash(b"g" * 32),), (OTHER.peer,)),
    "result": messages.Result(Hash(b"f" * 32), (OTHER.peer,), Hash(b"r" * 32)),
    "seal": messages.Seal(
        3, Hash(b"p" * 32), 2, Hash(b"c" * 32), Hash(b"f" * 32), (OTHER.peer,), (Hash(b"g" * 32),),
        (Contribution(ME.peer, Hash(b"c" * 32), 1000, 4, 0.25),), (ResultRoot(ME.peer, 1, Hash(b"r" * 32)),),
        (OTHER.peer,), Hash(b"t" * 32), Hash(b"s" * 32),
    ),
    "vote": Vote(3, Hash(b"s" * 32)),
}  # fmt: skip


def forge(outer: dict[str, Value], identity: Identity = ME) -> bytes:
    """Whatever fields, properly signed."""
    raw = pack(outer)
    return pack({"peer": identity.peer, "raw": raw, "signature": identity.sign(raw)})


def signed_fields(body: Body, **changes: Value) -> dict[str, Value]:
    outer = unpack(SCOPE.signed_bytes(body))
    assert isinstance(outer, dict)
    return {**outer, **changes}


def refused(encoded: bytes, match: str = ".") -> None:
    with pytest.raises(RemoteError, match=match) as caught:
        SCOPE.decode(encoded, sender=SENDER)
    assert caught.value.peer == SENDER


def test_every_kind_has_examples() -> None:
    assert set(BODIES) == set(EXAMPLES) == set(BUILT)


@pytest.mark.parametrize("kind", BUILT)
def test_every_kind_comes_back_as_it_was(kind: str) -> None:
    @settings(max_examples=15)
    @given(BUILT[kind])
    def check(body: Body) -> None:
        statement = SCOPE.state(ME.peer, body, ME.sign)
        decoded = SCOPE.decode(statement.encode(), sender=SENDER)
        assert decoded == statement
        assert decoded.hash == statement.hash
        assert pack(decoded.body.to_wire()) == pack(body.to_wire())  # also the sign of zeros

    check()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_statement_with_a_changed_byte_is_refused(kind: str) -> None:
    encoded = SCOPE.state(ME.peer, EXAMPLES[kind], ME.sign).encode()
    SCOPE.decode(encoded, sender=SENDER)
    for place in range(len(encoded)):
        for change in (0x01, 0x80):
            refused(encoded[:place] + bytes([encoded[place] ^ change]) + encoded[place + 1 :])


@pytest.mark.parametrize("kind", ["commit", "vote"])
def test_a_statement_cut_short_or_extended_is_refused(kind: str) -> None:
    encoded = SCOPE.state(ME.peer, EXAMPLES[kind], ME.sign).encode()
    for length in range(len(encoded)):
        refused(encoded[:length])
    for tail in (b"\x00", b"\xc0", encoded):
        refused(encoded + tail)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_garbage_is_refused(encoded: bytes) -> None:
    refused(encoded)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_signature_is_good_for_one_run_cell_protocol_kind_and_slot(kind: str) -> None:
    body = EXAMPLES[kind]
    SCOPE.decode(forge(signed_fields(body)), sender=SENDER)
    refused(forge(signed_fields(body, run=b"x" * 32)), "another run or cell")
    refused(forge(signed_fields(body, run=b"r" * 31)), "another run or cell")
    refused(forge(signed_fields(body, cell="expert")), "another run or cell")
    refused(forge(signed_fields(body, domain="murmur/2")), "signed for 'murmur/2'")
    refused(forge(signed_fields(body, slot=body.slot()[:-1] + b"\xff")), "wrong slot")
    refused(forge(signed_fields(body, kind="lie")), "unknown kind")
    for other in BODIES:
        if other != kind:
            refused(forge(signed_fields(body, kind=other)), "malformed")
    statement = SCOPE.state(ME.peer, body, ME.sign)
    for scope in (Scope(b"x" * 32, "model"), Scope(b"r" * 32, "expert")):
        with pytest.raises(RemoteError, match="another run or cell"):
            scope.decode(statement.encode(), sender=SENDER)


WRONG: tuple[Value, ...] = (None, True, -1, 1.5, float("inf"), "text", b"short", [], [[]], {}, 1 << 63)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_missing_unknown_and_wrong_fields_are_refused(kind: str) -> None:
    body = EXAMPLES[kind]
    good = body.to_wire()
    refused(forge(signed_fields(body, fields={**good, "more": 1})), "unknown fields")
    refused(forge(signed_fields(body, fields=list(good.values()))), "not a map")
    for field in fields(body):  # type: ignore[arg-type]
        rest = {key: value for key, value in good.items() if key != field.name}
        refused(forge(signed_fields(body, fields=rest)), "missing fields")
        for wrong in WRONG:
            if type(wrong) is type(good[field.name]) and field.name not in {"parent", "root", "view", "head", "rev"}:
                continue  # it may fit: an empty list of commits
            refused(forge(signed_fields(body, fields={**good, field.name: wrong})), "malformed")
    for key in signed_fields(body):
        outer = signed_fields(body)
        del outer[key]
        refused(forge(outer), "missing fields")
    refused(forge(signed_fields(body, more=1)), "unknown fields")


LIMITS: dict[tuple[str, str], tuple[int, Value]] = {
    ("commit", "legs"): (messages.MAX_LEGS, Leg(Hash(b"b" * 32), 1, 1).to_wire()),
    ("ready", "commits"): (128, b"c" * 32),
    ("ready", "unserved"): (16, OTHER.peer),
    ("roster", "out"): (16, OTHER.peer),
    ("freeze", "out"): (16, OTHER.peer),
    ("result", "out"): (16, OTHER.peer),
    ("seal", "out"): (16, OTHER.peer),
    ("seal", "lost"): (messages.MAX_VOTERS, OTHER.peer),
    ("roster", "commits"): (128, b"x"),
    ("roster", "readys"): (128, b"x"),
    ("gram", "gram"): (64 * 65 // 2, 1.0),
    ("freeze", "grams"): (16, b"g" * 32),
    ("seal", "grams"): (16, b"g" * 32),
    ("seal", "contributions"): (128, Contribution(ME.peer, Hash(b"c" * 32), 1, 1, 1.0).to_wire()),
    ("seal", "results"): (16 * 16, ResultRoot(ME.peer, 1, Hash(b"r" * 32)).to_wire()),
}


@pytest.mark.parametrize(("kind", "field"), LIMITS)
def test_lists_end_exactly_at_their_limits(kind: str, field: str) -> None:
    limit, item = LIMITS[kind, field]
    good = EXAMPLES[kind].to_wire()
    full: list[Value] = [item] * limit

    def made(value: list[Value]) -> bytes:
        wire = {**good, field: value}
        return forge(signed_fields(EXAMPLES[kind], fields=wire, slot=slot_of(kind, wire)))

    SCOPE.decode(made(full), sender=SENDER)
    refused(made([*full, item]), "at most")


def slot_of(kind: str, wire: dict[str, Value]) -> bytes:
    """The slot of a body with these fields, of a result also where it has one reducer too many."""
    body = EXAMPLES[kind]
    return replace(body, out=tuple(wire["out"])).slot() if kind == "result" else body.slot()  # type: ignore


def test_what_a_roster_must_carry_fits_into_it() -> None:
    """Else one peer could sign something valid that makes the coordinator's roster malformed."""
    hash_ = Hash(b"\xff" * 32)
    leg = Leg(hash_, messages.MAX_STEPS, messages.MAX_TOKENS)
    scope = Scope(b"r" * 32, "c" * 64)
    largest = (
        Commit(hash_, hash_, (leg,) * messages.MAX_LEGS, 1 << 32, True),
        Ready(messages.MAX_VIEW, hash_, messages.MAX_VIEW, (hash_,) * 128, hash_, messages.MAX_VIEW, (ME.peer,) * 16),
    )
    sizes = []
    for body in largest:
        statement = scope.state(ME.peer, body, ME.sign)
        sizes.append(len(scope.decode(statement.encode(), sender=SENDER).encode()))
    assert max(sizes) <= messages.MAX_STATEMENT
    assert 64 * sum(sizes) < MAX_RAW
    tokens = sum(each.tokens for each in largest[0].legs)
    Contribution.from_wire(Contribution(ME.peer, hash_, tokens, 1, 1.0).to_wire())


def test_nobody_signs_for_somebody_else() -> None:
    mine = SCOPE.state(ME.peer, EXAMPLES["vote"], ME.sign)
    refused(replace(mine, peer=OTHER.peer).encode(), f"vote of {OTHER.peer} has a wrong signature")
    refused(SCOPE.state(OTHER.peer, EXAMPLES["vote"], ME.sign).encode(), "wrong signature")
    refused(replace(mine, peer="12D3KooWnobody").encode(), "not a peer id")  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [0, 1, 63, 65, 128])
def test_signatures_have_64_bytes(length: int) -> None:
    statement = SCOPE.state(ME.peer, EXAMPLES["vote"], ME.sign)
    signature = (statement.signature * 2)[:length]
    refused(replace(statement, signature=signature).encode(), "signature")


def test_a_signature_with_s_above_the_order_is_refused() -> None:
    """Ed25519 signatures (R, S) and (R, S + L) would both hold where S is not reduced (RFC 8032, 5.1.7)."""
    statement = SCOPE.state(ME.peer, EXAMPLES["vote"], ME.sign)
    order = (1 << 252) + 27742317777372353535851937790883648493
    bent = int.from_bytes(statement.signature[32:], "little") + order
    refused(replace(statement, signature=statement.signature[:32] + bent.to_bytes(32, "little")).encode(), "signature")


def test_the_hash_names_signer_and_bytes_but_not_the_signature() -> None:
    statement = SCOPE.state(ME.peer, EXAMPLES["vote"], ME.sign)
    assert replace(statement, signature=b"x" * 64).hash == statement.hash
    assert replace(statement, peer=OTHER.peer).hash != statement.hash
    assert replace(statement, raw=statement.raw + b"x").hash != statement.hash


def test_refusals_do_not_repeat_what_they_refuse() -> None:
    outer = signed_fields(EXAMPLES["vote"], fields={letter * 9999: 1 for letter in "abcdefgh"})
    with pytest.raises(RemoteError) as caught:
        SCOPE.decode(forge(outer), sender=SENDER)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "item", [b"\xdd\x00\x00\x10\x00", b"\xdd\x7f\xff\xff\xff", b"\x90", b"\xc0", b"\xc6\x7f\xff\xff\xff"]
)
def test_a_huge_declaration_allocates_little(item: bytes) -> None:
    """Signed properly, at the size limit of a frame: lists in lists, empty lists, byte strings of 2 GiB."""
    raw = b"\xdd\x00\x07\xff\xf0" + (item * (1 << 19))[: 1 << 19]
    for encoded in (raw, pack({"peer": ME.peer, "raw": raw[: MAX_RAW - 200], "signature": b"s" * 64})):
        tracemalloc.start()
        refused(encoded, "malformed")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 20 << 20


def test_floats_keep_their_bits() -> None:
    body = replace(EXAMPLES["gram"], gram=(-0.0, 5e-324, 1.7976931348623157e308))  # type: ignore[type-var]
    decoded = SCOPE.decode(SCOPE.state(ME.peer, body, ME.sign).encode(), sender=SENDER)
    assert isinstance(decoded, Statement)
    assert isinstance(decoded.body, messages.Gram)
    assert struct.pack("<3d", *decoded.body.gram) == struct.pack("<3d", -0.0, 5e-324, 1.7976931348623157e308)
