"""``/murmur/1/reach``: tells an asker from where it is seen, and dials it back to prove which addresses lead to it.

What is dialled is the IP address that the asker's own connection comes from, and nothing else (``protocols.reach``).
So nobody can aim us at a third machine; how often we knock at that address is bounded for each asker, for the address
and in total. The asker's part is ``ask``.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from typing import TYPE_CHECKING, Protocol

from protocols.errors import RemoteError, TransportError
from protocols.reach import BUSY, PROVEN, AskReach, Outcome, ReachReply, plan, seen, seen_ip

from .dialback import Unproven, prove
from .limits import REACH, REACH_AT_ONCE, REACH_EACH, REACH_PLACE, Bucket, Buckets, Gauge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from protocols.ids import PeerId

    from .stream import FrameStream

PROTOCOL = "/murmur/1/reach"
REQUEST_S = 10.0
"""For a request to come on a stream that was opened for it."""
ASK_S = 20.0
"""For an answer: to open the stream, and then all addresses are tried at once."""


class Caller(Protocol):
    """What of a transport is needed to ask."""

    def call(
        self, peer: PeerId, protocol: str, addresses: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[FrameStream]:
        """A greeted stream."""


async def ask(
    transport: Caller, peer: PeerId, addresses: Sequence[str] = (), *, at: Sequence[str] = (), within: float = ASK_S
) -> ReachReply:
    """Ask ``peer``, reached at the multiaddrs ``at``, about at most ``MAX_ASKED`` addresses of ours (``AskReach``).

    Raises TransportError when no answer comes within so many seconds, RemoteError when it is none, and ValueError
    where nothing of the kind may be asked.
    """
    request = AskReach(tuple(addresses))
    try:
        async with asyncio.timeout(within), transport.call(peer, PROTOCOL, at) as stream:
            await stream.send("ask-reach", [request.encode()])
            kind, payload = await stream.receive()
    except TimeoutError as error:
        raise TransportError(peer, f"did not tell within {within:.0f} s which addresses lead here") from error
    if kind != "reach":
        raise RemoteError(peer, f"a {kind} frame in place of what it found at our addresses")
    return ReachReply.decode(payload, request, sender=peer)


class ReachServer:
    """Answers requests on streams of ``PROTOCOL``: ``transport.serve(PROTOCOL, server.serve)``."""

    def __init__(
        self,
        *,
        prove: Callable[[str, PeerId], Awaitable[None]] = prove,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``prove`` returns when the peer answers at the address, and raises Unproven within some seconds otherwise."""
        self._prove, self._clock = prove, clock
        self._rate = Bucket(REACH, clock())
        self._places: Buckets[str] = Buckets(REACH_PLACE)
        self._each: Buckets[PeerId] = Buckets(REACH_EACH)
        self._running: set[PeerId] = set()
        self._gauge = Gauge("reach", REACH_AT_ONCE, "requests to dial back, of peers or in all too many")

    async def serve(self, stream: FrameStream) -> None:
        """Answer one request; raises RemoteError, TransportError."""
        peer = stream.peer
        try:
            async with asyncio.timeout(REQUEST_S):
                kind, payload = await stream.receive()
        except TimeoutError as error:
            raise TransportError(peer, "opened a stream to ask for its reach and asked nothing") from error
        if kind != "ask-reach":
            raise RemoteError(peer, f"a {kind} frame in place of a request to dial back")
        request, observed = AskReach.decode(payload, sender=peer), seen(stream.address)
        outcomes = await self._answer(peer, plan(request, observed), _place(observed))
        await stream.send("reach", [ReachReply(observed, tuple(outcomes)).encode()])

    def gauges(self) -> list[Gauge]:
        """How many requests are answered now, and how many were refused."""
        return [self._gauge]

    async def _answer(self, peer: PeerId, planned: list[tuple[str, str]], place: str) -> list[Outcome]:
        count = sum(not verdict for _, verdict in planned)
        if not count:
            return [Outcome(address, verdict) for address, verdict in planned]
        if not self._admit(peer, place, count):
            return [Outcome(address, verdict or BUSY) for address, verdict in planned]
        try:
            async with asyncio.TaskGroup() as probes:
                tasks = [probes.create_task(self._try(peer, address, verdict)) for address, verdict in planned]
            return [task.result() for task in tasks]
        finally:
            self._running.discard(peer)
            self._gauge.leave()

    def _admit(self, peer: PeerId, place: str, count: int) -> bool:
        """Whether ``count`` addresses may be dialled now; then one more request is running."""
        now = self._clock()
        if (
            peer not in self._running
            and self._each.take(peer, now, count)
            and self._places.take(place, now, count)
            and self._rate.take(now, count)
        ):
            if not self._gauge.enter():
                return False
            self._running.add(peer)
            return True
        self._gauge.refused += 1
        return False

    async def _try(self, peer: PeerId, address: str, verdict: str) -> Outcome:
        if verdict:
            return Outcome(address, verdict)
        try:
            await self._prove(address, peer)
        except Unproven as error:
            return Outcome(address, error.found)
        return Outcome(address, PROVEN)


def _place(observed: str) -> str:
    """What is shared by those that one house's line leads to."""
    ip = seen_ip(observed)
    return str(ipaddress.ip_network((ip, 64), strict=False)) if ip is not None and ip.version == 6 else str(ip)
