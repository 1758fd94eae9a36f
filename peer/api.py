"""The local API: loopback only, a bearer token, and no page of another origin can use it.

Order of refusal: Host (DNS rebinding), Origin (cross-site requests), token, body size; nothing
of the body is read before. ``/healthz`` needs no token. There are no CORS headers at all.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Route

from protocols.errors import EnvironmentFault, MurmurError

from .http import HttpServer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from .paths import Home

LOOPBACK = "127.0.0.1"
BODY_LIMIT = 64 * 1024
"""Bytes of a request's body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the daemon answers. A MurmurError from one of them becomes a refusal with its text and remedy."""

    snapshot: Callable[[], dict[str, Any]]
    """The status document."""
    peers: Callable[[], dict[str, Any]]
    """Peers of the run, one by one."""
    stop: Callable[[], dict[str, Any]]
    """Ask the daemon to end."""
    finish: Callable[[], dict[str, Any]]
    """Ask the daemon to end with the round under way."""
    pause: Callable[[str], Awaitable[dict[str, Any]]]
    """End the trainer for so many seconds, or (empty) until ``resume``."""
    resume: Callable[[], Awaitable[dict[str, Any]]]
    """Go on training."""
    invite: Callable[[], dict[str, Any]]
    """An invitation to the run."""
    follow: Callable[[str], Awaitable[dict[str, Any]]]
    """Go on with one of several histories of the run, by the hash (hex) of its newest seal."""


def create_app(answers: Answers, token: str) -> ASGIApp:
    """The application."""

    async def healthz(request: Request) -> JSONResponse:
        return JSONResponse({"schema": 1, "ok": True})

    def shows(path: str, answer: Callable[[], dict[str, Any]]) -> Route:
        async def show(request: Request) -> JSONResponse:
            return JSONResponse(answer())

        return Route(f"/api/v1/{path}", show, methods=["GET"])

    def does(path: str, answer: Callable[[Request], Awaitable[dict[str, Any]]]) -> Route:
        async def do(request: Request) -> JSONResponse:
            return JSONResponse(await answer(request), status_code=202)

        return Route(f"/api/v1/{path}", do, methods=["POST"])

    async def stop(request: Request) -> dict[str, Any]:
        return answers.stop()

    async def finish(request: Request) -> dict[str, Any]:
        return answers.finish()

    async def refused(request: Request, error: Exception) -> JSONResponse:
        code = error.status_code if isinstance(error, HTTPException) else 500
        headers = error.headers if isinstance(error, HTTPException) else None
        return _error(code, {404: "unknown", 405: "method"}.get(code, "internal"), headers=headers)

    async def declined(request: Request, error: Exception) -> JSONResponse:
        remedy = error.remedy if isinstance(error, MurmurError) else ""
        return _answer(409, {"code": "state", "text": str(error), "remedy": remedy})

    routes = [
        Route("/healthz", healthz, methods=["GET"]),
        shows("status", answers.snapshot),
        shows("peers", answers.peers),
        shows("invite", answers.invite),
        does("follow", lambda request: answers.follow(request.query_params.get("seal", ""))),
        does("pause", lambda request: answers.pause(request.query_params.get("for", ""))),
        does("resume", lambda request: answers.resume()),
        does("finish", finish),
        does("stop", stop),
    ]
    handlers: Any = {HTTPException: refused, MurmurError: declined, 500: refused}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return Guard(app, token)


class Guard:
    """Refuses what must not reach the application, before it does."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; anything but HTTP is dropped."""
        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        body = await _read(receive)
        if body is None:
            await _error(413, "body")(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), _hardened(send))

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        port = scope["server"][1]
        names = {f"{name}:{port}".encode() for name in (LOOPBACK, "localhost", "[::1]")}
        if len(hosts := _values(scope, b"host")) != 1 or hosts[0].lower() not in names:
            return _error(403, "host")
        if any(origin.lower() not in {b"http://" + name for name in names} for origin in _values(scope, b"origin")):
            return _error(403, "origin")
        if scope["path"] != "/healthz":
            given = _values(scope, b"authorization")
            if len(given) != 1 or not hmac.compare_digest(given[0], self._expected):
                return _error(401, "token", headers={"www-authenticate": "Bearer"})
        length = _values(scope, b"content-length")
        if length and (not length[0].isdigit() or len(length[0]) > 9 or int(length[0]) > BODY_LIMIT):
            return _error(413, "body")
        return None


_TEXTS = {
    "host": "the Host header is not this daemon's loopback address",
    "origin": "requests from other origins are refused",
    "token": "the token is missing or wrong; it is in api.json in the daemon's home",
    "body": f"the body is above {BODY_LIMIT} bytes",
    "unknown": "there is nothing here",
    "method": "this method is not allowed here",
    "internal": "the daemon failed to answer; its log says why",
}
_HARDENING = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def _error(status: int, code: str, *, headers: Any = None) -> JSONResponse:
    return _answer(status, {"code": code, "text": _TEXTS[code]}, headers=headers)


def _answer(status: int, error: dict[str, str], *, headers: Any = None) -> JSONResponse:
    body = {"schema": 1, "error": error}
    return JSONResponse(body, status_code=status, headers={**_HARDENING, **(headers or {})})


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


async def _read(receive: Receive) -> bytes | None:
    """The whole body, or None as soon as it exceeds the limit, declared or not."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > BODY_LIMIT:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again


def _hardened(send: Send) -> Send:
    extra = [(name.encode(), value.encode()) for name, value in _HARDENING.items()]

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name for name, _ in message["headers"]}
            message = {**message, "headers": [*message["headers"], *(pair for pair in extra if pair[0] not in present)]}
        await send(message)

    return with_headers


class ApiServer:
    """The API in the daemon's own loop, and ``api.json`` beside it while it runs."""

    def __init__(self, home: Home, answers: Answers) -> None:
        self._home = home
        self._token = secrets.token_urlsafe(32)
        self._server = HttpServer(create_app(answers, self._token), "--api-port")

    @property
    def port(self) -> int:
        """Where it listens; 0 before ``start``."""
        return self._server.port

    async def start(self, port: int) -> None:
        """Listen on loopback (0 = any port) and write ``api.json``; raises EnvironmentFault when the port is taken."""
        await self._server.start(LOOPBACK, port)
        try:
            self._announce()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Answer what is open, stop listening, and remove ``api.json``."""
        self._home.api.unlink(missing_ok=True)
        await self._server.close()

    def _announce(self) -> None:
        url = f"http://{LOOPBACK}:{self.port}"
        document = {"schema": 1, "url": url, "port": self.port, "token": self._token, "pid": os.getpid()}
        temporary = self._home.api.with_suffix(".new")
        try:
            temporary.unlink(missing_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(document, file)
            temporary.replace(self._home.api)
        except OSError as error:
            raise EnvironmentFault(
                f"cannot write {self._home.api}: {error.strerror}",
                remedy="free some disk space or choose another --home",
            ) from error
