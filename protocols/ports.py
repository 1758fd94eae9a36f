"""What the protocol needs from the outside world, as interfaces; ``dht`` and ``peer`` provide them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from .ids import PeerId

FrameHandler = Callable[[PeerId, str, bytes], Awaitable[None]]
"""Called with (sender, frame kind, payload) for every frame; a RemoteError from it hangs up on the sender."""

Buffer = bytes | memoryview


class Transport(Protocol):
    """Streams to other peers of one run. Frames to one peer arrive in order or not at all."""

    @property
    def peer(self) -> PeerId:
        """This peer."""

    def neighbours(self) -> frozenset[PeerId]:
        """Peers to which a handshaken stream is open."""

    async def send(self, to: PeerId, kind: str, payload: Sequence[Buffer]) -> None:
        """Send one frame; returns when the transport has taken it (bounded memory), not when it arrived.

        Buffers must not change until the round is over. Raises TransportError.
        """
