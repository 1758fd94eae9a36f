"""What callers that say nothing can make a server hold."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from peer import http as module
from peer.http import CONNECTION_LIMIT, HttpServer

if TYPE_CHECKING:
    import pytest


async def _answer(_: object) -> PlainTextResponse:
    return PlainTextResponse("ok")


async def _get(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    try:
        return await reader.read()
    finally:
        writer.close()


def test_silent_connections_are_few_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, they stayed for ever and took all of the process's descriptors."""
    monkeypatch.setattr(module, "REQUEST_S", 0.5)

    async def scenario() -> None:
        server = HttpServer(Starlette(routes=[Route("/", _answer)]), "--http-port")
        await server.start("127.0.0.1", 0)
        try:
            ends = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3 * CONNECTION_LIMIT)]
            for _, writer in ends[:2]:
                writer.write(b"GET / HTTP/1.1\r\nHost: ")
            cut = [asyncio.create_task(reader.read()) for reader, _ in ends]
            done, _ = await asyncio.wait(cut, timeout=0.3)
            assert len(done) == CONNECTION_LIMIT, "at once"
            async with asyncio.timeout(5):
                await asyncio.gather(*cut, return_exceptions=True)
                assert (await _get(server.port)).endswith(b"ok")
            for _, writer in ends:
                writer.close()
        finally:
            await server.close()

    asyncio.run(scenario())
