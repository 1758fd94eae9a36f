"""The heartbeat to relays, with streams and a clock of the test's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from dht.connections import Connection
from dht.relay_watch import BEAT_S, SILENT_S, RelayWatch, relay_of
from dht.rtt import PROTOCOL
from dht.transport import Traffic
from protocols.errors import TransportError
from protocols.ids import PeerId

if TYPE_CHECKING:
    from dht.stream import Ends
    from dht.transport import StreamTransport

RELAY, OTHER, PEER = PeerId("relay"), PeerId("other"), PeerId("peer")
AT = "/ip4/9.9.9.9/tcp/4002/p2p/relay"


class Wire:
    """The writer of a stream to a relay, which echoes or is frozen."""

    def __init__(self, reader: asyncio.StreamReader, *, echoes: bool) -> None:
        self._reader, self._echoes = reader, echoes
        self.transport = self

    def write(self, data: bytes) -> None:
        """Comes back, or not."""
        if self._echoes:
            self._reader.feed_data(data)

    def abort(self) -> None:
        """Nothing is left of it."""
        self._reader.feed_eof()


class Bench:
    """Everything round one watch: p2pd with its connections, and a relay."""

    def __init__(self) -> None:
        self.now = 100.0
        self.connected = {RELAY: Connection("direct", "tcp", "/ip4/9.9.9.9/tcp/4002")}
        self.reserving: tuple[str, ...] = (AT,)
        self.received: dict[PeerId, int] = {}
        self.frozen = False
        self.refusal: TransportError | None = None
        self.dropped: list[PeerId] = []
        self.opened: list[PeerId] = []
        self.watch = RelayWatch(cast("StreamTransport", self), lambda: self.reserving, clock=lambda: self.now)

    @property
    def routes(self) -> Bench:
        """Itself, as is ``control``."""
        return self

    control = routes

    def ways(self) -> dict[PeerId, Connection]:
        """How peers are connected."""
        return self.connected

    def traffic(self) -> Traffic:
        """What came from each."""
        return Traffic(0, 0, {peer: (0, count) for peer, count in self.received.items()})

    async def open(self, peer: PeerId, protocol: str) -> Ends:
        """A stream to the relay."""
        assert protocol == PROTOCOL
        self.opened.append(peer)
        if self.refusal is not None:
            raise self.refusal
        reader = asyncio.StreamReader()
        return reader, cast("asyncio.StreamWriter", Wire(reader, echoes=not self.frozen))

    async def disconnect(self, peer: PeerId) -> None:
        """Noted."""
        self.dropped.append(peer)
        del self.connected[peer]

    async def pass_s(self, seconds: float) -> None:
        """A second is one look; what is under way gets its turns."""
        for _ in range(round(seconds)):
            self.now += 1.0
            await self.watch.look()
            for _ in range(20):
                await asyncio.sleep(0)


def test_a_relay_that_answers_is_kept_and_asked_every_few_seconds() -> None:
    bench = Bench()
    asyncio.run(bench.pass_s(3 * SILENT_S))
    assert bench.dropped == []
    assert len(bench.opened) == pytest.approx(3 * SILENT_S / BEAT_S, abs=1)


def test_a_frozen_relay_is_dropped_once_it_was_silent_for_long_enough() -> None:
    bench = Bench()

    async def scenario() -> None:
        await bench.pass_s(9)
        bench.frozen = True
        await bench.pass_s(SILENT_S - 3)
        assert bench.dropped == []
        await bench.pass_s(5)
        assert bench.dropped == [RELAY]
        await bench.pass_s(SILENT_S + 2)
        assert bench.dropped == [RELAY], "it is connected no more"

    asyncio.run(scenario())


def test_bytes_that_come_through_a_relay_are_a_sign_of_life() -> None:
    bench = Bench()
    bench.reserving, bench.frozen = (), True
    bench.connected[PEER] = Connection("relayed", "tcp", f"{AT}/p2p-circuit")

    async def scenario() -> None:
        for count in range(20):
            bench.received[PEER] = count
            await bench.pass_s(SILENT_S / 5)
        assert bench.dropped == [], "a relay of the other side's choice is watched too"
        await bench.pass_s(SILENT_S + 2)
        assert bench.dropped == [RELAY]

    asyncio.run(scenario())


def test_one_that_refuses_the_heartbeat_is_alive_and_one_that_opens_no_stream_is_not() -> None:
    bench = Bench()

    async def scenario() -> None:
        bench.refusal = TransportError(RELAY, "protocols not supported")
        await bench.pass_s(2 * SILENT_S)
        assert bench.dropped == []
        bench.refusal = TransportError(RELAY, "no answer within 10 s")
        bench.refusal.__cause__ = TimeoutError()
        await bench.pass_s(SILENT_S + BEAT_S + 1)
        assert bench.dropped == [RELAY]

    asyncio.run(scenario())


def test_a_standstill_of_this_process_is_no_silence_of_others() -> None:
    bench = Bench()
    bench.frozen = True

    async def scenario() -> None:
        await bench.pass_s(2)
        bench.now += 10 * SILENT_S
        await bench.pass_s(SILENT_S - 2)
        assert bench.dropped == []

    asyncio.run(scenario())


def test_relays_that_are_not_connected_are_left_alone() -> None:
    bench = Bench()
    bench.reserving = (AT.replace("relay", "other"),)
    asyncio.run(bench.pass_s(SILENT_S))
    assert bench.opened == [] and relay_of(bench.reserving[0]) == OTHER == relay_of(f"{bench.reserving[0]}/p2p-circuit")
