"""Frames to and from the peers of one run, over libp2p streams that p2pd opens and encrypts.

To each neighbour we hold one outgoing stream, for everything we send; what it sends comes on a stream that
it opened. libp2p authenticates both ends, so a frame's sender is certain. Nothing here outlives ``close``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from protocols.errors import LocalError, TransportError
from protocols.ids import PeerId, public_key

from .attachment import Attachment
from .control import Control, deadline
from .guard import Guard
from .handshake import PRIVATE, Hello
from .limits import CONNECTIONS, Gauge
from .links import Link, LinkConfig, Refused
from .reception import Reception
from .routes import Routes
from .services import attend, calling
from .stream import Counter, FrameStream, Timing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence

    from hivemind.p2p import P2P

    from protocols.ports import Buffer, FrameHandler

    from .services import Service
    from .stream import Ends

log = logging.getLogger(__name__)

PROTOCOL_ID = "/murmur/1/round"
ATTACH_S = 10.0
"""For any request to our own p2pd."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that crossed, headers included: in total since the start, and as (sent, received) of each peer we know."""

    sent: int
    received: int
    peers: Mapping[PeerId, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """What a transport says about itself and how patient it is."""

    run: bytes
    """Id of the run, 32 bytes."""
    software: str
    timing: Timing = Timing()
    any_run: bool = False
    """Whoever comes is served, whatever run it belongs to: a lighthouse."""


class StreamTransport:
    """``protocols.ports.Transport`` over p2pd."""

    def __init__(
        self,
        config: TransportConfig,
        handler: FrameHandler,
        *,
        on_neighbours: Callable[[frozenset[PeerId]], None] | None = None,
        members: Callable[[], frozenset[PeerId]] = frozenset,
        admits: Callable[[PeerId], bool] = lambda _: True,
    ) -> None:
        """``handler`` is awaited frame by frame, so a slow one slows its sender; a RemoteError hangs up.

        ``members`` tells who always gets in, and whose streams are opened again when they break; ``admits`` whether a
        peer may take part at all: no stream is opened to another one, and it is told why it gets none.
        """
        self._config = config
        self._handler = handler
        self._on_neighbours = on_neighbours
        self._members, self._admits = members, admits
        self._own = Hello(config.run, config.software)
        self._attachment: Attachment | None = None
        self._control = Control("", config.timing.dial_s)
        self._peer = PeerId("")
        self._listen: tuple[str, ...] = ()
        self._links: dict[PeerId, Link] = {}
        self._total = Counter()
        self.guard = Guard(members, hang_up=self._hang_up)
        self._reception = Reception(self._own, config.timing, self.guard, admits, self._total, any_run=config.any_run)
        self._services = self._reception.services
        self.routes = Routes(self)
        self._connections = Gauge("connections", CONNECTIONS, "connections", None)
        self._endings: set[asyncio.Task[None]] = set()
        self._known: frozenset[PeerId] = frozenset()
        self._closed = False

    @property
    def peer(self) -> PeerId:
        """This peer; known after ``start``."""
        return self._peer

    @property
    def p2p(self) -> P2P:
        """The attached hivemind client, for the directory; a new one after ``rebind``."""
        if self._attachment is None:
            raise LocalError("the transport is not attached to p2pd")
        return self._attachment.p2p

    @property
    def refused(self) -> int:
        """How many inbound streams were turned away because too many were open."""
        return self._reception.door.refused

    @property
    def hang_ups(self) -> int:
        """How often a peer broke the protocol."""
        return self._reception.hang_ups

    @property
    def control(self) -> Control:
        """Requests to the p2pd attached now."""
        return self._control

    def hurry(self, peer: PeerId) -> None:
        """Open the streams with ``peer`` now instead of at the end of a pause."""
        if (link := self._links.get(peer)) is not None:
            link.hurry()

    async def count_connections(self) -> None:
        """Ask p2pd which connections it holds, for ``gauges``; those with offenders are closed."""
        with contextlib.suppress(TransportError):
            peers = await self.routes.look()
            self._connections.in_use = len(peers)
            self.guard.cut_offenders(peers)

    def gauges(self) -> list[Gauge]:
        """What others may make this peer hold and do, and what was refused."""
        return [self._connections, *self._reception.door.gauges(), *self.guard.gauges()]

    @property
    def attached(self) -> bool:
        """Whether there is a ``p2p``."""
        return self._attachment is not None

    async def start(self, control: str, *, in_rounds: bool = True) -> None:
        """Attach to the p2pd at this control multiaddr and take streams; raises TransportError.

        Without ``in_rounds`` none is taken before ``enter_rounds``: nobody shall wait for who cannot take part yet.
        """
        if in_rounds:
            self._services[PROTOCOL_ID] = self._serve
        await self._attach(control)

    async def enter_rounds(self) -> None:
        """Take streams from now on."""
        await self._offer(PROTOCOL_ID, self._serve)

    async def rebind(self, control: str) -> None:
        """Attach to a restarted p2pd and open all streams anew; raises TransportError."""
        if self._closed:
            return
        await self._detach()
        await self._attach(control)
        for link in self._links.values():
            link.hurry()

    async def close(self) -> None:
        """End all streams, after what was sent has arrived, and all tasks; detach, upon which p2pd ends."""
        self._closed = self._reception.closed = True
        await asyncio.gather(*(link.close() for link in list(self._links.values())))
        await asyncio.gather(*self._endings, return_exceptions=True)
        self._links.clear()
        await self._detach()

    def neighbours(self) -> frozenset[PeerId]:
        """Peers to which a handshaken stream is open."""
        return frozenset(peer for peer, link in self._links.items() if link.stream is not None)

    def addresses(self) -> list[str]:
        """Own listen multiaddrs, each ending in ``/p2p/<own id>``."""
        return [f"{address}/p2p/{self._peer}" for address in self._listen]

    def traffic(self) -> Traffic:
        """Bytes so far."""
        peers = {peer: (link.counter.sent, link.counter.received) for peer, link in self._links.items()}
        return Traffic(self._total.sent, self._total.received, peers)

    async def connect(self, peer: PeerId, addresses: Sequence[str], *, keep: bool = True) -> None:
        """Open a stream to ``peer``; returns when it is open, raises TransportError if that fails.

        With ``keep`` it is tried again in the background, ever more slowly, after a failure and when it breaks.
        """
        if peer == self._peer:
            raise LocalError("a peer does not connect to itself")
        known = self._links.get(peer)
        link = self._link(peer)
        is_news = known is not None and bool(addresses) and known.addresses != tuple(addresses)
        link.addresses = tuple(addresses) or link.addresses
        link.wanted |= keep
        link.hurry()
        try:
            await link.ready()
        except Refused:
            raise
        except TransportError:
            if not is_news:
                raise
            await link.ready()  # the attempt under way did not know the new addresses yet

    def learn(self, peer: PeerId, addresses: Sequence[str]) -> None:
        """Where to reach a peer that we know, should its stream break; one that dialled us never told."""
        link = self._links.get(peer)
        if link is not None:
            link.addresses = tuple(addresses) or link.addresses

    async def forget(self, peer: PeerId) -> None:
        """Close the streams with ``peer`` and stop trying to reach it."""
        link = self._links.pop(peer, None)
        if link is not None:
            await link.close()
            self._changed()

    def reopen(self, peer: PeerId, reason: str) -> None:
        """Drop the stream to ``peer`` and all that waits in it; a new one is opened, so that both begin anew."""
        link = self._links.get(peer)
        if link is not None and link.stream is not None:
            log.warning("%s: %s; opening a new stream", peer, reason)
            link.stream.abort(reason)

    async def send(self, to: PeerId, kind: str, payload: Sequence[Buffer]) -> None:
        """Write one frame to a neighbour; see ``protocols.ports.Transport.send``. Raises TransportError."""
        link = self._links.get(to)
        if link is None or link.stream is None:
            raise TransportError(to, link.error if link is not None and link.error else "no stream to this peer")
        await link.stream.send(kind, payload)

    async def serve(self, protocol: str, service: Service) -> None:
        """Take streams of another protocol too, now or once there is a p2pd, and again after ``rebind``.

        They pass the door and the handshake like those of the rounds.
        """
        await self._offer(protocol, partial(self._attend, service))

    @contextlib.asynccontextmanager
    async def call(self, peer: PeerId, protocol: str, addresses: Sequence[str] = ()) -> AsyncIterator[FrameStream]:
        """A greeted stream of ``protocol`` to a peer, closed when the block ends; raises TransportError, RemoteError.

        Without ``addresses`` p2pd must know how to reach it. The stream holds no link open and is none. Two that are
        opened to one peer at the same instant replace each other at its door.
        """
        public_key(peer)
        if self._closed:
            raise TransportError(peer, "the transport is closed")
        if not self._admits(peer):
            raise Refused(peer, PRIVATE)
        if addresses:
            await self.dial(peer, addresses)
        link = self._links.get(peer)
        counter = link.counter if link is not None else Counter(self._total)
        ends = await self._control.open(peer, protocol)
        pace = partial(self.guard.pace_answers, peer)
        async with calling(self._stream(peer, ends, counter, pace), self._own) as stream:
            yield stream

    async def dial(self, peer: PeerId, addresses: Sequence[str]) -> None:
        """Let p2pd reach ``peer`` at these multiaddrs, without opening a stream; raises TransportError."""
        await self.routes.dial(peer, addresses)

    async def _attach(self, control: str) -> None:
        async with deadline(self._peer, ATTACH_S):
            self._attachment = await Attachment.open(control)
            self._control = Control(control.removeprefix("/unix"), self._config.timing.dial_s)
            self._peer = PeerId(self.p2p.peer_id.to_base58())
            self._listen = tuple(str(address) for address in self.p2p._visible_maddrs)
            for protocol in list(self._services):
                await self.p2p.add_binary_stream_handler(protocol, partial(self._on_stream, protocol))

    async def _offer(self, protocol: str, service: Service) -> None:
        is_new = protocol not in self._services
        self._services[protocol] = service
        if is_new and self.attached:
            try:
                async with deadline(self._peer, ATTACH_S):
                    await self.p2p.add_binary_stream_handler(protocol, partial(self._on_stream, protocol))
            except TransportError as error:  # p2pd is just being restarted, and ``rebind`` offers everything
                log.info("%s is offered later: %s", protocol, error)

    async def _detach(self) -> None:
        await self._reception.door.clear()
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            await attachment.close()

    def _link(self, peer: PeerId) -> Link:
        public_key(peer)  # whoever has another kind of key cannot sign what we need
        link = self._links.get(peer)
        if link is None:
            if self._closed:
                raise TransportError(peer, "the transport is closed")
            timing = self._config.timing
            config = LinkConfig(self._own, timing, self._open, self._keeps, self._changed, self._drop)
            link = self._links[peer] = Link(peer, config, Counter(self._total))
        return link

    def _keeps(self, link: Link) -> bool:
        """Links that nobody asked for last as long as the peer's own stream: strangers could leave any number."""
        return link.wanted or link.inbound is not None or link.peer in self._members()

    def _drop(self, link: Link) -> None:
        if self._closed or self._links.get(link.peer) is not link:
            return
        log.log(logging.INFO if link.wanted else logging.DEBUG, "%s: no longer tried", link.peer)
        del self._links[link.peer]
        self._changed()
        self._spawn(link.close(), f"forget {link.peer}")

    def _hang_up(self, peer: PeerId) -> None:
        """Close all connections of an offender, streams and directory requests alike."""
        if not self._closed:
            self._spawn(self._control.disconnect(peer), f"hang up on {peer}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def _changed(self) -> None:
        known = self.neighbours()
        if known != self._known:
            self._known = known
            if self._on_neighbours is not None:
                self._on_neighbours(known)

    async def _open(self, link: Link) -> FrameStream:
        if not self._admits(link.peer):
            raise Refused(link.peer, PRIVATE)
        await self.routes.free(link.peer)
        if self.guard.is_penalised(link.peer):
            raise TransportError(link.peer, "broke the protocol and is refused for a while")
        if link.addresses:
            await self.dial(link.peer, link.addresses)
        if self.guard.is_member(link.peer):
            await self._control.favour(link.peer)
        pace = partial(self.guard.pace, link.peer)  # nothing but pings may come on it, and not many
        return self._stream(link.peer, await self._control.open(link.peer, PROTOCOL_ID), link.counter, pace)

    def _stream(
        self, peer: PeerId, ends: Ends, counter: Counter, pace: Callable[[int], Awaitable[None]] | None = None
    ) -> FrameStream:
        return FrameStream(peer, ends, run=self._config.run, timing=self._config.timing, counter=counter, pace=pace)

    async def _on_stream(
        self, protocol: str, info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """A peer opened a stream to us."""
        peer = PeerId(info.peer_id.to_base58())
        await self._reception.take(peer, protocol, (reader, writer), address=lambda: str(info.addr))

    async def _attend(self, service: Service, stream: FrameStream) -> None:
        """Traffic of a stranger's stream counts in the total alone: nothing is kept of one that has left."""
        link = self._links.get(stream.peer)
        if link is not None:
            _count_for(link, stream)
        await attend(stream, service)

    async def _serve(self, stream: FrameStream) -> None:
        link = self._link(stream.peer)
        if link.inbound is not None:
            link.inbound.abort("replaced by a newer stream")
        link.inbound = stream
        _count_for(link, stream)
        link.heard()
        try:
            async with stream.beating():
                while True:
                    kind, payload = await stream.receive()
                    await self._handler(stream.peer, kind, payload)
        finally:
            if link.inbound is stream:
                link.inbound = None
                if not self._keeps(link):
                    self._drop(link)


def _count_for(link: Link, stream: FrameStream) -> None:
    """What crosses on this stream counts for the link's peer, including what has."""
    link.counter.take(stream.counter.sent, stream.counter.received)
    stream.counter = link.counter
