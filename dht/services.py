"""Streams beside those of the rounds: opened for one exchange under a protocol of its own, greeted alike, then closed.

Whoever serves waits for a request and answers; whoever calls ends it. The heartbeat runs on both sides, so that a
peer that falls silent is noticed by both.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeAlias

from .links import introduce

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from .handshake import Hello
    from .stream import FrameStream

Service: TypeAlias = "Callable[[FrameStream], Awaitable[None]]"
"""Serves one greeted stream until it returns, which closes it; a RemoteError from it hangs up and is counted."""


async def attend(stream: FrameStream, service: Service) -> None:
    """Let ``service`` answer a greeted stream; its last words reach the peer."""
    async with stream.beating():
        await service(stream)
        await stream.say_goodbye()
    await stream.outlast()


@contextlib.asynccontextmanager
async def calling(stream: FrameStream, own: Hello) -> AsyncIterator[FrameStream]:
    """Greet on a stream just opened and lend it; raises TransportError, RemoteError.

    It is closed at once when the block ends: whoever wants its last words heard waits for an answer.
    """
    await introduce(stream, own)
    try:
        async with stream.beating():
            yield stream
    finally:
        stream.abort("closed")
