"""What becomes of look-ups when the directory's node is ended."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from dht.node import Node


def test_a_look_up_under_way_ends_with_its_node() -> None:
    """Before, one on a p2pd that was gone waited for its deadline of 20 s, and the record to be stored with it."""

    async def never(_: Any) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        transport: Any = SimpleNamespace(attached=False)
        node = Node(transport, None, request_s=3.0, search_s=60.0)
        node._node = SimpleNamespace(is_alive=True)
        searches = [asyncio.create_task(node.search(never)) for _ in range(2)]
        await asyncio.sleep(0)
        began = time.monotonic()
        await node.end()
        assert await asyncio.gather(*searches) == [None, None]
        assert time.monotonic() - began < 5
        assert not node._searches and await node.search(never) is None

    asyncio.run(scenario())


def test_a_node_is_ended_while_a_look_up_is_past_its_deadline() -> None:
    """hivemind may take its time after a cancellation."""
    ending, let_go = asyncio.Event(), asyncio.Event()

    async def slow(_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await let_go.wait()

    async def scenario() -> None:
        transport: Any = SimpleNamespace(attached=False)
        node = Node(transport, None, request_s=3.0, search_s=0.01)
        node._node = SimpleNamespace(is_alive=True)
        search = asyncio.create_task(node.search(slow))
        async with asyncio.timeout(10):
            await ending.wait()
            await node.end()
            let_go.set()
            assert await search is None

    asyncio.run(scenario())
