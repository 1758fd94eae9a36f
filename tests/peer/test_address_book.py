"""The book of addresses: what is met is found after a restart, bounded, members first; a damaged book costs itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.address_book import FILE_BYTES, KEPT, KEPT_ADDRESSES, AddressBook
from protocols.ids import peer_id
from protocols.invitation import Invitation, encode

if TYPE_CHECKING:
    from pathlib import Path

PEERS = [peer_id(number.to_bytes(32, "big")) for number in range(1, 101)]
LINE = encode(Invitation(bytes(32), ()))


def address(number: int, port: int = 4001) -> str:
    return f"/ip4/203.0.113.{number}/tcp/{port}/p2p/{PEERS[number]}"


def test_what_was_met_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "run" / "peers.json"
    book = AddressBook(path)
    assert book.peers() == [] and book.port == 0
    book.port, book.invitation = 4001, LINE
    book.met(PEERS[1], [address(1), address(1, 4002)], member=False, now=100.9)
    book.met(PEERS[2], [address(2)], member=True, now=50)
    book.met(PEERS[3], [address(4), "nonsense"], member=True, now=60)
    book.save()
    again = AddressBook(path)
    assert again.peers() == book.peers() and (again.port, again.invitation) == (4001, LINE)
    assert [(each.peer, each.seen) for each in again.peers()] == [(PEERS[2], 50), (PEERS[1], 100)]
    assert again.addresses(16) == [address(2), address(1), address(1, 4002)]
    assert not path.with_name("peers.json.new").exists()


def test_members_first_then_those_met_last_and_no_more_than_a_bound(tmp_path: Path) -> None:
    book = AddressBook(tmp_path / "peers.json")
    for number in range(KEPT + 20):
        many = [address(number, port) for port in range(1, 10)]
        book.met(PEERS[number], many, member=number < 10, now=number)
    peers = book.peers()
    assert len(peers) == KEPT
    assert [each.peer for each in peers[:10]] == PEERS[:10][::-1]
    assert [each.peer for each in peers[10:]] == PEERS[30 : KEPT + 20][::-1]
    assert all(len(each.addresses) == KEPT_ADDRESSES for each in peers)
    assert book.addresses(16) == [each.addresses[0] for each in peers[:16]]
    book.met(PEERS[0], [address(0, 9)], member=True, now=1000)
    assert book.peers()[0].addresses == (address(0, 9),) and len(book.peers()) == KEPT


def known(**changes: Any) -> dict[str, Any]:
    return {"peer": PEERS[1], "addresses": [address(1)], "seen": 5, "member": True, **changes}


def document(**changes: Any) -> str:
    return json.dumps({"schema": 1, "port": 1, "invitation": "", "peers": [known()], **changes})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        "\udcff",
        document(schema=2),
        document(more=1),
        document(port=65536),
        document(port=True),
        document(invitation="murmur1abc"),
        document(invitation=7),
        document(peers=[known()] * (KEPT + 1)),
        document(peers=[known(addresses=[])]),
        document(peers=[known(addresses=[address(2)])]),
        document(peers=[known(seen=-1)]),
        document(peers=[known(seen=1.5)]),
        document(peers=[known(member=1)]),
        document(peers=[known(peer=7)]),
        document(peers=[{"peer": PEERS[1]}]),
        document() + " " * FILE_BYTES,
    ],
    ids=lambda text: text[:40],
)
def test_a_damaged_book_is_begun_anew(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "peers.json"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    book = AddressBook(path)
    assert (book.peers(), book.port, book.invitation) == ([], 0, "")
    assert "passed over" in caplog.text
    book.met(PEERS[2], [address(2)], member=True, now=1)
    book.save()
    assert AddressBook(path).addresses(4) == [address(2)]


def test_the_sound_book_of_these_cases_is_read(tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text(document())
    assert AddressBook(tmp_path / "peers.json").addresses(4) == [address(1)]


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda each: st.lists(each) | st.dictionaries(st.text(), each))
)
def test_no_json_does_worse_than_an_empty_book(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.mktemp("book") / "peers.json"
    path.write_text(json.dumps({"schema": 1, "port": 1, "invitation": "", "peers": value}))
    assert AddressBook(path).peers() == []


def test_a_disk_that_refuses_costs_the_book_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    book = AddressBook(tmp_path / "file" / "peers.json")
    book.met(PEERS[1], [address(1)], member=True, now=1)
    book.save()
    assert "cannot write" in caplog.text and book.addresses(1) == [address(1)]
