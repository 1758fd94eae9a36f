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
