"""What the transport knows about each neighbour, and how it keeps the outgoing stream to it open.

A link dials, greets, then watches its stream until it breaks, and starts again after a pause.
It knows nothing of libp2p: how to open a stream is handed in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.errors import RemoteError, TransportError

from .handshake import Hello, difference
from .tasks import end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from protocols.ids import PeerId

    from .stream import Counter, FrameStream, Timing

log = logging.getLogger(__name__)


class Refused(TransportError):
    """One end will not talk to the other: another protocol or another run."""


async def introduce(stream: FrameStream, own: Hello) -> None:
    """Say hello on a stream that we opened and hear the other end's; raises TransportError (Refused), RemoteError."""
    try:
        hello = await stream.greet(own)
        reason = difference(own, hello) or (hello.refusal and f"refused us: {hello.refusal}")
        if reason:
            raise Refused(stream.peer, reason)
    except BaseException:
        stream.abort("handshake failed")
        raise


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """What all links of one transport share."""

    own: Hello
    timing: Timing
    open: Callable[[Link], Awaitable[FrameStream]]
    """Opens a bare stream to the link's peer; raises TransportError."""
    keeps: Callable[[Link], bool]
    """Whether a stream that broke or failed is to be opened again."""
    changed: Callable[[], None]
    """Called after ``Link.stream`` came or went."""
    forget: Callable[[Link], None]
    """Called when the link has given up."""


class Link:
    """The outgoing stream to one peer."""

    def __init__(self, peer: PeerId, config: LinkConfig, counter: Counter) -> None:
        self.peer = peer
        self.counter = counter
        self.addresses: tuple[str, ...] = ()
        self.stream: FrameStream | None = None
        self.inbound: FrameStream | None = None
        self.wanted = False
        """Somebody here asked to keep this link."""
        self.error = ""
        self._config = config
        self._now = asyncio.Event()
        self._heard = asyncio.Event()
        self._refusal = ""
        self._idle = asyncio.Event()  # no stream is open
        self._waiters: set[asyncio.Future[FrameStream]] = set()
        self._jitter = random.Random(peer)  # only spreads retries
        self._said = ""
        self._over = ""  # why nobody tries any more
        self._task = asyncio.create_task(self._keep_open(), name=f"link to {peer}")

    def hurry(self) -> None:
        """Try now instead of at the end of the pause, unless one end has just refused the other."""
        if not self._refusal:
            self._now.set()

    def heard(self) -> None:
        """The peer said a proper hello on a stream of its own: it can be reached, and an old refusal is over."""
        self._heard.set()
        if self.stream is None:
            self._now.set()

    async def ready(self) -> FrameStream:
        """The open stream, or the outcome of the attempt under way or next; raises TransportError."""
        if self.stream is not None:
            return self.stream
        if self._over:
            raise TransportError(self.peer, self._over)
        if self._refusal:
            raise Refused(self.peer, self._refusal)
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            result: FrameStream = await waiter
            return result
        finally:
            self._waiters.discard(waiter)

    async def close(self) -> None:
        """End the outgoing stream once the peer has read everything, the incoming one, and the task."""
        self._over = self._over or "the link is closing"
        if self.stream is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._config.timing.goodbye_s):
                    await self.stream.say_goodbye()
                    await self._idle.wait()
        await end([self._task])
        self._tell(TransportError(self.peer, self._over))
        if self.inbound is not None:
            self.inbound.abort("closing")

    async def _keep_open(self) -> None:
        timing, clock = self._config.timing, asyncio.get_running_loop().time
        delay, last_success = timing.first_retry_s, clock()
        while True:
            self._now.clear()
            pause, delay = delay, min(2 * delay, timing.last_retry_s)
            try:
                stream = await self._open()
                opened = clock()
                await self._watch(stream)
                last_success = clock()
                if last_success - opened > timing.ping_s:  # one that breaks at once, again and again, is no success
                    pause, delay = timing.first_retry_s, 2 * timing.first_retry_s
            except Refused as error:
                await self._sit_out(error)
                pause = 0.0
            except (TransportError, RemoteError) as error:
                self._failed(error)
            except Exception as error:  # a defect: it must be seen, and whoever waits for this link told
                log.exception("the link to %s failed", self.peer)
                self._failed(TransportError(self.peer, f"failed here: {error!r}"))
            if not self._now.is_set() and not (self._config.keeps(self) and clock() - last_success < timing.give_up_s):
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause * (0.5 + self._jitter.random())):
                    await self._now.wait()
        self._over = self.error.removeprefix(f"{self.peer}: ") or "the link is closing"
        self._config.forget(self)

    async def _sit_out(self, error: Refused) -> None:
        """Leave the peer alone for a while; whoever asks for it meanwhile is told why."""
        self._refusal = str(error).removeprefix(f"{self.peer}: ")
        self._heard.clear()
        self._now.clear()
        self._failed(error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.timing.refused_retry_s * (0.5 + self._jitter.random())):
                await self._heard.wait()
        self._refusal = ""

    async def _open(self) -> FrameStream:
        stream = await self._config.open(self)
        await introduce(stream, self._config.own)
        return stream

    async def _watch(self, stream: FrameStream) -> None:
        """Serve the stream until it breaks. The other end sends nothing on it but pings."""
        self.stream, self.error, self._said = stream, "", ""
        self._idle.clear()
        self._tell(stream)
        try:
            self._config.changed()
            async with stream.beating():
                kind, _ = await stream.receive()
            raise RemoteError(self.peer, f"sent a {kind} frame against the stream's direction")
        except (TransportError, RemoteError) as error:
            self.error = str(error)
        finally:
            stream.abort(self.error or "closing")
            self.stream = None
            self._idle.set()
            self._config.changed()
        self._log(logging.INFO, f"lost {self.error}")

    def _log(self, level: int, text: str) -> None:
        """Of peers that nobody here asked for there may be any number, so that their comings fill no log."""
        log.log(level if self.wanted else logging.DEBUG, "%s", text)

    def _failed(self, error: TransportError | RemoteError) -> None:
        self.error = str(error)
        if self.error != self._said:  # once, not at every retry
            self._said = self.error
            self._log(logging.WARNING if isinstance(error, Refused | RemoteError) else logging.INFO, str(error))
        self._tell(error if isinstance(error, TransportError) else TransportError(self.peer, error.text))

    def _tell(self, outcome: FrameStream | TransportError) -> None:
        for waiter in self._waiters:
            if waiter.done():
                continue
            if isinstance(outcome, TransportError):
                waiter.set_exception(outcome)
            else:
                waiter.set_result(outcome)
