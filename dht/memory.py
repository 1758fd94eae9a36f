"""A network inside one process: frames wait in an explicit queue until somebody asks for the next.

``MemoryNetwork`` alone, without asyncio, drives pure machines; ``MemoryTransport`` is the ``Transport``
of code that expects one. Frames between two peers never overtake each other; between different
pairs the order is that of posting, or drawn from the generator that was passed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.errors import LocalError, RemoteError, TransportError
from protocols.frames import PAYLOAD_LIMITS

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from protocols.ids import PeerId
    from protocols.ports import Buffer, FrameHandler


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame under way."""

    sender: PeerId
    to: PeerId
    kind: str
    payload: bytes


class MemoryNetwork:
    """Frames under way between peers, and the handlers of those that are attached."""

    def __init__(self, draw: random.Random | None = None) -> None:
        """``draw`` picks which pair's oldest frame comes next; without it, the frame posted first."""
        self._draw = draw
        self._order: deque[tuple[PeerId, PeerId]] = deque()
        self._channels: dict[tuple[PeerId, PeerId], deque[Frame]] = {}
        self._handlers: dict[PeerId, FrameHandler] = {}
        self.refused: list[RemoteError] = []
        """What handlers raised about senders, in order."""

    def __len__(self) -> int:
        return len(self._order)

    def post(self, sender: PeerId, to: PeerId, kind: str, payload: bytes) -> None:
        """Put one frame under way; raises LocalError when no stream would take it."""
        limit = PAYLOAD_LIMITS.get(kind)
        if limit is None or len(payload) > limit:
            raise LocalError(f"{kind} frame of {len(payload)} bytes, limit {limit}")
        pair = (sender, to)
        self._channels.setdefault(pair, deque()).append(Frame(sender, to, kind, payload))
        self._order.append(pair)

    def pop(self) -> Frame | None:
        """Take the next frame out; None when nothing is under way."""
        if not self._order:
            return None
        index = 0 if self._draw is None else self._draw.randrange(len(self._order))
        pair = self._order[index]
        del self._order[index]
        return self._channels[pair].popleft()

    def attach(self, peer: PeerId, handler: FrameHandler) -> MemoryTransport:
        """Make ``peer`` reachable; returns its transport."""
        self._handlers[peer] = handler
        return MemoryTransport(self, peer)

    def detach(self, peer: PeerId) -> None:
        """Make ``peer`` unreachable; frames under way to it are dropped on delivery."""
        self._handlers.pop(peer, None)

    def attached(self) -> frozenset[PeerId]:
        """All reachable peers."""
        return frozenset(self._handlers)

    async def deliver_next(self) -> bool:
        """Hand the next frame to its receiver's handler; False when nothing was under way."""
        frame = self.pop()
        if frame is None:
            return False
        handler = self._handlers.get(frame.to)
        if handler is not None:
            try:
                await handler(frame.sender, frame.kind, frame.payload)
            except RemoteError as error:
                self.refused.append(error)
        return True

    async def run(self, *, limit: int = 1_000_000) -> int:
        """Deliver until nothing is under way; returns how many. Raises LocalError after ``limit`` frames."""
        delivered = 0
        while await self.deliver_next():
            delivered += 1
            if delivered >= limit:
                raise LocalError(f"still not idle after {limit} frames")
        return delivered


class MemoryTransport:
    """``protocols.ports.Transport`` of one peer of a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, peer: PeerId) -> None:
        self._network = network
        self._peer = peer

    @property
    def peer(self) -> PeerId:
        """This peer."""
        return self._peer

    def neighbours(self) -> frozenset[PeerId]:
        """Every other attached peer."""
        return self._network.attached() - {self._peer}

    async def send(self, to: PeerId, kind: str, payload: Sequence[Buffer]) -> None:
        """Put one frame under way (copied); raises TransportError when ``to`` is not attached."""
        if to not in self.neighbours():
            raise TransportError(to, "no stream to this peer")
        self._network.post(self._peer, to, kind, b"".join(payload))
