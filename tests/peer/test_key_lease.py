"""What a daemon does with what the directory says about its own key (FC07)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from dht.records import INSTANCE_BYTES, PeerRecord
from peer.identity import Identity
from peer.journal import SlotUsed, Withheld
from peer.key_lease import KeyLease
from protocols.ids import PeerId

if TYPE_CHECKING:
    from pathlib import Path

RUN, KEY = bytes(range(32)), Identity.from_seed(bytes(32))
OTHER = bytes([9]) * INSTANCE_BYTES


@dataclass
class Board:
    """Takes in what is said."""

    said: list[str] = field(default_factory=list)

    def say(self, text: str, **_: object) -> None:
        self.said.append(text)


@dataclass
class Shelf:
    """A directory that only notes that its record must be renewed."""

    outbids: list[PeerRecord] = field(default_factory=list)

    def outbid(self, record: PeerRecord) -> None:
        self.outbids.append(record)


@pytest.fixture
def lease(tmp_path: Path) -> Any:
    """One that has taken its key, and asked about it."""
    found = KeyLease(tmp_path, PeerId(KEY.peer), Board())  # type: ignore[arg-type]
    asyncio.run(found.acquire((), RUN))
    found.gate()
    return found


def record(since: float, **changes: object) -> PeerRecord:
    """The key's record, issued by another machine."""
    now = int(time.time())
    made = PeerRecord(RUN, KEY.peer, (), (), "1", 0, now * 1000, now + 100, instance=OTHER, since=int(since))
    return replace(made, **changes)  # type: ignore[arg-type]


def test_own_record_and_strangers_change_nothing(lease: Any) -> None:
    own = lease.stamp(record(0))
    assert own.instance != OTHER and own.since == int(own.since) > 0
    for records in ([], [own], [record(0, peer=Identity.from_seed(bytes([1]) * 32).peer)]):
        lease.look(records, Shelf())
        lease.gate()
    assert not lease.lost


def test_older_machine_wins_and_this_one_signs_no_more(lease: Any) -> None:
    lost: list[bool] = []
    lease.on_lost = lambda: lost.append(True)
    for _ in range(2):
        lease.look([record(time.time() - 100)], Shelf())
    assert lost == [True] and lease.lost, "told once"
    with pytest.raises(Withheld, match="another machine runs with this key"):
        lease.gate()


def test_younger_machine_is_outbid_and_this_one_goes_on(lease: Any) -> None:
    shelf, other = Shelf(), record(time.time() + 100)
    lease.look([other], shelf)
    lease.gate()
    assert shelf.outbids == [other] and not lease.lost


def test_after_another_machine_nothing_is_signed_before_a_new_seal(lease: Any) -> None:
    lease._lease.since = 0
    assert lease._lease.wait(record(time.time() - 100, left=True), time.time()) == 0
    lease._lease.take(time.time())
    with pytest.raises(SlotUsed, match="after the next seal"):
        lease.gate()
    for number, synced, level in (
        (1, False, False),
        (2, False, False),
        (5, True, True),
        (6, True, True),
        (4, False, True),
    ):
        lease.sealed(number, synced=synced, level=level)
        with pytest.raises(SlotUsed):  # it only catches up, or no seal is newer than the first with which it was level
            lease.gate()
    lease.sealed(7, synced=False, level=False)
    lease.gate()


def test_the_rounds_that_the_other_machine_told_of_are_left_to_it(lease: Any) -> None:
    lease._lease.since = 0
    lease._lease.wait(record(time.time() - 100, left=True, head_round=9), time.time())
    lease._lease.take(time.time())
    for number in range(5, 11):
        lease.sealed(number, synced=False, level=True)
        with pytest.raises(SlotUsed):
            lease.gate()
    lease.sealed(11, synced=False, level=True)
    lease.gate()


def test_without_an_answer_nothing_is_signed_for_one_lease(lease: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    lease._unsure_until = now + 120
    with pytest.raises(Withheld, match="nobody has been asked yet"):
        lease.gate()
    monkeypatch.setattr("peer.key_lease.time.monotonic", lambda: now + 121)
    lease.gate()
    monkeypatch.undo()
    lease.look([], Shelf())
    lease.gate()


def test_after_a_sleep_the_machine_that_took_over_keeps_the_key(lease: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record is younger, but it took the key in good faith; this one must not sign on waking up."""
    began = time.time()
    monkeypatch.setattr("peer.key_lease.time.time", lambda: began + 1000)
    with pytest.raises(Withheld):
        lease.gate()
    lease.beat(heard=True)
    with pytest.raises(Withheld, match="nobody has been asked"):
        lease.gate()
    lease.look([record(began + 500, expires=int(began) + 1050)], Shelf())
    assert lease.lost


def test_after_a_cut_that_nobody_used_it_goes_on(lease: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr("peer.key_lease.time.time", lambda: now)
    for _ in range(300):
        now += 1
        lease.beat(heard=False)
        lease.gate()  # alone it may go on: who else is there
    lease.beat(heard=True)
    with pytest.raises(Withheld):
        lease.gate()
    lease.look([], Shelf())
    lease.gate()
