"""An ASGI application served in this process's own loop, with limits on what each caller can make it hold."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from protocols.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp

HEADER_LIMIT = 16 * 1024
CONNECTION_LIMIT = 64
"""With more than so many, requests are answered with 503; with twice as many, connections are cut."""
REQUEST_S = 10.0
"""For a first request's headers to come."""
GRACE_S = 2
"""Seconds that open requests get at shutdown."""


class _Connection(H11Protocol):
    """uvicorn waits for a first request for ever, on any number of connections, until there are no descriptors left."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._first = self.loop.call_later(REQUEST_S, self._give_up)
        if len(self.connections) > 2 * CONNECTION_LIMIT:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._first.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        if self.cycle is None:  # uvicorn sets it when the headers are complete
            self.transport.abort()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to whoever owns the loop."""
        yield


class HttpServer:
    """One application on one address."""

    def __init__(self, app: ASGIApp, flag: str) -> None:
        """``flag`` is what chooses another port, for the remedy."""
        self._app, self._flag = app, flag
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen (0 = any port); raises EnvironmentFault when that is not possible."""
        listener = _listen(host, port, self._flag)
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            loop="none",
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTION_LIMIT,
            timeout_graceful_shutdown=GRACE_S,
            h11_max_incomplete_event_size=HEADER_LIMIT,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]), name="http")

    async def close(self) -> None:
        """Answer what is open and stop listening. Safe to call twice."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task
            self._server = self._task = None


def _listen(host: str, port: int, flag: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(CONNECTION_LIMIT)
    except OSError as error:
        listener.close()
        raise EnvironmentFault(
            f"cannot listen on {host}:{port}: {error.strerror}",
            remedy=f"choose another port with {flag} N, or 0 for any",
        ) from error
    listener.setblocking(False)
    return listener
