"""Commands for a running daemon: ``status``, ``peers``, ``pause``, ``resume``, ``finish``; and ``generate``."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from .cli_flags import at_least, common
from .paths import Home

if TYPE_CHECKING:
    from .cli_flags import Commands

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?[smhd])+")
LONGEST = 4096
"""Bytes of a sample and of its beginning."""


def add(commands: Commands) -> None:
    """The commands and their flags."""
    about = "show what the daemon of this home is doing"
    status = _command(commands, "status", _run_status, about)
    status.add_argument("--watch", action="store_true", help="go on showing it, once a second, until Ctrl-C")
    _command(commands, "peers", _run_peers, "list the peers of the run: connection, standing, what they sealed")
    pause = _command(commands, "pause", _run_pause, "end the trainer, keep its state, go on following and serving")
    pause.add_argument(
        "--for", dest="seconds", type=duration, metavar="TIME", help="2h, 90m, 1h30m, 45s, 1d; left out: until resume"
    )
    _command(commands, "resume", _run_resume, "go on training where a pause interrupted it")
    _command(commands, "finish", _run_finish, "end the daemon of this home with the round under way")
    _generate(commands)


def _generate(commands: Commands) -> None:
    about = "go on with TEXT as the newest sealed model of this home would; training goes on meanwhile"
    generate = _command(commands, "generate", _run_generate, about)
    flag = generate.add_argument
    flag("text", metavar="TEXT", help="how the sample begins")
    flag("--run", metavar="ID|FILE", help="which of the runs of this home, by the start of its id, or its manifest")
    flag("--bytes", type=_length, default=400, metavar="N", help=f"length of the sample, 1 to {LONGEST} (%(default)s)")
    flag("--temperature", type=_temperature, default=0.8, metavar="T", help="0 = always the likeliest (%(default)s)")
    flag("--seed", type=at_least(0), metavar="S", help="the same sample again; left out: another each time")


def _command(commands: Commands, name: str, run: Any, about: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=about, parents=[common("home", "json")], allow_abbrev=False
    )
    parser.set_defaults(command=run)
    return parser


def duration(text: str) -> float:
    """Seconds of ``1h30m``: numbers with s, m, h or d, one after the other."""
    compact = "".join(text.split()).lower()
    if not _DURATION.fullmatch(compact):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no time like 2h, 90m, 1h30m, 45s or 1d")
    seconds = sum(float(each[:-1]) * UNITS[each[-1]] for each in re.findall(r"[0-9.]+[smhd]", compact))
    if not 0 < seconds <= 366 * UNITS["d"]:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no time above 0 and up to a year")
    return seconds


def _length(text: str) -> int:
    value = at_least(1)(text)
    if value > LONGEST:
        raise argparse.ArgumentTypeError(f"{value} bytes are more than {LONGEST}")
    return value


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number from 0 to 10")
    return value


def _run_status(arguments: dict[str, Any]) -> int:
    from . import client, client_live

    home = Home(arguments["home"])
    if arguments["watch"]:
        return client_live.watch(home, as_json=arguments["json"])
    return client.show_status(home, as_json=arguments["json"])


def _run_peers(arguments: dict[str, Any]) -> int:
    from . import client_live

    return client_live.show_peers(Home(arguments["home"]), as_json=arguments["json"])


def _run_pause(arguments: dict[str, Any]) -> int:
    from . import client_live

    return client_live.pause(Home(arguments["home"]), arguments["seconds"], as_json=arguments["json"])


def _run_resume(arguments: dict[str, Any]) -> int:
    from . import client_live

    return client_live.resume(Home(arguments["home"]), as_json=arguments["json"])


def _run_finish(arguments: dict[str, Any]) -> int:
    from . import client_live

    return client_live.finish(Home(arguments["home"]), as_json=arguments["json"])


def _run_generate(arguments: dict[str, Any]) -> int:
    from . import cli_generate

    asked = {name: arguments[name] for name in ("text", "run", "bytes", "temperature", "seed", "json")}
    return cli_generate.generate(cli_generate.Wish(home=Home(arguments["home"]), **asked))
