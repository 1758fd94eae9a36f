"""Agreeing on a hole: both peers dial each other's end at one instant, one at a time, and not too often.

Over streams in memory: real ends on loopback are no public ones, which the frame refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht import punch as module
from dht.limits import PUNCHES
from dht.punch import PROTOCOL, Puncher, turns
from protocols.errors import RemoteError, TransportError
from protocols.ids import PeerId
from protocols.punch import Punch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from dht.stream import FrameStream
    from dht.transport import StreamTransport

ONE, TWO = PeerId("one"), PeerId("two")
ENDS = {ONE: "/ip4/8.8.8.8/udp/4001/quic-v1", TWO: "/ip6/2001:4860::8/udp/4002/quic-v1"}


@dataclass
class Stream:
    """One end of a stream to ``peer``."""

    peer: PeerId
    sent: asyncio.Queue[tuple[str, bytes]]
    received: asyncio.Queue[tuple[str, bytes]]
    address: str = "/ip4/9.9.9.9/tcp/4002/p2p/relay/p2p-circuit"

    async def send(self, kind: str, parts: list[bytes]) -> None:
        """To the other end."""
        self.sent.put_nowait((kind, b"".join(parts)))

    async def receive(self) -> tuple[str, bytes]:
        """From the other end."""
        return await self.received.get()


def pair(caller: PeerId, called: PeerId) -> tuple[Stream, Stream]:
    """A stream's two ends, the caller's first."""
    there: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    back: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    return Stream(called, there, back), Stream(caller, back, there)


@dataclass
class Side:
    """One peer: its puncher, and a transport and routes that note what they are told."""

    peer: PeerId
    sides: dict[PeerId, Side]
    end: str = ""
    works: bool = True
    dialled: list[tuple[PeerId, str, float]] = field(default_factory=list)
    outcomes: asyncio.Queue[tuple[PeerId, bool]] = field(default_factory=asyncio.Queue)
    now: float = 0.0
    began: asyncio.Event = field(default_factory=asyncio.Event)
    """A dial."""
    serving: list[asyncio.Future[None]] = field(default_factory=list)
    proceed: asyncio.Event = field(default_factory=asyncio.Event)
    service: Callable[[FrameStream], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self.sides[self.peer] = self
        self.end = self.end or ENDS[self.peer]
        self.proceed.set()
        self.puncher = Puncher(
            cast("StreamTransport", self),
            lambda: self.end,
            done=lambda peer, worked: self.outcomes.put_nowait((peer, worked)),
            clock=lambda: self.now or time.monotonic(),
        )

    @property
    def routes(self) -> Side:
        """Itself."""
        return self

    async def serve(self, protocol: str, service: Callable[[FrameStream], Awaitable[None]]) -> None:
        """As the transport does."""
        assert protocol == PROTOCOL
        self.service = service

    @contextlib.asynccontextmanager
    async def call(self, peer: PeerId, protocol: str) -> AsyncIterator[Stream]:
        """A stream that the other side serves."""
        assert protocol == PROTOCOL
        own, theirs = pair(self.peer, peer)
        service = self.sides[peer].service
        assert service is not None
        serving = asyncio.ensure_future(service(cast("FrameStream", theirs)))
        serving.add_done_callback(lambda _: theirs.sent.put_nowait(("goodbye", b"")))
        self.serving.append(serving)
        yield own

    async def redial(self, peer: PeerId, address: str, *, within: float, after: float) -> bool:
        """Noted, with the instant of its dial."""
        assert within > 0
        self.dialled.append((peer, address, time.monotonic() + after))
        self.began.set()
        await self.proceed.wait()
        return self.works


async def two(**of_two: Any) -> tuple[Side, Side]:
    """Both serve."""
    sides: dict[PeerId, Side] = {}
    one, other = Side(ONE, sides), Side(TWO, sides, **of_two)
    await one.puncher.start()
    await other.puncher.start()
    return one, other


@pytest.mark.parametrize("lead", [True, False])
def test_both_dial_each_others_end_one_a_moment_before_the_other(lead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAD_S", 0.5)

    async def scenario() -> None:
        one, other = await two()
        one.now = 1.0  # no time passes until the answer comes
        assert await one.puncher.punch(TWO, lead=lead)
        assert await other.outcomes.get() == (ONE, True)
        [(peer, address, at)], [(peer2, address2, at2)] = one.dialled, other.dialled
        assert (peer, address) == (TWO, f"{ENDS[TWO]}/p2p/{TWO}")
        assert (peer2, address2) == (ONE, f"{ENDS[ONE]}/p2p/{ONE}")
        assert 0.3 < (at2 - at if lead else at - at2) < 3.0
        assert one.outcomes.get_nowait() == (TWO, True)

    asyncio.run(asyncio.wait_for(scenario(), 10))


@pytest.mark.parametrize("lead", [True, False])
@pytest.mark.parametrize("caller_first", [True, False])
def test_whoever_has_to_be_first_is_whoever_calls(
    caller_first: bool, lead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_S", 0.8)

    async def scenario() -> None:
        one, other = await two()
        (one if caller_first else other).puncher._first = lambda: True
        assert await one.puncher.punch(TWO, lead=lead)
        assert await other.outcomes.get() == (ONE, True)
        [(_, _, at)], [(_, _, at2)] = one.dialled, other.dialled
        assert 0.5 < (at2 - at if caller_first else at - at2) < 3.0

    asyncio.run(asyncio.wait_for(scenario(), 10))


@given(
    st.sampled_from([0.0, 0.1, 0.25]),
    st.sampled_from([0.0, 0.1, 0.25]),
    st.booleans(),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_the_first_ones_packet_leaves_before_the_others_comes(
    ours: float, theirs: float, lead: bool, trip: float, share: float
) -> None:
    """However much shorter than the relay's the direct way is: ``share`` of it."""
    own, other = turns(ours, theirs, lead=lead, trip=trip)
    way = share * trip / 2
    leaves, leaves_there = trip / 2 + own, other
    assert min(own, other) == 0.0
    if theirs and not ours:
        assert leaves + way >= leaves_there + theirs
    elif ours and not theirs:
        assert leaves_there + way >= leaves + ours - 1e-9
    else:
        assert (own == 0.0) is lead


def test_the_connection_is_dropped_only_once_the_signal_was_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAD_S", 0.0)

    async def scenario() -> None:
        one, other = await two()
        heard = asyncio.Event()

        async def slow(stream: FrameStream) -> None:
            await stream.receive()
            await stream.send("punch", [Punch(ENDS[TWO]).encode()])
            await asyncio.sleep(0.2)
            assert not one.dialled
            await stream.receive()
            heard.set()

        other.service = slow
        assert await one.puncher.punch(TWO)
        assert heard.is_set()

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_whoever_does_not_know_its_end_yet_is_asked_again_at_no_cost() -> None:
    async def scenario() -> None:
        one, other = await two()
        other.now, other.end = 1.0, ""
        for _ in range(int(PUNCHES.burst) + 1):
            with pytest.raises(TransportError, match="has no UDP"):
                await one.puncher.punch(TWO)
        other.end = ENDS[TWO]
        assert await one.puncher.punch(TWO)

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_each_side_tells_its_own_outcome() -> None:
    async def scenario() -> None:
        one, other = await two(works=False)
        assert await one.puncher.punch(TWO)
        assert await other.outcomes.get() == (ONE, False)

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_without_udp_on_either_side_nothing_is_dropped() -> None:
    async def scenario() -> None:
        one, other = await two()
        other.end = ""
        with pytest.raises(TransportError, match="has no UDP"):
            await one.puncher.punch(TWO)
        one.end = ""
        with pytest.raises(TransportError, match="no UDP connection leads out"):
            await one.puncher.punch(TWO)
        assert not one.dialled and not other.dialled

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_a_peer_that_asks_too_often_is_told_that_there_is_no_udp() -> None:
    async def scenario() -> None:
        one, other = await two()
        other.now = 1.0
        for _ in range(int(PUNCHES.burst)):
            assert await one.puncher.punch(TWO)
            await other.outcomes.get()
        with pytest.raises(TransportError, match="has no UDP"):
            await one.puncher.punch(TWO)
        other.now += 1 / PUNCHES.per_s
        assert await one.puncher.punch(TWO)

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_one_hole_at_a_time_is_dialled_with_a_peer() -> None:
    async def scenario() -> None:
        one, other = await two()
        one.proceed.clear()
        punching = asyncio.create_task(one.puncher.punch(TWO))
        await one.began.wait()
        with pytest.raises(TransportError, match="is being dialled already"):
            await one.puncher.punch(TWO)
        with pytest.raises(TransportError, match="has no UDP"):
            await other.puncher.punch(ONE)
        one.proceed.set()
        assert await punching and len(one.dialled) == 1

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_a_peer_that_asks_while_it_is_asked_is_dialled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile one answers late, and meanwhile calls itself."""
    monkeypatch.setattr(module, "LEAD_S", 0.0)

    async def scenario() -> None:
        sides: dict[PeerId, Side] = {}
        one, hostile = Side(ONE, sides, now=1.0), Side(TWO, sides)
        await one.puncher.start()
        answer, agreed = asyncio.Event(), asyncio.Event()

        async def late(stream: FrameStream) -> None:
            await stream.receive()
            await answer.wait()
            await stream.send("punch", [Punch(ENDS[TWO]).encode()])
            await stream.receive()
            agreed.set()

        hostile.service = late
        one.proceed.clear()
        punching = asyncio.create_task(one.puncher.punch(TWO))
        await asyncio.sleep(0)
        hostile.end = "/ip4/9.9.9.9/udp/9/quic-v1"
        assert await hostile.puncher.punch(ONE)
        answer.set()
        await one.began.wait()
        await agreed.wait()
        for _ in range(20):
            await asyncio.sleep(0)  # until its own dial would have begun
        one.proceed.set()
        assert await punching
        assert len(one.dialled) == 1 and one.outcomes.qsize() == 1

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_one_that_never_answers_costs_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGREE_S", 0.05)

    async def silent(stream: FrameStream) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        one, other = await two()
        other.service = silent
        with pytest.raises(TransportError, match="no answer within"):
            await one.puncher.punch(TWO)
        assert one.service is not None
        with pytest.raises(TransportError, match="no answer within"):
            await one.service(cast("FrameStream", pair(TWO, ONE)[1]))
        assert not one.dialled

    asyncio.run(asyncio.wait_for(scenario(), 10))


@pytest.mark.parametrize(
    ("kind", "payload"),
    [("ping", bytes(8)), ("punch", b"\xc1"), ("punch", Punch("/ip4/192.168.1.1/udp/53/quic-v1").encode())],
)
def test_whoever_sends_anything_else_is_named_and_nothing_is_dialled(kind: str, payload: bytes) -> None:
    async def answers(stream: FrameStream) -> None:
        await stream.receive()
        await stream.send(kind, [payload])

    async def scenario() -> None:
        one, other = await two()
        other.service = answers
        with pytest.raises(RemoteError, match=f"^{TWO}"):
            await one.puncher.punch(TWO)
        caller, called = pair(TWO, ONE)
        await caller.send(kind, [payload])
        assert one.service is not None
        with pytest.raises(RemoteError, match=f"^{TWO}"):
            await one.service(cast("FrameStream", called))
        assert not one.dialled

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_close_ends_what_is_under_way() -> None:
    async def scenario() -> None:
        one, other = await two()
        other.proceed.clear()
        await one.puncher.punch(TWO)
        await other.began.wait()
        await other.puncher.close()
        assert other.outcomes.empty()
        assert not [each for each in asyncio.all_tasks() if each.get_name().startswith("punch")]

    asyncio.run(asyncio.wait_for(scenario(), 10))
