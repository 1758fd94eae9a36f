"""The thin client of a running daemon: standard library only, so that ``murmur status`` answers at once."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from protocols.errors import EnvironmentFault, LocalError

from .exits import Exit, NoDaemon, Refused
from .screen import screen

if TYPE_CHECKING:
    from .paths import Home

TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 60.0
"""A daemon says goodbye to its peers and ends its children first."""
POLL_S = 0.05
ANSWER_LIMIT = 4 << 20
CLOSED = (
    "note: this run is not open: only its founders and keys it allows take part (`murmur run init --open` makes one)"
)
STOPPED = {"schema": 1, "state": "stopped"}


@dataclass(frozen=True, slots=True)
class Address:
    """Where the daemon of a home listens, and what it wants to hear."""

    port: int
    token: str
    pid: int


def address(home: Home) -> Address:
    """What ``api.json`` says; raises NoDaemon when there is none, EnvironmentFault when it cannot be read."""
    try:
        document = json.loads(home.api.read_text(encoding="utf-8"))
        return _checked(document["port"], document["token"], document["pid"])
    except FileNotFoundError as error:
        raise _no_daemon(home) from error
    except OSError as error:
        raise EnvironmentFault(
            f"cannot read {home.api}: {error.strerror}", remedy="use the daemon's own user"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _no_daemon(home) from error


def _checked(port: object, token: object, pid: object) -> Address:
    """Raises ValueError for what no daemon has written."""
    if type(port) is not int or not 0 < port < 1 << 16 or type(pid) is not int or not 0 < pid < 1 << 31:
        raise ValueError("no port or no process")
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise ValueError("no token")
    return Address(port, token, pid)


def request(home: Home, method: str, path: str, *, within: float = TIMEOUT_S) -> dict[str, Any]:
    """One call; raises NoDaemon when nothing answers, Refused when the daemon says no, LocalError when it says nothing
    ``within`` so many seconds.
    """
    where = address(home)
    connection = http.client.HTTPConnection("127.0.0.1", where.port, timeout=within)
    try:
        connection.request(method, path, headers={"Authorization": f"Bearer {where.token}"})
        response = connection.getresponse()
        raw = response.read(ANSWER_LIMIT)
    except TimeoutError as error:
        raise LocalError(
            f"the daemon did not answer within {within:.0f} s", remedy=f"look at {home.log}, or try again"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise _no_daemon(home) from error
    finally:
        connection.close()
    return _answer(home, response.status, raw)


def show_status(home: Home, *, as_json: bool) -> Exit:
    """Print the status; with ``as_json`` also that there is no daemon."""
    try:
        status = request(home, "GET", "/api/v1/status")
    except NoDaemon:
        if as_json:
            print(json.dumps(STOPPED))
        raise
    print(json.dumps(status) if as_json else shown(status, columns()))
    return Exit.DONE


def columns() -> int | None:
    """Of the terminal on stdout; None where it is none: lines are as long as they are."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def invite(home: Home, *, as_json: bool) -> Exit:
    """Print an invitation to the daemon's run; raises Refused when nobody could be reached by it."""
    answer = request(home, "GET", "/api/v1/invite")
    print(json.dumps(answer) if as_json else answer["invitation"])
    if not as_json and not answer["open"]:
        print(CLOSED, file=sys.stderr)
    return Exit.DONE


def follow(home: Home, seal: str, *, as_json: bool) -> Exit:
    """Have the daemon go on with one of several histories of its run; raises Refused where it is none of them."""
    answer = request(home, "POST", f"/api/v1/follow?{urlencode({'seal': seal})}")
    print(json.dumps(answer) if as_json else f"following {seal}")
    return Exit.DONE


def shown(status: dict[str, Any], width: int | None = None) -> str:
    """The status as a screen; raises LocalError for one that this version cannot read."""
    try:
        return screen(status, width)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise LocalError(
            "the daemon's status is that of another version of murmur",
            remedy="start the daemon again, or use the murmur it was started with",
        ) from error


def stop(home: Home, *, as_json: bool) -> Exit:
    """Ask the daemon to end and wait until its process is gone; raises LocalError when it takes too long."""
    pid = address(home).pid
    request(home, "POST", "/api/v1/stop")
    if not as_json:
        print("stopping: sealed rounds are on the disk, the window in flight is dropped", file=sys.stderr)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while _alive(pid):
        if time.monotonic() > deadline:
            raise LocalError(
                f"process {pid} still runs after {STOP_TIMEOUT_S:.0f} s", remedy=f"look at {home.log}, or `kill {pid}`"
            )
        time.sleep(POLL_S)
    print(json.dumps(STOPPED) if as_json else "stopped")
    return Exit.DONE


def _answer(home: Home, code: int, raw: bytes) -> dict[str, Any]:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("schema") != 1:
        raise _no_daemon(home)  # a leftover api.json, and somebody else's server on its port
    if code in (200, 202):
        return document
    said = document.get("error")
    if not isinstance(said, dict):
        said = {}
    remedy = said.get("remedy") or "use the home of the daemon that runs (--home, MURMUR_HOME)"
    text = " ".join(str(said.get("text", f"status {code}")).split())
    raise Refused(f"the daemon refused: {text:.400}", remedy=f"{remedy:.400}")


def _no_daemon(home: Home) -> NoDaemon:
    return NoDaemon(f"no daemon is running for {home.root}", remedy="start one with `murmur up`")


def _alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped by its parent does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
