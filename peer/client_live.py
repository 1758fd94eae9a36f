"""Thin clients as well: watch a running daemon, list its peers, pause, resume and finish it."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from protocols.errors import LocalError

from .client import STOPPED, columns, request, shown
from .exits import Exit, NoDaemon
from .screen import peers_screen

if TYPE_CHECKING:
    from .paths import Home

WATCH_S = 1.0
PAUSE_S = 15.0
"""A trainer gets 2 s to end; a busy daemon may be slow to answer."""
_HOME, _BELOW, _REST = "\x1b[H", "\x1b[J", "\x1b[K"


def watch(home: Home, *, as_json: bool) -> Exit:
    """The status once a second until Ctrl-C, or until the daemon ends; raises NoDaemon when there is none at first.

    On a terminal the screen is rewritten; elsewhere screens follow each other, and as JSON one line each.
    """
    rewrite, seen = sys.stdout.isatty() and not as_json, False
    try:
        while True:
            try:
                status = request(home, "GET", "/api/v1/status")
            except NoDaemon:
                if not seen:
                    raise
                print(json.dumps(STOPPED) if as_json else "stopped", flush=True)
                return Exit.DONE
            _show(status, as_json=as_json, rewrite=rewrite, first=not seen)
            seen = True
            time.sleep(WATCH_S)
    except KeyboardInterrupt:
        return Exit.DONE


def _show(status: dict[str, Any], *, as_json: bool, rewrite: bool, first: bool) -> None:
    if as_json:
        text = json.dumps(status)
    elif rewrite:
        lines = [*shown(status, columns()).splitlines(), "", "Ctrl-C ends this screen, not the daemon"]
        top = "\x1b[2J" if first else ""
        text = top + _HOME + "\n".join(f"{line}{_REST}" for line in lines) + _BELOW
    else:
        text = shown(status) + "\n"
    print(text, flush=True)


def show_peers(home: Home, *, as_json: bool) -> Exit:
    """One row for each peer of the run."""
    answer = request(home, "GET", "/api/v1/peers")
    if as_json:
        print(json.dumps(answer))
        return Exit.DONE
    try:
        print(peers_screen(answer["peers"], columns()))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise LocalError(
            "the daemon's peers are those of another version of murmur",
            remedy="start the daemon again, or use the murmur it was started with",
        ) from error
    return Exit.DONE


def pause(home: Home, seconds: float | None, *, as_json: bool) -> Exit:
    """Pause the trainer; raises Refused when the daemon is about to end."""
    path = "/api/v1/pause" + (f"?for={seconds:g}" if seconds is not None else "")
    answer = request(home, "POST", path, within=PAUSE_S)
    until = (answer.get("pause") or {}).get("until")
    clock = time.strftime("%a %H:%M, or ", time.localtime(until)) if until else ""
    text = f"paused until {clock}`murmur resume`: the trainer is gone, its state kept"
    print(json.dumps(answer) if as_json else text)
    return Exit.DONE


def resume(home: Home, *, as_json: bool) -> Exit:
    """Go on training."""
    answer = request(home, "POST", "/api/v1/resume", within=PAUSE_S)
    print(json.dumps(answer) if as_json else "going on: the trainer needs some seconds to load")
    return Exit.DONE


def finish(home: Home, *, as_json: bool) -> Exit:
    """End the daemon with the round under way; does not wait for it."""
    answer = request(home, "POST", "/api/v1/finish")
    if as_json:
        print(json.dumps(answer))
    elif answer.get("under_way"):
        print("finishing: the daemon ends with the round under way; `murmur stop` ends it now")
    else:
        print("no round is under way: the daemon ends now")
    return Exit.DONE
