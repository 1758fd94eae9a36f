"""Hole punching with one helper: both peers drop the relayed connection and dial each other's UDP end at one instant.

p2pd's own punching (DCUtR) begins only once four observers over one transport have told it a public address; this
needs one. Measured between two port-preserving NATs: 5 to 10 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from protocols.errors import MurmurError, RemoteError, TransportError
from protocols.punch import AFTER_MS, Punch

from .control import in_time
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
"""Between the two dials."""
FIRST_S = 0.25
"""The same where one side has asked to be first."""
DROP_S = 0.5
"""For the other side to drop the connection after the signal, beside the way there and back."""
DIAL_S, DIAL_MOST_S = 0.8, 2.0
"""For the dial: in the lab it succeeds within 0.3 s or not at all. Three round trips through the relay are added."""


class Puncher:
    """Punches when asked, and when a peer asks. ``close`` ends what is under way."""

    def __init__(
        self,
        transport: StreamTransport,
        end_of: Callable[[], str],
        *,
        done: Callable[[PeerId, bool], None],
        first: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``end_of`` gives this peer's UDP end as observers see it, or ""; ``done`` hears of each outcome.

        ``first``: whether this side has to dial before the other does, as one in a container has.
        """
        self._transport, self._end_of, self._done, self._clock = transport, end_of, done, clock
        self._first = first
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
        comes before its own has gone out with a refusal, and gives it another port then: so a side that knows of one
        tells that it has to be first, by ``FIRST_S``, and where none or both do each leads by turns.

        Raises TransportError and RemoteError when no agreement comes about.
        """
        own = self._end_of()
        if not own:
            raise TransportError(peer, "no UDP connection leads out of this network")
        if peer in self._under_way:
            raise TransportError(peer, "is being dialled already")
        async with in_time(peer, AGREE_S), self._transport.call(peer, PROTOCOL) as stream:
            began = self._clock()
            offer = self._offer(own)
            await stream.send("punch", [offer.encode()])
            theirs = await _offer(stream)
            trip = self._clock() - began
            if not theirs.address:
                raise TransportError(peer, "has no UDP")
            ours_s, theirs_s = turns(offer.after_ms / 1000, theirs.after_ms / 1000, lead=lead, trip=trip)
            await stream.send("punch", [Punch(after_ms=min(AFTER_MS, round(theirs_s * 1000))).encode()])
            await _dropped(stream, DROP_S + 2 * trip)
        return await self._begin(peer, theirs.address, after=ours_s, trip=trip)

    async def _serve(self, stream: FrameStream) -> None:
        peer = stream.peer
        async with in_time(peer, AGREE_S):
            theirs = await _offer(stream)
            own = self._end_of()
            own = own if own and theirs.address and self._may_ask(stream) else ""
            began = self._clock()
            await stream.send("punch", [self._offer(own).encode()])
            if own:
                signal = await _offer(stream)
                self._begin(peer, theirs.address, after=signal.after_ms / 1000, trip=self._clock() - began)

    def _offer(self, own: str) -> Punch:
        return Punch(own, round(FIRST_S * 1000) if own and self._first() else 0)

    def _may_ask(self, stream: FrameStream) -> bool:
        """Only who comes through a relay has need of it, and strangers cannot make us write to others often."""
        now, peer = self._clock(), stream.peer
        return (
            "/p2p-circuit" in stream.address
            and peer not in self._under_way
            and self._asked.take(peer, now)
            and self._asked_in_all.take(now)
        )

    def _begin(self, peer: PeerId, address: str, *, after: float, trip: float) -> asyncio.Task[bool]:
        """In a task of its own: the stream over which it was agreed ends with the connection.

        One at a time with a peer, which may ask for another while we ask it.
        """
        if (task := self._under_way.get(peer)) is not None:
            return task
        task = asyncio.create_task(self._dial(peer, address, after, trip), name=f"punch {peer}")
        self._under_way[peer] = task
        task.add_done_callback(lambda _: self._under_way.pop(peer, None))
        return task

    async def _dial(self, peer: PeerId, address: str, after: float, trip: float) -> bool:
        worked, within = False, min(DIAL_S + 3 * trip, DIAL_MOST_S)
        try:
            routes = self._transport.routes
            worked = await routes.redial(peer, f"{address}/p2p/{peer}", within=within, after=after)
        except MurmurError as error:
            log.info("no hole to %s: %s", peer, error)
        self._done(peer, worked)
        return worked


def turns(ours: float, theirs: float, *, lead: bool, trip: float) -> tuple[float, float]:
    """How long the caller and the called wait between the drop and their dial, seconds.

    ``ours``, ``theirs``: by how much each has to be first; 0: it need not. The called drops the connection when the
    signal comes and the caller when it sees that, half a ``trip`` later.
    """
    if bool(ours) != bool(theirs):
        lead = bool(ours)
    by = max(ours, theirs) if bool(ours) != bool(theirs) else LEAD_S
    return (0.0, by + trip / 2) if lead else (by, 0.0)


async def _dropped(stream: FrameStream, within: float) -> None:
    """Wait until the other side has heard the signal: it drops the connection, and with it this stream.

    Whoever dropped it first would take the signal away before it has arrived.
    """
    with contextlib.suppress(MurmurError, TimeoutError):
        async with asyncio.timeout(within):
            await stream.receive()


async def _offer(stream: FrameStream) -> Punch:
    kind, payload = await stream.receive()
    if kind != "punch":
        raise RemoteError(stream.peer, f"sent a {kind} frame where a punch belongs")
    return Punch.decode(payload, sender=stream.peer)
