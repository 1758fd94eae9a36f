"""FC02: many large records stored while the loop is busy, and what is too large refused in words; nothing dies."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from hivemind.dht.node import DHTNode

from dht.directory import Directory
from dht.records import RECORD_LIMIT, PeerRecord, encode_record
from protocols.errors import LocalError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    OpenNode = Callable[..., AbstractAsyncContextManager[Any]]

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

RUN = bytes(range(32))
RECORDS = 200
BUSY_S = 0.005
"""Of every turn of the loop: what hashing and encoding may take in a daemon that trains."""


def _record(node: Any, number: int, size: int) -> PeerRecord:
    """A record whose signed bytes are ``size`` long or a little more."""
    ends = [f"/ip4/203.0.113.7/tcp/{number}/p2p/{node.transport.peer}"]
    each = "€" * 500 if size <= RECORD_LIMIT else "€" * 2000
    while sum(len(end.encode()) for end in ends) < size - 300:
        ends.append(f"/dns4/{each}/tcp/{len(ends)}")
    record = PeerRecord(RUN, node.transport.peer, tuple(ends), ("trainer",), "0.1.0", number, 0, 0)
    return record


async def _keep_busy() -> None:
    while True:
        until = time.perf_counter() + BUSY_S
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(BUSY_S)


@contextlib.asynccontextmanager
async def _directory(node: Any, seeds: list[str]) -> AsyncIterator[Directory]:
    directory = Directory(node.transport, RUN, node.identity.sign)
    await directory.start(seeds)
    try:
        yield directory
    finally:
        await directory.close()


def test_fc02_through_our_directory(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            everyone: set[str] = set()
            seed, one = [
                await stack.enter_async_context(open_node(number, members=lambda: frozenset(everyone)))
                for number in (1, 2)
            ]
            everyone |= {seed.transport.peer, one.transport.peer}
            there = await stack.enter_async_context(_directory(seed, []))
            here = await stack.enter_async_context(_directory(one, seed.transport.addresses()))
            busy = asyncio.create_task(_keep_busy())
            try:
                async with asyncio.timeout(120):
                    for number in range(1, RECORDS + 1):
                        record = _record(one, number, 12_000)
                        assert 12_000 <= len(encode_record(record, one.identity.sign)) <= RECORD_LIMIT
                        here.announce(record)
                        await _arrived(there, one.transport.peer, record)
            finally:
                busy.cancel()
            large = _record(one, 1, 60_000)
            with pytest.raises(LocalError, match=r"a peer record of 6\d{4} bytes is larger than .*\(16384\)"):
                here.announce(large)
            assert [each.head_round for each in await there.peers()] == [RECORDS]
            assert (one.p2pd.restarts, seed.p2pd.restarts) == (0, 0)

    asyncio.run(scenario())


async def _arrived(directory: Directory, peer: str, expected: PeerRecord) -> None:
    while True:
        found = {each.peer: each for each in await directory.peers()}
        if peer in found and found[peer].head_round == expected.head_round:
            assert found[peer].addresses == expected.addresses
            return


def test_fc02_on_the_bare_node(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as one, open_node(2) as two:
            await two.transport.dial(one.transport.peer, one.transport.addresses())
            nodes = [await DHTNode.create(p2p=each.transport.p2p) for each in (one, two)]
            assert await nodes[1].protocol.call_ping(one.transport.p2p.peer_id) is not None
            await nodes[1].find_nearest_nodes([nodes[1].node_id])
            expires = time.time() + 300
            for size in (60_000, 1_000_000):
                value = bytes([size % 251]) * size
                assert await nodes[1].store(f"key {size}", value, expires, exclude_self=True)
                answer = await nodes[0].get(f"key {size}")
                assert answer is not None and answer.value == value
            stored = await nodes[1].store("key", bytes(6_000_000), expires, exclude_self=True)
            assert not stored, "more than p2pd takes in one message"
            assert await nodes[1].protocol.call_ping(one.transport.p2p.peer_id) is not None  # it had given that one up
            await nodes[1].find_nearest_nodes([nodes[1].node_id])
            assert await nodes[1].store("after", b"it goes on", expires, exclude_self=True)
            assert (one.p2pd.restarts, two.p2pd.restarts) == (0, 0)
            for node in nodes:
                await node.shutdown()

    asyncio.run(scenario())
