"""Who may open streams, and how links treat peers that nobody asked for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from typing import TYPE_CHECKING, Any

import pytest

from dht.door import Door
from dht.guard import Guard
from dht.handshake import Hello, encode_hello
from dht.limits import STREAMS, STREAMS_EACH
from dht.links import Link, LinkConfig, Refused
from dht.stream import Counter, FrameStream, Timing
from dht.transport import PROTOCOL_ID
from protocols.errors import TransportError
from protocols.ids import PeerId

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    OpenNode = Callable[..., AbstractAsyncContextManager[Any]]

RUN = bytes(range(32))
MEMBER = PeerId("member")


def test_strangers_share_a_bounded_number_and_keep_no_member_out() -> None:
    async def scenario() -> None:
        clock = itertools.count()  # a second for each question: nobody is too fast
        door = Door(Guard(lambda: frozenset({MEMBER}), clock=lambda: float(next(clock))))
        tasks = [asyncio.create_task(asyncio.Event().wait()) for _ in range(STREAMS + 2 * STREAMS_EACH + 2)]
        for number in range(STREAMS):
            assert door.enter(PeerId(f"stranger {number}"), PROTOCOL_ID, tasks[number])
        late = tasks[STREAMS]
        assert not door.enter(PeerId("late"), PROTOCOL_ID, late) and door.refused == 1
        for number in range(STREAMS_EACH):
            assert door.enter(MEMBER, PROTOCOL_ID, tasks[-1 - number])
        assert not door.enter(MEMBER, PROTOCOL_ID, late) and door.refused == 2, "a member has no more than its share"
        for number in range(STREAMS_EACH):
            assert door.enter(MEMBER, "/other", tasks[-1 - STREAMS_EACH - number]), "each protocol has its own"
        streams, each = door.gauges()
        assert (streams.in_use, streams.refused, each.in_use, each.refused) == (STREAMS, 1, STREAMS_EACH, 1)
        door.leave(tasks[0])
        assert door.enter(PeerId("late"), PROTOCOL_ID, late)
        await door.clear()
        assert late.cancelled()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())


async def _stranger(stack: contextlib.AsyncExitStack, ours: Any, node: Any) -> tuple[Any, asyncio.StreamWriter]:
    """A stream that ``node`` opened to us, without a word on it."""
    p2p = node.transport.p2p
    await node.transport.dial(ours.transport.peer, ours.transport.addresses())
    peer = type(p2p.peer_id).from_base58(ours.transport.peer)
    _, reader, writer = await p2p.call_binary_stream_handler(peer, PROTOCOL_ID)
    stack.callback(writer.close)
    return reader, writer


async def _closed(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(5):
        with contextlib.suppress(ConnectionResetError):
            while await reader.read(1024):
                pass


def test_of_one_peer_one_stream_waits_for_a_hello(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as ours, open_node(2) as other, contextlib.AsyncExitStack() as stack:
            streams = [await _stranger(stack, ours, other) for _ in range(2)]
            ends = [asyncio.create_task(_closed(reader)) for reader, _ in streams]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            assert ours.transport.refused == 1
            (left,) = (place for place, end in enumerate(ends) if not end.done())  # p2pd may swap the two
            ends[left].cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            reader, writer = streams[left]
            writer.write(encode_hello(Hello(RUN, "test")))
            async with asyncio.timeout(5):
                assert await reader.readexactly(4), "the other is answered"

    asyncio.run(scenario())


def test_nothing_is_kept_of_a_stranger_that_left(open_node: OpenNode) -> None:
    """Before, its link was tried for 600 s and its counter kept for ever."""

    async def scenario() -> None:
        async def greet(_: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(encode_hello(Hello(RUN, "stranger")))
            while await reader.read(1024):
                pass
            writer.close()

        async with open_node(1) as ours, open_node(2) as other, contextlib.AsyncExitStack() as stack:
            await other.transport.p2p.remove_binary_stream_handler(PROTOCOL_ID)
            await other.transport.p2p.add_binary_stream_handler(PROTOCOL_ID, greet)
            reader, writer = await _stranger(stack, ours, other)
            assert ours.transport.traffic().peers == {}, "no counter before the hello"
            await ours.transport.count_connections()
            assert {gauge.name: gauge.in_use for gauge in ours.transport.gauges()}["connections"] == 1
            writer.write(encode_hello(Hello(RUN, "stranger")))
            await ours.until(lambda: other.transport.peer in ours.neighbours)
            assert other.transport.peer in ours.transport.traffic().peers
            writer.close()
            await _closed(reader)
            await ours.until(lambda: not ours.transport.neighbours())
            traffic = ours.transport.traffic()
            assert traffic.peers == {}
            hello = len(encode_hello(Hello(RUN, "test 1")))
            assert traffic.sent >= 2 * hello and traffic.received >= 2 * hello, "but the bytes count"

    asyncio.run(scenario())


def test_an_offender_that_comes_back_loses_all_its_connections(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as ours, open_node(2) as other, contextlib.AsyncExitStack() as stack:
            ours.transport.guard.punish(other.transport.peer, "lied")
            reader, _ = await _stranger(stack, ours, other)
            await _closed(reader)
            async with asyncio.timeout(5):
                connections = None
                while connections != 0:
                    await ours.transport.count_connections()
                    (connections,) = (each.in_use for each in ours.transport.gauges() if each.name == "connections")

    asyncio.run(scenario())


def test_a_member_is_never_cut_off(open_node: OpenNode) -> None:
    async def scenario() -> None:
        members: set[str] = set()
        async with open_node(1, members=lambda: frozenset(members)) as ours, open_node(2) as other:
            members.add(other.transport.peer)
            ours.transport.guard.punish(other.transport.peer, "lied")
            await other.transport.connect(ours.transport.peer, ours.transport.addresses())
            await ours.until(lambda: other.transport.peer in ours.neighbours)  # p2pd was told to keep it

    asyncio.run(scenario())


def test_a_peer_that_was_asked_for_is_tried_again_and_another_is_not(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as ours, open_node(2) as other:
            nowhere = ["/ip4/127.0.0.1/tcp/1"]
            with pytest.raises(TransportError, match="refused"):
                await ours.transport.connect(other.transport.peer, nowhere, keep=False)
            assert ours.transport.traffic().peers == {}
            with pytest.raises(TransportError, match="refused"):
                await ours.transport.connect(other.transport.peer, nowhere)
            with pytest.raises(TransportError):  # the link stays, whoever asks
                await ours.transport.connect(other.transport.peer, nowhere, keep=False)
            assert set(ours.transport.traffic().peers) == {other.transport.peer}

    asyncio.run(scenario())


def test_reopened_stream_is_a_new_neighbour(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as ours, open_node(2) as other:
            seen: list[frozenset[PeerId]] = []

            def on_neighbours(neighbours: frozenset[PeerId]) -> None:
                seen.append(neighbours)
                ours.changed.set()

            ours.transport._on_neighbours = on_neighbours
            await ours.transport.connect(other.transport.peer, other.transport.addresses())
            ours.transport.reopen(other.transport.peer, "reads too slowly")
            await ours.until(lambda: len(seen) >= 3)
            there = frozenset({other.transport.peer})
            assert seen == [there, frozenset(), there]
            await ours.transport.send(other.transport.peer, "statement", [b"again"])
            await other.until(lambda: bool(other.frames))

    asyncio.run(scenario())


def test_defect_while_opening_fails_who_waits_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        tries = 0

        async def broken(_: Link) -> FrameStream:
            nonlocal tries
            tries += 1
            raise RuntimeError("unable to perform operation on <UnixTransport closed=True>; the handler is closed")

        timing = Timing(first_retry_s=0.01, last_retry_s=0.02)
        config = LinkConfig(Hello(RUN, "test"), timing, broken, lambda _: True, lambda: None, lambda _: None)
        link = Link(MEMBER, config, Counter())
        for _ in range(3):
            with pytest.raises(TransportError, match="member: failed here: RuntimeError.*handler is closed"):
                async with asyncio.timeout(5):
                    await link.ready()
        assert tries == 3
        await link.close()
        with pytest.raises(TransportError, match="member"):
            await link.ready()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "Traceback" in caplog.text


class Refuser:
    """Opens streams to a peer that refuses every one of them, until it is told otherwise."""

    def __init__(self) -> None:
        self.tries = 0
        self.tried: asyncio.Queue[int] = asyncio.Queue()
        self.kept = True
        self.forgotten = asyncio.Event()

    async def open(self, link: Link) -> FrameStream:
        self.tries += 1
        self.tried.put_nowait(self.tries)
        raise Refused(link.peer, "refused us: too old")

    def link(self, refused_retry_s: float) -> Link:
        timing = Timing(first_retry_s=0.01, last_retry_s=0.02, refused_retry_s=refused_retry_s)
        return Link(
            MEMBER,
            LinkConfig(
                Hello(RUN, "test"), timing, self.open, lambda _: self.kept, lambda: None, lambda _: self.forgotten.set()
            ),
            Counter(),
        )


def test_whoever_refuses_us_is_left_alone_however_often_it_is_asked_for() -> None:
    """Before, each look into the directory dialled it again, every 15 s instead of every 2 minutes."""

    async def scenario() -> None:
        refuser = Refuser()
        link = refuser.link(refused_retry_s=60)
        for _ in range(20):
            link.hurry()
            with pytest.raises(Refused, match="member: refused us: too old"):
                async with asyncio.timeout(5):
                    await link.ready()
        assert refuser.tries == 1
        link.heard()  # it came to us, so it has changed its mind
        async with asyncio.timeout(5):
            assert [await refuser.tried.get() for _ in range(2)] == [1, 2]
        await link.close()

    asyncio.run(scenario())


def test_whoever_refuses_us_is_tried_again_later_or_forgotten() -> None:
    async def scenario() -> None:
        refuser = Refuser()
        link = refuser.link(refused_retry_s=0.02)
        async with asyncio.timeout(5):
            assert [await refuser.tried.get() for _ in range(3)] == [1, 2, 3]
        refuser.kept = False
        async with asyncio.timeout(5):
            await refuser.forgotten.wait()
        await link.close()

    asyncio.run(scenario())
