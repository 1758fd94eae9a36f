"""The local API over real loopback sockets: what it answers, and what it refuses before it reads."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from peer import client
from peer.api import BODY_LIMIT, Answers, ApiServer
from peer.cli import main
from peer.exits import Exit, NoDaemon, Refused
from peer.paths import Home
from peer.status import Status, to_json
from protocols.errors import ConfigError, EnvironmentFault, LocalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHOWN = "ab" * 32
"""The newest seal of a history that the daemon has shown."""
DOCUMENT = to_json(Status(version="0.1.0", protocol=1, peer="12D3", since=5.0))


class Running:
    """A server in a loop of its own thread, as a daemon would own it."""

    def __init__(self, home: Home, *, snapshot: Callable[[], dict[str, Any]], on_stop: Callable[[], None]) -> None:
        self.home = home
        self.stops = 0
        self.pauses: list[str] = []
        self.invitation: str | None = "murmur1abc"
        self._on_stop = on_stop
        self._snapshot = snapshot
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._main(),))

    async def _main(self) -> None:
        server = ApiServer(self.home, self.answers())
        await server.start(0)
        self.port = server.port
        self._started.set()
        await self._end.wait()
        await server.close()

    async def follow(self, seal: str) -> dict[str, Any]:
        """Go on with that history."""
        if seal != SHOWN:
            raise LocalError(f"{seal!r} is none of the histories shown", remedy="`murmur status` shows them")
        return {"schema": 1, "following": seal}

    def _invite(self) -> dict[str, Any]:
        if self.invitation is None:
            raise LocalError("nobody can join", remedy="leave out --alone")
        return {"schema": 1, "invitation": self.invitation, "open": False}

    def answers(self) -> Answers:
        return Answers(
            snapshot=self._snapshot,
            peers=lambda: {"schema": 1, "peers": []},
            stop=self._stop,
            finish=lambda: {"schema": 1, "state": "finishing", "under_way": True},
            pause=self._pause,
            resume=self._resume,
            invite=self._invite,
            follow=self.follow,
        )

    async def _pause(self, seconds: str) -> dict[str, Any]:
        self.pauses.append(seconds)
        if seconds == "soon":
            raise ConfigError("'soon' is no number of seconds")
        return {"schema": 1, "state": "paused", "pause": {"since": 1.0, "until": None}}

    async def _resume(self) -> dict[str, Any]:
        self.pauses.clear()
        return {"schema": 1, "state": "training"}

    def _stop(self) -> dict[str, Any]:
        self.stops += 1
        self._on_stop()
        return {"schema": 1, "state": "stopping"}

    def __enter__(self) -> Running:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(20)
        self._loop.close()
        assert not self._thread.is_alive()

    @property
    def token(self) -> str:
        return str(json.loads(self.home.api.read_text())["token"])

    def call(self, method: str, path: str, *, body: bytes | None = None, **headers: str) -> tuple[int, Any, Any]:
        """(status, headers, parsed JSON); underscores in header names stand for hyphens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        given.setdefault("Authorization", f"Bearer {self.token}")
        with contextlib.closing(connection):
            connection.request(method, path, body=body, headers=given)
            response = connection.getresponse()
            return response.status, response.headers, json.loads(response.read())


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with Running(Home(tmp_path), snapshot=lambda: DOCUMENT, on_stop=lambda: None) as server:
        yield server


def refused(answer: tuple[int, Any, Any], status: int, code: str) -> None:
    assert (answer[0], answer[2]["error"]["code"]) == (status, code)
    assert answer[2]["schema"] == 1
    assert answer[1]["content-type"] == "application/json"


def test_pause_resume_and_finish(running: Running) -> None:
    assert running.call("POST", "/api/v1/pause?for=7200")[2]["state"] == "paused"
    assert running.call("POST", "/api/v1/pause")[0] == 202
    assert running.pauses == ["7200", ""]
    code, _, answer = running.call("POST", "/api/v1/pause?for=soon")
    assert (code, answer["error"]["text"]) == (409, "'soon' is no number of seconds")
    assert running.call("POST", "/api/v1/resume")[::2] == (202, {"schema": 1, "state": "training"})
    assert running.pauses == []
    assert running.call("POST", "/api/v1/finish")[2]["under_way"] is True
    assert running.call("GET", "/api/v1/peers")[::2] == (200, {"schema": 1, "peers": []})
    refused(running.call("GET", "/api/v1/pause"), 405, "method")
    refused(running.call("POST", "/api/v1/peers"), 405, "method")


def test_status_with_the_token(running: Running) -> None:
    status, headers, body = running.call("GET", "/api/v1/status")
    assert (status, body) == (200, DOCUMENT)
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


def test_healthz_is_open_and_says_nothing(running: Running) -> None:
    assert running.call("GET", "/healthz", Authorization="")[::2] == (200, {"schema": 1, "ok": True})
    refused(running.call("GET", "/healthz", Authorization="", Host="evil.example"), 403, "host")


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", "Basic {token}", "bearer {token}", "Bearer {token}x", "{token}"]
)
def test_a_missing_or_wrong_token_is_refused(running: Running, given: str) -> None:
    answer = running.call("GET", "/api/v1/status", Authorization=given.format(token=running.token))
    refused(answer, 401, "token")
    assert answer[1]["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]", "LOCALHOST"])
def test_loopback_names_are_hosts(running: Running, name: str) -> None:
    assert running.call("GET", "/api/v1/status", Host=f"{name}:{running.port}")[0] == 200


@pytest.mark.parametrize(
    "name", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{port}", ""]
)
def test_another_host_is_refused(running: Running, name: str) -> None:
    refused(running.call("GET", "/api/v1/status", Host=name.format(port=running.port)), 403, "host")


def test_no_host_and_two_hosts_are_refused(running: Running) -> None:
    for version, hosts in (("1.0", ""), ("1.1", f"Host: 127.0.0.1:{running.port}\r\nHost: evil.example\r\n")):
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as raw:
            raw.sendall(
                f"GET /api/v1/status HTTP/{version}\r\n{hosts}Authorization: Bearer {running.token}\r\n\r\n".encode()
            )
            assert raw.recv(64).split()[1] in (b"400", b"403")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}"])
def test_a_foreign_origin_is_refused(running: Running, origin: str) -> None:
    for method, path in (("GET", "/api/v1/status"), ("POST", "/api/v1/stop"), ("GET", "/healthz")):
        refused(running.call(method, path, Origin=origin.format(port=running.port)), 403, "origin")
    assert running.stops == 0


def test_its_own_origin_is_allowed(running: Running) -> None:
    assert running.call("GET", "/api/v1/status", Origin=f"http://localhost:{running.port}")[0] == 200


def test_a_preflight_gets_no_permission(running: Running) -> None:
    for origin in ("https://evil.example", f"http://localhost:{running.port}"):
        answer = running.call("OPTIONS", "/api/v1/stop", Origin=origin, Access_Control_Request_Method="POST")
        assert answer[0] in (403, 405)
        assert not [name for name in answer[1] if name.lower().startswith("access-control-")]


def test_unknown_paths_and_methods(running: Running) -> None:
    refused(running.call("GET", "/api/v1/secrets"), 404, "unknown")
    refused(running.call("GET", "/api/v1/stop"), 405, "method")
    refused(running.call("POST", "/api/v1/status"), 405, "method")
    refused(running.call("GET", "/api/v1/secrets", Authorization=""), 401, "token")


def test_an_invitation_is_given_or_refused_in_words(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, body = running.call("GET", "/api/v1/invite")
    assert (code, body) == (200, {"schema": 1, "invitation": "murmur1abc", "open": False})
    client.invite(running.home, as_json=False)
    shown = capsys.readouterr()
    assert shown.out == "murmur1abc\n", "a line that can be piped"
    assert "not open" in shown.err
    running.invitation = None
    code, _, body = running.call("GET", "/api/v1/invite")
    assert code == 409
    assert body["error"] == {"code": "state", "text": "nobody can join", "remedy": "leave out --alone"}
    with pytest.raises(Refused, match="nobody can join") as refused:
        client.invite(running.home, as_json=False)
    assert refused.value.remedy == "leave out --alone"


def test_stop_is_passed_on(running: Running) -> None:
    assert running.call("POST", "/api/v1/stop")[::2] == (202, {"schema": 1, "state": "stopping"})
    assert running.stops == 1


@pytest.mark.parametrize("length", [str(BODY_LIMIT + 1), "9" * 40])
def test_a_declared_oversized_body_is_refused_unread(running: Running, length: str) -> None:
    """Only the headers are sent, so an answer proves that the body was not waited for."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as raw:
        raw.sendall(
            f"POST /api/v1/stop HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\n"
            f"Authorization: Bearer {running.token}\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        assert raw.recv(64).split()[1] in (b"413", b"400")
    assert running.stops == 0


def test_a_chunked_oversized_body_is_refused_before_its_end(running: Running) -> None:
    """The chunk that crosses the limit is answered although no last chunk ever comes."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as raw:
        raw.sendall(
            f"POST /api/v1/stop HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\n"
            f"Authorization: Bearer {running.token}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        raw.sendall(b"10001\r\n" + b"x" * 0x10001 + b"\r\n")
        assert raw.recv(64).split()[1] == b"413"
    assert running.stops == 0


def test_a_body_at_the_limit_passes(running: Running) -> None:
    assert running.call("POST", "/api/v1/stop", body=b"x" * BODY_LIMIT)[0] == 202


def test_a_failing_snapshot_is_an_error_without_details(tmp_path: Path) -> None:
    def snapshot() -> dict[str, Any]:
        raise ValueError("a secret")

    with Running(Home(tmp_path), snapshot=snapshot, on_stop=lambda: None) as server:
        answer = server.call("GET", "/api/v1/status")
        refused(answer, 500, "internal")
        assert "secret" not in json.dumps(answer[2])
        assert server.call("GET", "/healthz")[0] == 200


def test_the_api_file_is_private_and_goes_with_the_server(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.api.write_text("left over")
    home.api.chmod(0o644)
    with Running(home, snapshot=lambda: DOCUMENT, on_stop=lambda: None) as server:
        assert home.api.stat().st_mode & 0o777 == 0o600
        written = json.loads(home.api.read_text())
        assert (written["schema"], written["pid"]) == (1, os.getpid())
        assert written["url"] == f"http://127.0.0.1:{server.port}"
        assert len(written["token"]) >= 40
    assert list(tmp_path.iterdir()) == []


def test_it_listens_on_loopback_only(running: Running) -> None:
    listening = [
        line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:] if line.split()[3] == "0A"
    ]
    assert [address for address in listening if address.endswith(f":{running.port:04X}")] == [
        f"0100007F:{running.port:04X}"
    ]


def test_a_port_in_use_is_one_fault_with_a_remedy(tmp_path: Path, running: Running) -> None:
    async def second() -> None:
        await ApiServer(Home(tmp_path), running.answers()).start(running.port)

    with pytest.raises(EnvironmentFault, match=f"cannot listen on 127.0.0.1:{running.port}") as caught:
        asyncio.run(second())
    assert "--api-port" in caught.value.remedy


def test_the_client_reads_the_status(running: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert client.show_status(running.home, as_json=True) == Exit.DONE
    assert json.loads(capsys.readouterr().out) == DOCUMENT
    assert client.show_status(running.home, as_json=False) == Exit.DONE
    assert capsys.readouterr().out.startswith("state      starting since ")


def test_the_client_says_when_the_token_is_refused(running: Running) -> None:
    document = json.loads(running.home.api.read_text())
    running.home.api.write_text(json.dumps({**document, "token": "of yesterday"}))
    with pytest.raises(Refused, match="token"):
        client.request(running.home, "GET", "/api/v1/status")


def test_a_person_follows_a_history_that_is_shown_and_no_other(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def follow(seal: str, home: Path) -> int | str | None:
        monkeypatch.setattr(sys, "argv", ["murmur", "run", "follow", seal, "--home", str(home), "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    assert follow(SHOWN.upper(), running.home.root) == Exit.DONE
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "following": SHOWN}
    assert follow("cd" * 32, running.home.root) == Exit.REFUSED
    assert "none of the histories shown" in capsys.readouterr().err
    assert follow(f"x&seal={SHOWN}", running.home.root) == Exit.REFUSED
    assert follow(SHOWN, tmp_path / "nobody") == Exit.NO_DAEMON


def test_the_client_finds_no_daemon_afterwards(tmp_path: Path) -> None:
    with Running(Home(tmp_path), snapshot=lambda: DOCUMENT, on_stop=lambda: None) as server:
        left_over = server.home.api.read_text()
    with pytest.raises(NoDaemon):
        client.request(server.home, "GET", "/api/v1/status")
    server.home.api.write_text(left_over)
    with pytest.raises(NoDaemon):
        client.request(server.home, "GET", "/api/v1/status")


DAEMON = """
import asyncio, sys
from pathlib import Path
from peer.api import Answers, ApiServer
from peer.paths import Home

async def main():
    end = asyncio.Event()
    names = ("snapshot", "peers", "finish", "pause", "resume", "invite", "follow")
    stop = lambda: end.set() or {"schema": 1}
    server = ApiServer(Home(Path(sys.argv[1])), Answers(stop=stop, **dict.fromkeys(names, dict)))
    await server.start(0)
    print("up", flush=True)
    await end.wait()
    await server.close()
    sys.stdin.read()  # the last work of a daemon, until the test lets it end

asyncio.run(main())
"""


def test_stop_returns_only_when_the_process_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", DAEMON, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"up\n"
        results: list[Exit] = []
        stopping = threading.Thread(target=lambda: results.append(client.stop(Home(tmp_path), as_json=True)))
        stopping.start()
        stopping.join(1.0)
        assert stopping.is_alive(), "stop returned while the process was still at work"
        daemon.stdin.close()
        stopping.join(20)
        assert results == [Exit.DONE]
        assert daemon.wait(5) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "state": "stopped"}
    assert not (tmp_path / "api.json").exists()
