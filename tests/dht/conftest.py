"""Real nodes on loopback for the tests of this folder: each with its own p2pd in its own home."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from dht.p2pd import P2pd, P2pdConfig
from dht.stream import Timing
from dht.transport import StreamTransport, TransportConfig
from peer.identity import Identity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from protocols.ids import PeerId

RUN = bytes(range(32))
QUICK = Timing(first_retry_s=0.05, last_retry_s=0.5)


@dataclass
class Node:
    """One peer: its p2pd, its transport, and what it received."""

    identity: Identity
    p2pd: P2pd
    transport: StreamTransport
    frames: list[tuple[PeerId, str, bytes]] = field(default_factory=list)
    neighbours: frozenset[PeerId] = frozenset()
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    restarted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the transport is attached to a restarted p2pd."""

    async def until(self, condition: Callable[[], bool], within: float = 15.0) -> None:
        """Wait for frames or changes of the neighbours until ``condition`` holds."""
        async with asyncio.timeout(within):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@contextlib.asynccontextmanager
async def _open_node(  # noqa: PLR0913 - each is for some tests
    home: Path,
    number: int,
    run: bytes = RUN,
    timing: Timing = QUICK,
    admits: Callable[[PeerId], bool] = lambda _: True,
    members: Callable[[], frozenset[PeerId]] = frozenset,
    *,
    quic: bool = False,
) -> AsyncIterator[Node]:
    identity = Identity.from_seed(bytes([number]) * 32)
    home = home / str(number)
    identity.save(home / "key")

    async def on_frame(sender: PeerId, kind: str, payload: bytes) -> None:
        node.frames.append((sender, kind, payload))
        node.changed.set()

    def on_neighbours(neighbours: frozenset[PeerId]) -> None:
        node.neighbours = neighbours
        node.changed.set()

    async def on_restart(control: str) -> None:
        await transport.rebind(control)
        node.restarted.set()

    transport = StreamTransport(
        TransportConfig(run, "test 1", timing),
        on_frame,
        on_neighbours=on_neighbours,
        admits=admits,
        members=members,
    )
    p2pd = P2pd(P2pdConfig(home, home / "key", host="127.0.0.1", quic=quic), on_restart)
    node = Node(identity, p2pd, transport)
    async with p2pd:
        await transport.start(p2pd.control)
        try:
            yield node
        finally:
            await p2pd.retire()
            await transport.close()


@pytest.fixture
def open_node(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Node]]:
    """``open_node(number, run=…, timing=…)``: a started node, as an async context manager."""

    def opener(number: int, **options: object) -> AbstractAsyncContextManager[Node]:
        return _open_node(tmp_path, number, **options)  # type: ignore[arg-type]

    return opener
