"""Streams that others open to us: door, handshake, then whoever serves their protocol; offenders are hung up on.

It knows nothing of libp2p: the transport hands each stream in.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from protocols.errors import RemoteError, TransportError
from protocols.ids import public_key

from .door import Door
from .handshake import PRIVATE, Hello, difference
from .stream import Counter, FrameStream, Timing

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.ids import PeerId

    from .guard import Guard
    from .services import Service
    from .stream import Ends

log = logging.getLogger(__name__)


@dataclass
class Reception:
    """Takes in the inbound streams of one transport."""

    own: Hello
    timing: Timing
    guard: Guard
    admits: Callable[[PeerId], bool]
    total: Counter
    """All bytes of the transport."""
    services: dict[str, Service] = field(default_factory=dict)
    """Protocol → who serves its streams once they are greeted."""
    closed: bool = False
    hang_ups: int = 0
    """How often a peer broke the protocol."""

    def __post_init__(self) -> None:
        self.door = Door(self.guard)

    async def take(self, peer: PeerId, protocol: str, ends: Ends, *, address: Callable[[], str] = str) -> None:
        """Serve one stream until it ends. Nothing may escape: asyncio would only print it.

        ``address`` gives the peer's multiaddr.
        """
        task = asyncio.current_task()
        assert task is not None
        if not self.door.enter(peer, protocol, task, address=address):
            ends[1].transport.abort()
            return
        pace = partial(self.guard.pace, peer)
        stream = FrameStream(peer, ends, run=self.own.run, timing=self.timing, counter=Counter(self.total), pace=pace)
        try:
            stream.address = address()
            if await self._welcome(stream, protocol):
                await self.services[protocol](stream)
        except TransportError as error:
            log.debug("%s", error)
        except RemoteError as error:
            self.hang_ups += 1
            self.guard.punish(peer, error.text)
        except asyncio.CancelledError:
            if not self.closed:
                raise
        except Exception:  # a defect of ours must neither kill the daemon nor pass unseen
            log.exception("the handler of %s frames from %s failed", protocol, peer)
        finally:
            self.door.leave(task)
            stream.abort("closed")

    async def _welcome(self, stream: FrameStream, protocol: str) -> bool:
        """The receiving half of the handshake; False when we part."""
        peer = stream.peer
        try:
            with self.door.greeting(stream, protocol):
                hello = await stream.listen()
            public_key(peer)
        except (RemoteError, TransportError) as error:
            if isinstance(error, RemoteError) or isinstance(error.__cause__, TimeoutError):
                self.guard.count("hello", peer)
            raise
        private = "" if self.admits(peer) else PRIVATE
        reason = difference(self.own, hello) or private
        refusal = difference(hello, self.own) or private
        await stream.say(Hello(self.own.run, self.own.software, refusal=refusal))
        if reason:
            self.guard.tell(peer, f"refused {peer}: {reason}")
            await stream.outlast()
        return not reason
