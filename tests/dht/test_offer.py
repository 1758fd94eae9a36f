"""A service that is offered while p2pd is being restarted."""

from __future__ import annotations

import asyncio
from typing import Any

from dht.transport import StreamTransport, TransportConfig


class Dead:
    """An attachment to a p2pd that has just ended."""

    def __init__(self) -> None:
        self.p2p = self

    async def add_binary_stream_handler(self, *_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")


async def _no_frames(*_: object) -> None:
    """None comes."""


def test_a_restart_of_p2pd_at_the_wrong_moment_ends_no_daemon() -> None:
    """Before, one that began to reserve at a relay while it entered the rounds ended with an error."""

    async def scenario() -> None:
        transport, dead = StreamTransport(TransportConfig(bytes(32), "x"), _no_frames), Dead()
        attachment: Any = dead
        transport._attachment = attachment
        await transport.serve("/x/1", _no_frames)
        await transport.enter_rounds()
        assert len(transport._services) == 2, "the next p2pd gets them"

    asyncio.run(scenario())
