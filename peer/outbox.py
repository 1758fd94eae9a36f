"""What is to be sent to each neighbour, in order, by one task per neighbour."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from protocols.errors import TransportError
from protocols.ids import PeerId, short
from protocols.ports import Buffer, Transport

log = logging.getLogger(__name__)

QUEUE_FRAMES = 4096
"""Frames waiting for one neighbour; one that reads slower than this is let go of until it reconnects."""

_Frame = tuple[str, Sequence[Buffer]]


class Streams(Transport, Protocol):
    """What an outbox needs of a transport."""

    def reopen(self, peer: PeerId, reason: str) -> None:
        """Drop the stream to ``peer`` with all that waits in it and open a new one: ``peer`` goes and comes again."""


class Outbox:
    """A queue and a sender task per neighbour. Buffers are referenced, not copied: they must not change."""

    def __init__(self, transport: Streams) -> None:
        self._transport = transport
        self._queues: dict[PeerId, asyncio.Queue[_Frame]] = {}
        self._tasks: dict[PeerId, asyncio.Task[None]] = {}
        self._leaving: frozenset[PeerId] = frozenset()  # let go of, and still on their old stream

    def connect(self, neighbours: frozenset[PeerId]) -> list[PeerId]:
        """Serve exactly these neighbours from now on; returns those on a new stream, who know nothing yet."""
        for gone in self._queues.keys() - neighbours:
            self._drop(gone)
        self._leaving &= neighbours
        new = sorted(neighbours - self._queues.keys() - self._leaving)
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
            self.let_go(to, f"reads too slowly, {QUEUE_FRAMES} frames wait")

    def flood(self, kind: str, payload: Sequence[Buffer], source: PeerId | None) -> None:
        """Queue a frame for every neighbour but ``source``."""
        for peer in list(self._queues):
            if peer != source:
                self.post(peer, kind, payload)

    def let_go(self, peer: PeerId, reason: str) -> None:
        """Drop what waits for a neighbour and reopen its stream, upon which ``connect`` returns it as new."""
        if peer in self._queues:
            self._drop(peer)
            self._leaving |= {peer}
            self._transport.reopen(peer, reason)

    async def drained(self) -> None:
        """Wait until everything queued was handed to the transport or given up; the caller sets the deadline."""
        await asyncio.gather(*(queue.join() for queue in self._queues.values()))

    async def close(self) -> None:
        """Cancel and await every sender."""
        tasks = list(self._tasks.values())
        for peer in list(self._queues):
            self._drop(peer)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop(self, peer: PeerId) -> None:
        queue = self._queues.pop(peer)
        self._tasks.pop(peer).cancel()
        while not queue.empty():  # whoever waits in ``drained`` need not wait for these
            queue.get_nowait()
            queue.task_done()

    async def _serve(self, peer: PeerId, queue: asyncio.Queue[_Frame]) -> None:
        while True:
            kind, payload = await queue.get()
            try:
                await self._transport.send(peer, kind, payload)
            except TransportError as error:
                log.debug("%s frame not sent: %s", kind, error)
            except Exception:  # a defect, such as a frame over its limit: it must be seen, and the next ones sent
                log.exception("a %s frame to %s could not be sent", kind, short(peer))
            finally:
                queue.task_done()
