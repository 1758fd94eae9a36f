"""Round-trip times: pings over a stream that answers, lies, or says nothing, and what is made of the figures."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht import rtt
from dht.connections import Connection
from dht.rtt import BYTES, RoundTrips, ping
from protocols.errors import RemoteError, TransportError
from protocols.ids import PeerId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from dht.stream import Ends

A, B = PeerId("a"), PeerId("b")
TCP = Connection("direct", "tcp", "/ip4/11.22.33.4/tcp/1")
CIRCUIT = Connection("relayed", "tcp", "/ip4/11.22.33.5/tcp/1/p2p-circuit")


class Wire:
    """Opens streams whose far end does with each 32 bytes what ``answers`` says; counts those that are open."""

    def __init__(self, answers: Callable[[bytes], Awaitable[bytes | None]]) -> None:
        self.answers, self.opened, self.now, self.most = answers, list[PeerId](), 0, 0
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self, peer: PeerId, protocol: str) -> Ends:
        assert protocol == "/ipfs/ping/1.0.0"
        ours, theirs = socket.socketpair()
        ends, far = await asyncio.open_connection(sock=ours), await asyncio.open_connection(sock=theirs)
        self.opened.append(peer)
        self.tasks.append(asyncio.create_task(self.serve(far)))
        return ends

    async def serve(self, far: Ends) -> None:
        reader, writer = far
        self.now += 1
        self.most = max(self.most, self.now)
        with contextlib.suppress(OSError, EOFError):
            while (said := await self.answers(await reader.readexactly(BYTES))) is not None:
                writer.write(said)
        self.now -= 1
        writer.transport.abort()


@contextlib.asynccontextmanager
async def wire(answers: Callable[[bytes], Awaitable[bytes | None]]) -> AsyncIterator[Wire]:
    made = Wire(answers)
    try:
        yield made
    finally:
        await asyncio.gather(*made.tasks)  # a stream that was left open would hang here, and time the test out


async def late(question: bytes) -> bytes:
    await asyncio.sleep(0.05)
    return question


async def wrong(question: bytes) -> bytes:
    return bytes(len(question))


async def gone(_: bytes) -> None:
    return None


async def silent(_: bytes) -> bytes:
    return b""


def test_a_ping_takes_as_long_as_its_answer() -> None:
    async def scenario() -> None:
        async with wire(late) as far:
            began = time.perf_counter()
            seconds = await ping(far, A)
            assert 0.05 <= seconds < time.perf_counter() - began - 0.09, "one of three exchanges"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("answers", "error", "says"),
    [
        (wrong, RemoteError, "answered a ping with other bytes"),
        (gone, TransportError, "hung up on a ping"),
        (silent, TransportError, "answered no ping within 0.1 s"),
    ],
)
def test_who_lies_hangs_up_or_says_nothing_gives_no_figure(
    answers: Callable[[bytes], Awaitable[bytes | None]], error: type[Exception], says: str
) -> None:
    async def scenario() -> None:
        async with wire(answers) as far:
            with pytest.raises(error, match=says):
                await ping(far, A, within=0.1)

    asyncio.run(scenario())


def test_neighbours_are_measured_few_at_a_time_and_forgotten_when_they_leave() -> None:
    near = [PeerId(f"peer {number}") for number in range(20)]
    ways = dict.fromkeys(near, TCP)

    async def scenario() -> None:
        async with wire(late) as far:
            trips = RoundTrips(lambda: far, lambda: near, lambda: ways)
            await trips.measure()
            assert far.most <= rtt.AT_ONCE and sorted(far.opened) == sorted(near)
            assert all(0.05 <= (trips.of(peer) or 0) < 0.5 for peer in near)
            left = near.pop()
            await trips.measure()
            assert trips.of(left) is None and trips.of(near[0]) is not None

    asyncio.run(scenario())


def test_a_new_way_begins_anew() -> None:
    ways = {A: CIRCUIT}
    trips = RoundTrips(lambda: Wire(late), lambda: [A], lambda: ways)
    trips.note(A, CIRCUIT, 0.4)
    assert trips.of(A) == 0.4 and trips.of(B) is None
    ways[A] = TCP
    assert trips.of(A) is None, "what the relay took says nothing about the hole"
    trips.note(A, TCP, 0.04)
    assert trips.of(A) == 0.04


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=50))
def test_the_smoothed_time_lies_among_the_figures_and_one_outlier_moves_it_little(figures: list[float]) -> None:
    trips = RoundTrips(lambda: Wire(late), lambda: [A], lambda: {A: TCP})
    for figure in figures:
        trips.note(A, TCP, figure)
    before = trips.of(A) or 0.0
    assert min(figures) * (1 - 1e-9) <= before <= max(figures) * (1 + 1e-9)
    trips.note(A, TCP, before + 8.0)
    assert trips.of(A) == pytest.approx(before + 1.0)
