"""hivemind's client attached to one p2pd: all that it opens and starts is known, and ends with it.

By itself it leaves a connection open for good when its request is cancelled or p2pd dies meanwhile, and does not wait
for the tasks that it cancels.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from hivemind.p2p import P2P
from hivemind.p2p.p2p_daemon_bindings.control import DEFAULT_MAX_MSG_SIZE, ControlClient, DaemonConnector
from hivemind.p2p.p2p_daemon_bindings.p2pclient import Client
from hivemind.utils.multiaddr import Multiaddr

if TYPE_CHECKING:
    from typing import Self

    from .stream import Ends


class Attachment:
    """What stands between ``open`` and ``close``. p2pd ends when the last one closes."""

    def __init__(self, control: str) -> None:
        folder = PurePosixPath(control.removeprefix("/unix")).parent
        self._connector = _Connector(Multiaddr(control))
        self.p2p = _P2P(self._connector, Multiaddr(f"/unix{folder}/client-{secrets.token_urlsafe(8)}.sock"))

    @classmethod
    async def open(cls, control: str) -> Self:
        """Attach to the p2pd at this control multiaddr; leaves nothing behind when that fails."""
        attachment = cls(control)
        try:
            await attachment.p2p.attach()
        except BaseException:
            await attachment.close()
            raise
        return attachment

    async def close(self) -> None:
        """End every task and connection that serves nobody else."""
        tasks = self.p2p.tasks()
        await self.p2p.shutdown()  # does not wait without a child
        if self.p2p.server is not None:
            self.p2p.server.close()
        self._connector.close()
        await asyncio.gather(*tasks, return_exceptions=True)


class _P2P(P2P):  # type: ignore[misc]
    """``P2P.replicate``, with its socket beside p2pd's: one in /tmp would outlive a crash."""

    def __init__(self, connector: _Connector, listen: Multiaddr) -> None:
        super().__init__()
        self._connector = connector
        self._daemon_listen_maddr, self._client_listen_maddr = connector.control_maddr, listen
        self._client = Client(_initialized_with_create=True)
        self.server: asyncio.Server | None = None

    async def attach(self) -> None:
        self._alive = True
        self._client.control = await _ControlClient.create(
            self._connector, self._client_listen_maddr, persistent_conn_max_msg_size=DEFAULT_MAX_MSG_SIZE
        )
        path = self._client_listen_maddr["unix"]
        # asyncio loses a server whose start is cancelled: this one is ours before it serves
        self.server = await asyncio.start_unix_server(self._client.control._handler, path, start_serving=False)
        await self.server.start_serving()
        await self._ping_daemon()

    def _start_listening(self) -> None:
        """Called by hivemind before it first needs ``server``."""

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Those that ``shutdown`` cancels."""
        control = self._client.control
        return [] if control is None else [control._read_task, control._write_task]


class _ControlClient(ControlClient):  # type: ignore[misc]
    """Takes the streams that p2pd hands over, and closes those that reach no handler."""

    async def _handler(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await super()._handler(reader, writer)
        except BaseException:
            writer.transport.abort()
            raise


class _Connector(DaemonConnector):  # type: ignore[misc]
    """Opens the connections of all requests, and closes what is left of them."""

    def __init__(self, control: Multiaddr) -> None:
        super().__init__(control)
        self._opened: list[asyncio.StreamWriter] = []

    async def open_connection(self) -> Ends:
        ends: Ends = await super().open_connection()
        self._opened = [writer for writer in self._opened if not writer.transport.is_closing()]
        self._opened.append(ends[1])
        return ends

    def close(self) -> None:
        for writer in self._opened:
            writer.transport.abort()
