"""Signed peer records and the validator that guards the directory."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht import records as records_module
from dht import validator as validator_module
from dht.records import RECORD_LIMIT, PeerRecord, decode_record, encode_record, expiration_of, key_of, next_sequence
from dht.validator import RecordValidator, make_room
from peer.identity import Identity
from protocols import signing
from protocols.canonical import pack, unpack
from protocols.errors import LocalError, RemoteError
from protocols.ids import PeerId

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = bytes(range(32))
NOW = 1_700_000_000
ALICE, MALLORY = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
RECORD = PeerRecord(
    run=RUN,
    peer=ALICE.peer,
    addresses=(f"/ip4/192.168.1.7/tcp/4001/p2p/{ALICE.peer}",),
    roles=("trainer",),
    version="0.1.0",
    head_round=12,
    sequence=NOW * 1000,
    expires=NOW + 600,
)


def _validator() -> RecordValidator:
    return RecordValidator(RUN, 600, lambda: NOW)


def _entry(record: PeerRecord, sign: Callable[[bytes], bytes] = ALICE.sign, **changes: Any) -> Any:
    """The record as hivemind shows it to a validator."""
    from hivemind.dht.routing import DHTID  # noqa: PLC0415
    from hivemind.dht.validation import DHTRecord  # noqa: PLC0415

    fields = {
        "key": DHTID.generate(source=key_of(record.run)).to_bytes(),
        "subkey": msgpack.packb(record.peer),
        "value": msgpack.packb(encode_record(record, sign)),
        "expiration_time": expiration_of(record),
    }
    return DHTRecord(**(fields | changes))


def test_record_round_trip() -> None:
    assert decode_record(encode_record(RECORD, ALICE.sign), source="test") == RECORD


@given(st.integers(0, len(encode_record(RECORD, ALICE.sign)) - 1), st.integers(1, 255))
def test_any_changed_byte_is_refused(position: int, change: int) -> None:
    encoded = bytearray(encode_record(RECORD, ALICE.sign))
    encoded[position] ^= change
    with pytest.raises(RemoteError, match="^test: "):
        decode_record(bytes(encoded), source="test")


@given(st.binary(max_size=300))
def test_garbage_is_refused(raw: bytes) -> None:
    with pytest.raises(RemoteError, match="^test: "):
        decode_record(raw, source="test")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"sequence": -1}, "number out of range"),
        ({"sequence": True}, "number out of range"),
        ({"expires": 2**63}, "number out of range"),
        ({"head_round": 1.0}, "number out of range"),
        ({"run": RUN[:31]}, "names no run"),
        ({"addresses": ["x"] * 17}, "longer than 16|exceeds max_array_len"),
        ({"addresses": "x"}, "list longer than 16"),
        ({"addresses": ["x" * 513]}, "longer than 512"),
        ({"roles": [1]}, "not printable"),
        ({"version": "0.1\n"}, "not printable"),
        ({"peer": MALLORY.peer}, "is not signed by it"),
        ({"peer": "nobody"}, "is not signed by it"),
        ({"extra": 1}, "missing or unknown fields"),
    ],
)
def test_signed_nonsense_is_refused(change: dict[str, Any], complaint: str) -> None:
    body: Any = unpack(encode_record(RECORD, ALICE.sign))
    body["record"] |= change
    body["signature"] = ALICE.sign(b"murmur/1/peer-record\0" + pack(body["record"]))
    with pytest.raises(RemoteError, match=complaint):
        decode_record(pack(body), source="test")


def test_too_large_is_refused_in_words_by_both_sides() -> None:
    large = replace(RECORD, addresses=tuple("/dns4/" + "x" * 1100 for _ in range(16)))
    with pytest.raises(
        LocalError, match=rf"a peer record of \d+ bytes is larger than the directory takes \({RECORD_LIMIT}"
    ):
        encode_record(large, ALICE.sign)
    with pytest.raises(RemoteError, match=f"peer record of {RECORD_LIMIT + 1} bytes, limit {RECORD_LIMIT}"):
        decode_record(bytes(RECORD_LIMIT + 1), source="test")
    with pytest.raises(LocalError, match="longer than 64"):
        encode_record(replace(RECORD, version="x" * 65), ALICE.sign)


def test_sequence_grows_when_the_clock_is_set_back() -> None:
    assert next_sequence(0, 5_000) == 5_000
    assert next_sequence(5_000, 4_000) == 5_001


def test_validator_takes_newer_records_and_refuses_older_ones() -> None:
    validator = _validator()
    newer = replace(RECORD, sequence=RECORD.sequence + 1)
    assert validator.validate(_entry(RECORD)) and validator.validate(_entry(newer))
    assert validator.validate(_entry(newer))  # what is stored is shown again
    assert not validator.validate(_entry(RECORD))
    assert validator.read(ALICE.peer, encode_record(RECORD, ALICE.sign)) == newer
    assert _validator().validate(_entry(RECORD))


def _answer(entries: list[Any]) -> Any:
    """What hivemind makes of an answer that holds all these."""
    from hivemind.dht.storage import DictionaryDHTValue  # noqa: PLC0415

    found = DictionaryDHTValue()
    for each in entries:
        found.store(msgpack.unpackb(each.subkey), each.value, each.expiration_time)
    return found


def test_an_answer_costs_few_signatures_and_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validator_module, "SIGNATURES", 3)
    checked = list[str]()

    def verify(peer: str, signed: bytes, signature: bytes) -> bool:
        checked.append(peer)
        return signing.verify(peer, signed, signature)

    monkeypatch.setattr(records_module, "verify", verify)
    now = int(time.time())
    keys = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 12)]
    records = [replace(RECORD, peer=key.peer, sequence=now * 1000, expires=now + 600) for key in keys]
    entries = [_entry(record, key.sign) for record, key in zip(records, keys, strict=True)]
    members = frozenset({PeerId(key.peer) for key in keys[:2]})
    validator = RecordValidator(RUN, 600, members=lambda: members)
    token = validator_module.reading.set(True)
    for more in (2 + 3, 3, 3, 0):
        before, answer = len(checked), _answer(entries)
        assert validator.screen(entries[0].key, answer)
        assert len(checked) == before + more and {owner for owner, _ in answer.items()} == set(checked)
    assert len(checked) == len(set(checked)) == len(keys)
    for record, entry in zip(records, entries, strict=True):
        assert validator.read(record.peer, msgpack.unpackb(entry.value)) == record
    assert len(checked) == len(keys)
    forged = _entry(replace(records[0], head_round=99), MALLORY.sign)
    assert not validator.screen(entries[0].key, _answer([forged])), "a member's is always looked at"
    validator_module.reading.reset(token)


def test_full_directory_makes_room_for_newcomers_and_keeps_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """hivemind stores whatever the validator accepts, without a bound of its own. Before, a full one refused."""
    monkeypatch.setattr(validator_module, "RECORDS", 3)
    keys = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 9)]
    records = [replace(RECORD, peer=key.peer) for key in keys]
    member, stored = PeerId(keys[0].peer), list[str | None]()
    validator = RecordValidator(RUN, 600, lambda: now, members=lambda: frozenset({member}), on_store=stored.append)
    now = float(NOW)

    def store(number: int, sequence: int = RECORD.sequence) -> bool:
        return validator.validate(_entry(replace(records[number], sequence=sequence), keys[number].sign))

    assert all(store(number) for number in range(3)) and stored == [None] * 3
    assert store(1, RECORD.sequence + 1), "renewed: now the other stranger is the oldest"
    assert store(3) and stored[-1] == keys[2].peer and validator.refused == 1
    assert store(4) and stored[-1] == keys[1].peer
    token = validator_module.reading.set(True)
    assert store(5), "one newcomer must not spoil a whole answer, which nobody stores"
    validator_module.reading.reset(token)
    assert len(stored) == 6 and validator.refused == 2
    assert store(6) and stored[-1] == keys[3].peer, "the member's is older, and stays"
    now += 601
    fresh = replace(records[7], expires=int(now) + 600)
    assert validator.validate(_entry(fresh, keys[7].sign)) and stored[-1] is None, "those that expired make room"


def test_members_alone_may_exceed_a_full_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validator_module, "RECORDS", 1)
    members = frozenset({PeerId(ALICE.peer), PeerId(MALLORY.peer)})
    validator = RecordValidator(RUN, 600, lambda: NOW, members=lambda: members)
    assert validator.validate(_entry(RECORD))
    assert validator.validate(_entry(replace(RECORD, peer=MALLORY.peer), MALLORY.sign))
    third = Identity.from_seed(bytes([3]) * 32)
    assert not validator.validate(_entry(replace(RECORD, peer=third.peer), third.sign)) and validator.refused == 1


def test_records_are_bounded_in_bytes_too_and_long_ones_push_no_member_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """libp2p's daemon takes no answer above 4 MiB: before, 260 strangers with 16 kB each silenced the directory."""
    monkeypatch.setattr(validator_module, "RECORD_BYTES", 40_000)
    members, stored = frozenset({PeerId(ALICE.peer)}), list[str | None]()
    validator = RecordValidator(RUN, 600, lambda: NOW, members=lambda: members, on_store=stored.append)
    assert validator.validate(_entry(RECORD))
    long = tuple(f"/dns4/{number}/" + "x" * 500 for number in range(16))
    strangers = [Identity.from_seed(bytes([number]) * 32) for number in range(40, 60)]
    for each in strangers:
        assert validator.validate(_entry(replace(RECORD, peer=each.peer, addresses=long), each.sign))
    records, size = validator.gauges()
    assert size.in_use is not None and 30_000 < size.in_use <= 40_000
    assert records.in_use == 1 + len(strangers) - size.refused and size.refused >= len(strangers) - 5
    assert [each for each in stored if each] == [each.peer for each in strangers[: size.refused]], "oldest first"


def test_hivemind_keeps_nothing_of_records_that_gave_way(monkeypatch: pytest.MonkeyPatch) -> None:
    from hivemind.dht.routing import DHTID  # noqa: PLC0415
    from hivemind.dht.storage import DHTLocalStorage  # noqa: PLC0415

    monkeypatch.setattr(validator_module, "RECORDS", 4)
    storage, key, expires = DHTLocalStorage(), DHTID.generate("key"), time.time() + 600
    make_room(storage, key, "nobody")
    for number in range(100):
        make_room(storage, key, f"peer {number - 1}" if number else None)
        assert storage.store(key, b"record", expires + number, subkey=f"peer {number}")
    records = storage.data[key].value
    assert list(records.data) == ["peer 99"]
    assert len(records.expiration_heap) < 10 and len(storage.expiration_heap) < 10
    assert records.get("peer 99").value == b"record"


@pytest.mark.parametrize(
    "entry",
    [
        _entry(RECORD, MALLORY.sign),
        _entry(RECORD, subkey=msgpack.packb(MALLORY.peer)),
        _entry(RECORD, subkey=b""),
        _entry(RECORD, subkey=msgpack.packb(None)),
        _entry(RECORD, value=b""),
        _entry(RECORD, value=msgpack.packb("text")),
        _entry(RECORD, value=msgpack.packb(encode_record(RECORD, ALICE.sign)) + b"\0"),
        _entry(RECORD, value=msgpack.packb(bytes(RECORD_LIMIT + 9))),
        _entry(RECORD, expiration_time=RECORD.expires + 60.0),
        _entry(RECORD, key=bytes(20)),
        _entry(replace(RECORD, expires=NOW + 6000)),
        _entry(replace(RECORD, run=b"z" * 32)),
    ],
)
def test_validator_refuses(entry: Any) -> None:
    assert not _validator().validate(entry)
