"""Which of the machines that hold one key may sign, decided from the key's record alone (FC07)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from dht.lease import Lease, instance_of
from dht.records import INSTANCE_BYTES, PeerRecord
from peer.identity import Identity

if TYPE_CHECKING:
    from pathlib import Path

RUN, KEY, NOW = bytes(range(32)), Identity.from_seed(bytes(32)), 1_800_000_000
ONE, TWO = bytes([1]) * INSTANCE_BYTES, bytes([2]) * INSTANCE_BYTES
RECORD = PeerRecord(RUN, KEY.peer, (), (), "1", 3, NOW * 1000, NOW + 100, instance=ONE, since=NOW - 50)


def test_another_machines_record_holds_until_it_expires_or_leaves() -> None:
    lease = Lease(TWO)
    assert lease.wait(RECORD, NOW) == 100 and lease.inherited
    assert lease.wait(RECORD, NOW + 99.5) == 0.5
    assert lease.wait(RECORD, NOW + 100) == 0.0
    assert lease.wait(replace(RECORD, left=True), NOW) == 0.0
    assert lease.inherited, "what the other signed a moment ago is not known here"


def test_nobodys_and_its_own_record_hold_nothing() -> None:
    lease = Lease(ONE)
    assert lease.wait(None, NOW) == 0.0 and lease.wait(RECORD, NOW) == 0.0 and not lease.inherited


def test_what_was_taken_is_not_taken_anew_later() -> None:
    lease = Lease(ONE)
    lease.take(NOW + 0.9)
    lease.take(NOW + 50)
    assert lease.since == NOW


@given(st.integers(NOW - 100, NOW), st.integers(NOW - 100, NOW))
def test_of_two_that_both_hold_it_exactly_one_yields(first: int, second: int) -> None:
    """Before a rule that both know they would take turns for ever."""
    leases = {ONE: Lease(ONE, first), TWO: Lease(TWO, second)}
    records = {each: replace(RECORD, instance=each, since=leases[each].since) for each in leases}
    waits = [leases[ONE].wait(records[TWO], NOW) > 0, leases[TWO].wait(records[ONE], NOW) > 0]
    assert sorted(waits) == [False, True]
    assert waits[1] == (first <= second), "whoever took it first keeps it"


def test_an_instance_is_one_home_and_not_its_copy(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = instance_of(tmp_path / "one"), instance_of(tmp_path / "two")
    assert one == instance_of(tmp_path / "one") and one != two and len(one) == INSTANCE_BYTES
    (tmp_path / "one").rename(tmp_path / "old")
    (tmp_path / "two").rename(tmp_path / "one")
    assert instance_of(tmp_path / "one") not in {one, two}, "another folder in the same place is another home"
