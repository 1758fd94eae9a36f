"""What is to be sent to each neighbour, in order, by one task per neighbour."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from protocols.errors import TransportError
from protocols.ids import PeerId, short
from protocols.ports import Buffer, Transport

log = logging.getLogger(__name__)

QUEUE_FRAMES = 4096
"""Frames waiting for one neighbour; one that reads slower than this is let go of until it reconnects."""

_Frame = tuple[str, Sequence[Buffer]]


class Outbox:
    """A queue and a sender task per neighbour. Buffers are referenced, not copied: they must not change."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._queues: dict[PeerId, asyncio.Queue[_Frame]] = {}
        self._tasks: dict[PeerId, asyncio.Task[None]] = {}

    def connect(self, neighbours: frozenset[PeerId]) -> list[PeerId]:
        """Serve exactly these neighbours from now on; returns those that are new."""
        for gone in self._queues.keys() - neighbours:
            self._drop(gone)
        new = sorted(neighbours - self._queues.keys())
        for peer in new:
            self._queues[peer] = asyncio.Queue(QUEUE_FRAMES)
            self._tasks[peer] = asyncio.create_task(self._serve(peer, self._queues[peer]), name=f"outbox {short(peer)}")
        return new

    def post(self, to: PeerId, kind: str, payload: Sequence[Buffer]) -> None:
        """Queue a frame; one for a peer that is no neighbour is dropped, it will be told when it connects."""
        queue = self._queues.get(to)
        if queue is None:
            return
        try:
            queue.put_nowait((kind, payload))
        except asyncio.QueueFull:
            log.warning("%s reads too slowly: %d frames wait; letting it go", short(to), QUEUE_FRAMES)
            self._drop(to)

    def flood(self, kind: str, payload: Sequence[Buffer], source: PeerId | None) -> None:
        """Queue a frame for every neighbour but ``source``."""
        for peer in list(self._queues):
            if peer != source:
                self.post(peer, kind, payload)

    async def drained(self) -> None:
        """Wait until everything queued was handed to the transport; the caller sets the deadline."""
        await asyncio.gather(*(queue.join() for queue in self._queues.values()))

    async def close(self) -> None:
        """Cancel and await every sender."""
        tasks = list(self._tasks.values())
        for peer in list(self._queues):
            self._drop(peer)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop(self, peer: PeerId) -> None:
        del self._queues[peer]
        self._tasks.pop(peer).cancel()

    async def _serve(self, peer: PeerId, queue: asyncio.Queue[_Frame]) -> None:
        while True:
            kind, payload = await queue.get()
            try:
                await self._transport.send(peer, kind, payload)
            except TransportError as error:
                log.debug("%s frame not sent: %s", kind, error)
            finally:
                queue.task_done()
