"""Neighbours that are announced, prove themselves, lie, leave; and an mDNS that cannot be opened."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from dht.dialback import Unproven
from dht.lan import MOST_PEERS, Announcement, Card, words_of
from dht.neighbours import MOST_TRIES, PROOFS, Neighbours, Place
from protocols.errors import TransportError
from protocols.ids import PeerId, peer_id
from protocols.reach import STRANGER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dht.mdns import Mdns

RUN, OWN = bytes(32), peer_id(bytes(32))
CARD = Card("192.168.1.7", "255.255.255.0", frozenset({"up", "broadcast", "multicast"}))
PORT = 4001


def friend(number: int) -> PeerId:
    return peer_id(number.to_bytes(32, "big"))


def said(peer: PeerId, *addresses: str) -> Announcement:
    return Announcement({key.encode(): word.encode() for key, word in words_of(RUN, peer).items()}, addresses, PORT)


def at(peer: PeerId, address: str) -> str:
    return f"/ip4/{address}/tcp/{PORT}/p2p/{peer}"


class Bench:
    """A network that the test has made, and the one that looks for neighbours in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cards, self.heard = [CARD], list[Announcement]()
        self.there = set[str]()
        self.opened = list[tuple[str, ...]]()
        self.attempts, self.closed, self.broken, self.now = 0, 0, "", 1000.0
        self.opening = asyncio.Event()
        self.tried, self.met = list[str](), list[str]()
        self.refuses = False
        monkeypatch.setattr("dht.neighbours.time.monotonic", lambda: self.now)
        self.near = Neighbours(
            Place(RUN, OWN, "0.0.0.0"),
            lambda: PORT,
            self.found,
            mdns=cast("Mdns", self),
            prove=self.prove,
            cards=lambda: self.cards,
        )

    async def open(self, here: Sequence[Any], port: int, words: dict[str, str], _: Callable[[], None]) -> None:
        self.attempts += 1
        if self.broken:
            raise OSError(self.broken)
        self.opening.set()
        assert port == PORT and words == words_of(RUN, OWN)
        self.opened.append(tuple(str(each.ip) for each in here))

    async def look(self) -> list[Announcement]:
        return self.heard

    async def close(self) -> None:
        self.closed += 1

    async def prove(self, address: str, peer: PeerId) -> None:
        self.tried.append(address)
        if address not in self.there:
            raise Unproven(peer, address, STRANGER)

    async def found(self, peer: PeerId, address: str) -> None:
        self.met.append(address)
        if self.refuses:
            raise TransportError(peer, "serves no directory")

    def pass_by(self, seconds: float = 0.0) -> dict[PeerId, str]:
        """One look, so much later."""
        return self.pass_often(1, seconds)

    def pass_often(self, count: int, seconds: float) -> dict[PeerId, str]:
        """So many looks, so far apart."""

        async def looks() -> None:
            for _ in range(count):
                self.now += seconds
                await self.near._keep_open()
                if self.near._is_open:
                    await self.near._look()

        asyncio.run(looks())
        return self.near.near()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_a_neighbour_counts_once_it_has_proven_itself(bench: Bench) -> None:
    one, two = friend(1), friend(2)
    bench.heard = [said(one, "192.168.1.66", "192.168.1.8"), said(two, "192.168.1.9")]
    bench.there = {at(one, "192.168.1.8")}
    assert bench.pass_by() == {one: at(one, "192.168.1.8")}
    assert bench.met == [at(one, "192.168.1.8")]
    bench.refuses = True
    assert bench.pass_by(61) == {one: at(one, "192.168.1.8")}, "whether it serves a directory is another matter"
    assert len(bench.met) == 2


def test_who_does_not_answer_is_asked_ever_less_often(bench: Bench) -> None:
    bench.heard = [said(friend(1), "192.168.1.8")]
    bench.pass_often(600, 1)
    assert 10 < len(bench.tried) < 20


def test_who_is_there_no_more_is_forgotten_within_a_minute_and_a_move_is_noticed(bench: Bench) -> None:
    one = friend(1)
    bench.heard, bench.there = [said(one, "192.168.1.8")], {at(one, "192.168.1.8")}
    bench.pass_by()
    bench.heard = []
    assert bench.pass_by(30) == {one: at(one, "192.168.1.8")}, "silent and perhaps there"
    bench.there = set()
    assert bench.pass_by(31) == {}
    bench.heard, bench.there = [said(one, "192.168.1.9")], {at(one, "192.168.1.9")}
    assert bench.pass_by(10) == {one: at(one, "192.168.1.9")}


def test_a_flood_of_liars_costs_little_and_hides_nobody(bench: Bench) -> None:
    one = friend(1)
    bench.heard, bench.there = [said(one, "192.168.1.8")], {at(one, "192.168.1.8")}
    bench.pass_by()
    for turn in range(20):
        bench.heard = [said(friend(1000 * turn + number), "192.168.1.66") for number in range(2, 102)]
        before = len(bench.tried)
        assert one in bench.pass_by(60)
        assert len(bench.tried) - before <= PROOFS
    assert len(bench.near._tries) <= MOST_TRIES + MOST_PEERS
    late = friend(7)
    bench.heard, bench.there = [said(late, "192.168.1.9")], {*bench.there, at(late, "192.168.1.9")}
    assert bench.pass_by(60).keys() == {one, late}


def test_with_another_network_it_is_announced_anew_and_nobody_is_near(bench: Bench) -> None:
    one = friend(1)
    bench.heard, bench.there = [said(one, "192.168.1.8")], {at(one, "192.168.1.8")}
    bench.pass_by()
    bench.cards = [replace(CARD, address="10.0.0.7")]
    assert bench.pass_by(5) == {}
    bench.cards = []
    assert bench.pass_by(5) == {} and bench.opened == [("192.168.1.7",), ("10.0.0.7",)]
    bench.cards = [CARD]
    assert bench.pass_by(5) == {one: at(one, "192.168.1.8")}


def test_without_mdns_it_says_so_once_and_tries_again_ever_more_rarely(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.broken = "Address already in use"
    with caplog.at_level("INFO"):
        bench.pass_often(1000, 1)
    assert 5 < bench.attempts < 12
    assert [each.message for each in caplog.records] == [
        "this peer is not announced in its own network: Address already in use"
    ]
    bench.broken = ""
    bench.pass_by(300)
    assert bench.opened == [("192.168.1.7",)]


def test_close_ends_the_task_and_says_goodbye_and_may_come_twice(bench: Bench) -> None:
    async def scenario() -> None:
        await bench.near.close()
        bench.near.start()
        async with asyncio.timeout(10):
            await bench.opening.wait()
        await bench.near.close()
        closed = bench.closed
        assert closed and bench.near.near() == {}
        await bench.near.close()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())
