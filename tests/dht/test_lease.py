"""Which of the machines that hold one key may sign, decided from the key's record alone (FC07)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from dht.directory import Directory, DirectoryTiming
from dht.lease import Lease, answered, asking, instance_of
from dht.records import INSTANCE_BYTES, PeerRecord
from peer.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    OpenNode = Callable[..., AbstractAsyncContextManager[Any]]

RUN, KEY, NOW = bytes(range(32)), Identity.from_seed(bytes(32)), 1_800_000_000
ONE, TWO = bytes([1]) * INSTANCE_BYTES, bytes([2]) * INSTANCE_BYTES
RECORD = PeerRecord(RUN, KEY.peer, (), (), "1", 3, NOW * 1000, NOW + 100, instance=ONE, since=NOW - 50)


def test_another_machines_record_holds_until_it_expires_or_leaves() -> None:
    lease = Lease(TWO)
    assert lease.wait(RECORD, NOW) == 100 and lease.inherited and lease.floor == RECORD.head_round + 1
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


def test_asking_finds_the_record_and_leaves_no_trace(open_node: OpenNode, tmp_path: Path) -> None:
    async def scenario() -> None:
        folder = tmp_path / "asking"
        async with open_node(1) as seed:
            there = Directory(seed.transport, RUN, seed.identity.sign)
            await there.start([])
            own = PeerRecord(RUN, seed.transport.peer, (), (), "1", 5, 0, 0, instance=ONE, since=7)
            there.announce(own)
            async with asking(seed.transport.addresses(), RUN, DirectoryTiming(), folder) as directory:
                assert await answered(directory)
                (found,) = await directory.records()
                assert (found.peer, found.instance, found.since, found.left) == (own.peer, ONE, 7, False)
                await there.withdraw(9)
                (found,) = await directory.records()
                assert found.left and found.head_round == 9 and await directory.peers() == []
            assert not folder.exists()
            assert not there._node._node.protocol.routing_table.uid_to_peer_id, "it is no node that others count on"
            nowhere = f"/ip4/127.0.0.1/tcp/1/p2p/{seed.transport.peer}"
            async with asking([nowhere], RUN, DirectoryTiming(), folder) as directory:
                assert not await answered(directory)
            await there.close()

    asyncio.run(scenario())
