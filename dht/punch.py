"""Hole punching with one helper: both peers drop the relayed connection and dial each other's UDP end at one instant.

p2pd's own punching (DCUtR) begins only once four observers over one transport have told it a public address; this
needs one. Measured between two port-preserving NATs: 5 to 10 ms.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from protocols.errors import MurmurError, RemoteError, TransportError
from protocols.punch import Punch

from .control import deadline
from .limits import PUNCHES, PUNCHES_ALL, Bucket, Buckets
from .tasks import end

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.ids import PeerId

    from .stream import FrameStream
    from .transport import StreamTransport

log = logging.getLogger(__name__)

PROTOCOL = "/murmur/1/punch"
AGREE_S = 5.0
"""For the words before it."""
LEAD_S = 0.05
DIAL_S = 2.0
"""For the dial: it succeeds within 0.3 s or not at all."""


class Puncher:
    """Punches when asked, and when a peer asks. ``close`` ends what is under way."""

    def __init__(
        self,
        transport: StreamTransport,
        end_of: Callable[[], str],
        *,
        done: Callable[[PeerId, bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``end_of`` gives this peer's UDP end as observers see it, or ""; ``done`` hears of each outcome."""
        self._transport, self._end_of, self._done, self._clock = transport, end_of, done, clock
        self._asked: Buckets[PeerId] = Buckets(PUNCHES)
        self._asked_in_all = Bucket(PUNCHES_ALL, clock())
        self._under_way: dict[PeerId, asyncio.Task[bool]] = {}

    async def start(self) -> None:
        """Serve the protocol; raises TransportError."""
        await self._transport.serve(PROTOCOL, self._serve)

    async def close(self) -> None:
        """End every dial under way."""
        await end(list(self._under_way.values()))

    async def punch(self, peer: PeerId, *, lead: bool = False) -> bool:
        """Agree with a peer to which a relayed connection exists, and dial; whether it worked.

        ``lead``: this side dials ``LEAD_S`` before the other, else after it. A container's host answers a packet that
        comes before its own has gone out with a refusal, and gives it another port then: so each side leads by turns.

        Raises TransportError and RemoteError when no agreement comes about.
        """
        own = self._end_of()
        if not own:
            raise TransportError(peer, "no UDP connection leads out of this network")
        if peer in self._under_way:
            raise TransportError(peer, "is being dialled already")
        async with deadline(peer, AGREE_S), self._transport.call(peer, PROTOCOL) as stream:
            began = self._clock()
            await stream.send("punch", [Punch(own).encode()])
            theirs = await _offer(stream)
            there = (self._clock() - began) / 2
            if not theirs.address:
                raise TransportError(peer, "has no UDP")
            await stream.send("punch", [Punch(after_ms=round(LEAD_S * 1000) if lead else 0).encode()])
            await asyncio.sleep(there + (0.0 if lead else LEAD_S))  # the signal takes so long
        return await self._begin(peer, theirs.address)

    async def _serve(self, stream: FrameStream) -> None:
        peer = stream.peer
        async with deadline(peer, AGREE_S):
            theirs = await _offer(stream)
            own = self._end_of() if self._may_ask(stream) else ""
            await stream.send("punch", [Punch(own if theirs.address else "").encode()])
            if own and theirs.address:
                signal = await _offer(stream)
                await asyncio.sleep(signal.after_ms / 1000)
                self._begin(peer, theirs.address)

    def _may_ask(self, stream: FrameStream) -> bool:
        """Only who comes through a relay has need of it, and strangers cannot make us write to others often."""
        now, peer = self._clock(), stream.peer
        return (
            "/p2p-circuit" in stream.address
            and peer not in self._under_way
            and self._asked.take(peer, now)
            and self._asked_in_all.take(now)
        )

    def _begin(self, peer: PeerId, address: str) -> asyncio.Task[bool]:
        """In a task of its own: the stream over which it was agreed ends with the connection.

        One at a time with a peer, which may ask for another while we ask it.
        """
        if (task := self._under_way.get(peer)) is not None:
            return task
        task = asyncio.create_task(self._dial(peer, address), name=f"punch {peer}")
        self._under_way[peer] = task
        task.add_done_callback(lambda _: self._under_way.pop(peer, None))
        return task

    async def _dial(self, peer: PeerId, address: str) -> bool:
        worked = False
        try:
            worked = await self._transport.routes.redial(peer, f"{address}/p2p/{peer}", within=DIAL_S)
        except MurmurError as error:
            log.info("no hole to %s: %s", peer, error)
        self._done(peer, worked)
        return worked


async def _offer(stream: FrameStream) -> Punch:
    kind, payload = await stream.receive()
    if kind != "punch":
        raise RemoteError(stream.peer, f"sent a {kind} frame where a punch belongs")
    return Punch.decode(payload, sender=stream.peer)
