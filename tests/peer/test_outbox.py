"""The outbox over a transport that each test drives by hand."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from peer import outbox as module
from peer.outbox import Limits, Outbox
from protocols.errors import LocalError, TransportError
from protocols.ids import PeerId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocols.ports import Buffer

ANN, BOB = PeerId("12D3-Ann"), PeerId("12D3-Bob")
BOTH = frozenset({ANN, BOB})


class Wire:
    """Takes frames while ``open`` is set; a stream that is reopened goes and comes when the test says so."""

    def __init__(self) -> None:
        self.peer = PeerId("12D3-own")
        self.sent: list[tuple[PeerId, bytes]] = []
        self.reopened: list[tuple[PeerId, str]] = []
        self.open = asyncio.Event()

    def neighbours(self) -> frozenset[PeerId]:
        return BOTH

    async def send(self, to: PeerId, kind: str, payload: Sequence[Buffer]) -> None:
        await self.open.wait()
        data = b"".join(payload)
        if data == b"large":
            raise LocalError("parts frame of 1310721 bytes, limit 1310720")
        if data == b"lost":
            raise TransportError(to, "the stream broke")
        if data == b"odd":
            raise KeyError(kind)
        self.sent.append((to, data))

    def reopen(self, peer: PeerId, reason: str) -> None:
        self.reopened.append((peer, reason))


async def _soon(outbox: Outbox) -> None:
    async with asyncio.timeout(5):
        await outbox.drained()


def test_each_neighbour_gets_its_frames_in_order() -> None:
    async def scenario() -> None:
        wire = Wire()
        outbox = Outbox(wire)
        assert outbox.connect(BOTH) == ([ANN, BOB], []) and outbox.connect(BOTH) == ([], [])
        wire.open.set()
        outbox.post(ANN, "parts", [b"o", b"ne"])
        outbox.flood("statement", [b"two"], None)
        outbox.flood("statement", [b"three"], ANN)
        outbox.post(PeerId("nobody"), "parts", [b"dropped"])
        await _soon(outbox)
        assert [data for to, data in wire.sent if to == ANN] == [b"one", b"two"]
        assert [data for to, data in wire.sent if to == BOB] == [b"two", b"three"]
        await outbox.close()

    asyncio.run(scenario())


def test_slow_reader_is_reopened_and_new_once_it_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_FRAMES", 3)

    async def scenario() -> None:
        wire = Wire()
        outbox = Outbox(wire)
        outbox.connect(BOTH)
        for number in range(5):
            outbox.post(ANN, "statement", [bytes([number])])
        assert wire.reopened == [(ANN, "reads too slowly, 3 frames wait")], "once, whatever else is posted"
        assert outbox.connect(BOTH) == ([], []), "it still is on its old stream"
        assert outbox.connect(frozenset({BOB})) == ([], [ANN]), "whoever was let go of is seen to leave"
        assert outbox.connect(BOTH) == ([ANN], [])
        wire.open.set()
        outbox.post(ANN, "statement", [b"welcome"])
        await _soon(outbox)
        assert wire.sent == [(ANN, b"welcome")], "nothing of the old stream comes out of the new one"
        await outbox.close()

    asyncio.run(scenario())


KIB = 1 << 10


def test_bytes_that_wait_for_a_reader_that_never_reads_are_bounded() -> None:
    async def scenario() -> None:
        wire = Wire()
        outbox = Outbox(wire, Limits(each=64 * KIB, all=1024 * KIB))
        outbox.connect(BOTH)
        peak = 0
        for number in range(1000):
            outbox.post(ANN, "parts", [bytes([number % 256]) * KIB])
            peak = max(peak, outbox.waiting)
            if wire.reopened and len(wire.reopened) < 3 and ANN not in outbox._lines:
                outbox.connect(frozenset({BOB}))
                outbox.connect(BOTH)
        assert peak <= 66 * KIB
        assert len(wire.reopened) == 3 and {peer for peer, _ in wire.reopened} == {ANN}
        await outbox.close()
        assert outbox.waiting == 0

    asyncio.run(scenario())


def test_a_buffer_that_waits_many_times_counts_once() -> None:
    async def scenario() -> None:
        wire = Wire()
        outbox = Outbox(wire, Limits(each=64 * KIB, all=100 * KIB))
        outbox.connect(BOTH)
        update = memoryview(bytes(60 * KIB))
        halves = [update[: 30 * KIB], update[30 * KIB :]]
        for _ in range(10):
            outbox.flood("parts", halves, None)
        assert wire.reopened == [] and outbox.waiting == 60 * KIB
        wire.open.set()
        await _soon(outbox)
        assert len(wire.sent) == 20 and outbox.waiting == 0, "counted until the last of them is sent"
        wire.open.clear()
        outbox.post(ANN, "parts", halves)
        outbox.post(ANN, "parts", [bytes(5 * KIB)])
        assert wire.reopened == [(ANN, "reads too slowly, more than 0 MiB wait")]
        await outbox.close()

    asyncio.run(scenario())


def test_all_queues_together_are_bounded_and_the_fullest_gives_way() -> None:
    async def scenario() -> None:
        wire = Wire()
        outbox = Outbox(wire, Limits(each=64 * KIB, all=96 * KIB))
        outbox.connect(BOTH)
        outbox.post(ANN, "parts", [bytes(60 * KIB)])
        for _ in range(40):
            outbox.post(BOB, "parts", [bytes(KIB)])
        assert [peer for peer, _ in wire.reopened] == [ANN], "not the one whose frame came last"
        assert outbox.waiting == 40 * KIB
        await outbox.close()

    asyncio.run(scenario())


def test_limits_grow_with_the_run() -> None:
    assert Limits.of(1000) == Limits()
    assert Limits.of(100 << 20).each == 300 << 20


@pytest.mark.parametrize("bad", [b"large", b"odd"])
def test_frame_that_cannot_be_sent_is_logged_and_the_next_ones_go(bad: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        wire = Wire()
        wire.open.set()
        outbox = Outbox(wire)
        outbox.connect(BOTH)
        for data in (bad, b"lost", b"good"):
            outbox.post(ANN, "parts", [data])
        await _soon(outbox)
        assert wire.sent == [(ANN, b"good")]
        await outbox.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    (record,) = caplog.records
    assert record.getMessage() == "a parts frame to 12D3…-Ann could not be sent"


def test_waiting_for_the_rest_ends_when_the_neighbour_goes() -> None:
    async def scenario() -> None:
        wire = Wire()
        outbox = Outbox(wire)
        outbox.connect(BOTH)
        for _ in range(3):
            outbox.flood("statement", [b"x"], BOB)
        waiting = asyncio.create_task(_soon(outbox))
        await asyncio.sleep(0)
        outbox.connect(frozenset({BOB}))
        await waiting
        assert wire.sent == []
        await outbox.close()

    asyncio.run(scenario())


def test_bulk_waits_for_what_else_there_is_for_a_neighbour_and_for_bytes_of_a_round_for_anybody() -> None:
    async def scenario() -> None:
        wire = Wire()
        outbox = Outbox(wire)
        outbox.connect(BOTH)
        outbox.post(ANN, "state", [b"bulk 1"], bulk=True)
        outbox.post(ANN, "state", [b"bulk 2"], bulk=True)
        outbox.post(ANN, "statement", [b"vote"])
        outbox.post(BOB, "parts", [b"parts"])
        await asyncio.sleep(0.05)
        wire.open.set()
        await _soon(outbox)
        ann = [data for to, data in wire.sent if to == ANN]
        assert ann == [b"vote", b"bulk 1", b"bulk 2"]
        assert wire.sent.index((BOB, b"parts")) < wire.sent.index((ANN, b"bulk 1"))
        await outbox.close()
        assert outbox.waiting == 0

    asyncio.run(scenario())


def test_bulk_is_held_back_for_a_while_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_S", 0.1)

    class Stuck(Wire):
        async def send(self, to: PeerId, kind: str, payload: Sequence[Buffer]) -> None:
            if to == BOB:
                await asyncio.sleep(3600)
            await super().send(to, kind, payload)

    async def scenario() -> None:
        wire = Stuck()
        wire.open.set()
        outbox = Outbox(wire)
        outbox.connect(BOTH)
        outbox.post(BOB, "results", [b"results"])
        began = asyncio.get_running_loop().time()
        for data in (b"one", b"two"):
            outbox.post(ANN, "state", [data], bulk=True)
        await outbox._lines[ANN].idle.wait()
        assert asyncio.get_running_loop().time() - began >= 0.2, "each of them"
        await outbox.close()

    asyncio.run(asyncio.wait_for(scenario(), 5))


def test_bulk_goes_out_although_statements_never_cease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_S", 0.1)

    async def scenario() -> None:
        wire = Wire()
        wire.open.set()
        outbox = Outbox(wire)
        outbox.connect(BOTH)
        for data in (b"one", b"two"):
            outbox.post(ANN, "state", [data], bulk=True)
        while (ANN, b"two") not in wire.sent:
            outbox.flood("statement", [b"vote"], None)
            await asyncio.sleep(0.02)
        votes = wire.sent[: wire.sent.index((ANN, b"two"))].count((ANN, b"vote"))
        assert votes >= 5, "after 0.1 s each"
        await outbox.close()

    asyncio.run(asyncio.wait_for(scenario(), 5))


def test_bulk_for_one_neighbour_is_bounded_and_never_costs_it_its_stream() -> None:
    async def scenario() -> None:
        wire = Wire()
        outbox = Outbox(wire)
        outbox.connect(BOTH)
        for number in range(100):
            outbox.post(ANN, "state", [bytes([number]) * KIB], bulk=True)
        assert outbox.waiting <= module.BULK_FRAMES * KIB and not wire.reopened
        wire.open.set()
        await _soon(outbox)
        assert len(wire.sent) == module.BULK_FRAMES
        await outbox.close()

    asyncio.run(scenario())
