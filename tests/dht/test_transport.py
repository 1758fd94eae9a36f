"""Two to four transports over real p2pd on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from itertools import permutations
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from dht.handshake import Hello, decode_hello, encode_hello
from dht.stream import Timing
from dht.transport import PROTOCOL_ID
from protocols.errors import LocalError, TransportError
from protocols.frames import Header, encode_header

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    OpenNode = Callable[..., AbstractAsyncContextManager[Any]]

RUN = bytes(range(32))
MIB = 1 << 20


def test_four_peers_exchange_frames_in_order(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(open_node(number)) for number in range(1, 5)]
            for first, second in zip(nodes, nodes[1:] + nodes[:1], strict=True):
                await first.transport.connect(second.transport.peer, second.transport.addresses())
            await nodes[0].transport.connect(nodes[2].transport.peer, nodes[2].transport.addresses())
            await nodes[1].transport.connect(nodes[3].transport.peer, nodes[3].transport.addresses())
            everyone = {node.transport.peer for node in nodes}
            for node in nodes:  # whoever is dialled opens a stream back
                others = everyone - {node.transport.peer}
                await node.until(lambda node=node, others=others: node.transport.neighbours() == others)
                assert node.neighbours == others

            draw = Random(7)
            frames = {
                (sender.transport.peer, to.transport.peer): [
                    draw.randbytes(size) for size in (MIB, 0, 1, MIB - 3, 300_000, MIB, MIB - 300_000)
                ]
                for sender, to in permutations(nodes, 2)
            }

            async def send_all(sender: Any, to: Any) -> None:
                for frame in frames[sender.transport.peer, to.transport.peer]:
                    half = len(frame) // 2
                    await sender.transport.send(to.transport.peer, "parts", [frame[:half], memoryview(frame)[half:]])

            await asyncio.gather(*(send_all(sender, to) for sender, to in permutations(nodes, 2)))
            for node in nodes:
                await node.until(lambda node=node: len(node.frames) == 3 * 7)
                for sender in everyone - {node.transport.peer}:
                    got = [payload for origin, _, payload in node.frames if origin == sender]
                    assert got == frames[sender, node.transport.peer]

            one, two = nodes[0].transport, nodes[1].transport
            payload = sum(map(len, frames[one.peer, two.peer]))
            sent, received = one.traffic().peers[two.peer]
            assert (received, sent) == two.traffic().peers[one.peer]
            assert payload < sent < payload + 2_000
            assert one.traffic().sent == sum(sent for sent, _ in one.traffic().peers.values())

    asyncio.run(scenario())


def test_another_run_is_refused_in_words_on_both_sides(open_node: OpenNode, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with open_node(1) as ours, open_node(2, run=b"x" * 32) as theirs:
            with pytest.raises(TransportError, match="belongs to run 7878787878787878, this daemon to run 0001020304"):
                await ours.transport.connect(theirs.transport.peer, theirs.transport.addresses())
            text = "belongs to run 0001020304050607, this daemon to run 7878787878787878"
            assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and text in r.getMessage()]
            assert ours.transport.peer in caplog.text
            assert ours.transport.neighbours() == theirs.transport.neighbours() == frozenset()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())


def test_a_private_run_tells_a_stranger_why_and_takes_in_who_is_on_its_list(
    open_node: OpenNode, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with open_node(2) as stranger, open_node(3) as guest:
            async with open_node(1, admits=lambda peer: peer == guest.transport.peer) as private:
                addresses = private.transport.addresses()
                with pytest.raises(TransportError, match="refused us: private run: this key is not on its list"):
                    await stranger.transport.connect(private.transport.peer, addresses)
                told = f"refused {stranger.transport.peer}: private run: this key is not on its list"
                assert [each.getMessage() for each in caplog.records if each.getMessage() == told] == [told]
                with pytest.raises(TransportError, match="private run"):
                    await private.transport.connect(stranger.transport.peer, stranger.transport.addresses())
                assert stranger.transport.neighbours() == frozenset()
                await guest.transport.connect(private.transport.peer, addresses)
                await private.until(lambda: private.neighbours == {guest.transport.peer})

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())


def test_another_protocol_is_refused_in_words_on_both_sides(
    open_node: OpenNode, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with open_node(1) as ours, open_node(2) as stranger:

            async def answer(_: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await _read_hello(reader)
                writer.write(encode_hello(Hello(RUN, "future 9", protocol=9, refusal="too old")))
                assert await reader.read() == b""  # p2pd drops what is under way when its writer closes first
                writer.close()

            p2p = stranger.transport.p2p
            await ours.transport.dial(stranger.transport.peer, stranger.transport.addresses())
            _, reader, writer = await p2p.call_binary_stream_handler(_raw_id(p2p, ours), PROTOCOL_ID)
            writer.write(encode_hello(Hello(RUN, "future 9", protocol=9)))
            reply = await _read_hello(reader)
            assert reply.refusal == "speaks protocol 1 (software test 1), this daemon 9 (software future 9)"
            writer.close()
            assert "speaks protocol 9 (software future 9), this daemon 1 (software test 1)" in caplog.text

            await p2p.remove_binary_stream_handler(PROTOCOL_ID)
            await p2p.add_binary_stream_handler(PROTOCOL_ID, answer)
            with pytest.raises(TransportError, match=r"speaks protocol 9 \(software future 9\), this daemon 1"):
                await ours.transport.connect(stranger.transport.peer, stranger.transport.addresses())

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())


def test_garbage_is_hung_up_on_its_sender_refused_and_others_heard(
    open_node: OpenNode, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with open_node(1) as ours, open_node(2) as stranger, open_node(3) as other:
            p2p = stranger.transport.p2p
            await ours.transport.dial(stranger.transport.peer, stranger.transport.addresses())
            _, reader, writer = await p2p.call_binary_stream_handler(_raw_id(p2p, ours), PROTOCOL_ID)
            # The payload never comes: nobody may wait for it.
            writer.write(encode_hello(Hello(RUN, "liar")) + encode_header(Header("parts", RUN, 1 << 40)))
            assert (await _read_hello(reader)).refusal == ""
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
            said = f"hung up on {stranger.transport.peer}, and refused for 30 s: parts frame of 1099511627776 bytes"
            assert said in caplog.text
            assert ours.transport.hang_ups == 1 and not ours.frames

            with pytest.raises(TransportError):
                await stranger.transport.connect(ours.transport.peer, ours.transport.addresses(), keep=False)
            assert next(each for each in ours.transport.gauges() if each.name == "penalised").refused > 0
            await other.transport.connect(ours.transport.peer, ours.transport.addresses())
            await other.transport.send(ours.transport.peer, "statement", [b"still here"])
            await ours.until(lambda: [frame[2] for frame in ours.frames] == [b"still here"])

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())


def test_dead_p2pd_is_noticed_and_the_streams_come_back(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as one, open_node(2) as two:
            await one.transport.connect(two.transport.peer, two.transport.addresses())
            await two.until(lambda: one.transport.peer in two.neighbours)
            killed = two.p2pd.pid
            os.kill(killed, signal.SIGKILL)
            await one.until(lambda: not one.neighbours, within=2)
            await two.until(lambda: not two.neighbours, within=2)
            with pytest.raises(TransportError, match=two.transport.peer):
                await one.transport.send(two.transport.peer, "ping", [])

            await one.until(lambda: two.transport.peer in one.neighbours)
            await two.until(lambda: one.transport.peer in two.neighbours)
            assert two.p2pd.restarts == 1 and two.p2pd.pid not in {None, killed}
            await one.transport.send(two.transport.peer, "statement", [b"there"])
            await two.until(lambda: bool(two.frames))
            await two.transport.send(one.transport.peer, "statement", [b"back"])
            await one.until(lambda: bool(one.frames))

    asyncio.run(scenario())


def test_frozen_peer_is_given_up_and_comes_back(open_node: OpenNode) -> None:
    """All of the other machine stands still, and nobody there ends its p2pd: bytes go out and nothing comes."""

    async def scenario() -> None:
        timing = Timing(first_retry_s=0.05, last_retry_s=0.3, ping_s=0.2, silent_s=0.6, handshake_s=2, dial_s=2)
        async with open_node(1, timing=timing) as one, open_node(2) as two:
            await one.transport.connect(two.transport.peer, two.transport.addresses())
            await two.until(lambda: one.transport.peer in two.neighbours)
            os.kill(two.p2pd.pid, signal.SIGSTOP)
            await one.until(lambda: not one.neighbours, within=3)
            with pytest.raises(TransportError, match="silent"):
                await one.transport.send(two.transport.peer, "statement", [b"x"])
            os.kill(two.p2pd.pid, signal.SIGCONT)
            await one.until(lambda: two.transport.peer in one.neighbours, within=10)
            await one.transport.send(two.transport.peer, "statement", [b"there"])
            await two.until(lambda: bool(two.frames))
            assert two.p2pd.restarts == 0

    asyncio.run(scenario())


def test_addresses_that_were_learnt_serve_after_a_restart(open_node: OpenNode) -> None:
    """Who was dialled does not know where the other is; once both p2pd are new, nobody else could tell it."""

    async def scenario() -> None:
        async with open_node(1) as one, open_node(2) as two:
            await one.transport.connect(two.transport.peer, two.transport.addresses())
            await two.until(lambda: one.transport.peer in two.neighbours)
            two.transport._links[one.transport.peer].wanted = True  # as a member is
            two.transport.learn(one.transport.peer, one.transport.addresses())
            two.transport.learn(one.transport.peer, [])
            one.transport._links[two.transport.peer].addresses = ("/ip4/127.0.0.1/tcp/1",)
            os.kill(two.p2pd.pid, signal.SIGKILL)
            await two.until(lambda: not two.neighbours)
            await two.until(lambda: one.transport.peer in two.neighbours, within=5)
            await one.until(lambda: two.transport.peer in one.neighbours, within=5)

    asyncio.run(scenario())


def test_unreachable_peers_and_bad_requests_are_named(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as one, open_node(2) as two:
            absent = two.transport.peer
            with pytest.raises(TransportError, match=f"{absent}: cannot be reached: .*/tcp/1. dial.*refused"):
                await one.transport.connect(absent, ["/ip4/127.0.0.1/tcp/1"])
            with pytest.raises(TransportError, match="refused"):  # not go-libp2p's "dial backoff"
                await one.transport.dial(absent, ["/ip4/127.0.0.1/tcp/1"])
            with pytest.raises(TransportError, match="no address"):
                await one.transport.dial(absent, [])
            with pytest.raises(TransportError, match="not an address"):
                await one.transport.dial(absent, ["nonsense"])
            with pytest.raises(TransportError, match=absent):
                await one.transport.send(absent, "ping", [])
            with pytest.raises(LocalError):
                await one.transport.connect(one.transport.peer, [])
            await one.transport.forget(absent)
            assert one.transport.traffic().peers == {}

            await one.transport.connect(absent, two.transport.addresses())
            with pytest.raises(LocalError, match="limit"):
                await one.transport.send(absent, "parts", [bytes(2 * MIB)])
            await one.transport.send(absent, "statement", [b"the stream survived"])
            await two.until(lambda: bool(two.frames))

    asyncio.run(scenario())


def test_closing_leaves_no_task_behind(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as one, open_node(2) as two:
            await one.transport.connect(two.transport.peer, two.transport.addresses())
            await two.until(lambda: bool(two.neighbours))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


async def _read_hello(reader: asyncio.StreamReader) -> Hello:
    length = int.from_bytes(await reader.readexactly(4), "little")
    return decode_hello(await reader.readexactly(length), peer="test")


def _raw_id(p2p: Any, node: Any) -> Any:
    return type(p2p.peer_id).from_base58(node.transport.peer)
