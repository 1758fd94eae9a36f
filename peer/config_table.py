"""The options of ``murmur up``: one table from which flags, environment variables and the file's keys are made."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocols.errors import ConfigError

from . import config
from .cli_flags import SIZES, at_least, gigabytes, ip, peer_address, port
from .config import Option
from .options import UpOptions
from .paths import config_file, default_home

if TYPE_CHECKING:
    from collections.abc import Callable

_DEFAULTS = {each.name: each.default for each in fields(UpOptions)}


def _default(name: str) -> Callable[[], Any]:
    return lambda: _DEFAULTS[name]


def _folder(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the name of a folder is empty")
    return Path(text).expanduser()


def _text(text: str) -> str:
    return text


def _gigabytes(value: int) -> int | float:
    return value // 10**9 if value % 10**9 == 0 else value / 10**9


HOME = Option("home", _folder, default_home, "this peer's folder", "DIR", written=str, is_path=True)
DEBUG = Option("debug", _text, _default("debug"), "show tracebacks and more log lines", kind="switch")
OPTIONS: tuple[Option, ...] = (
    HOME,
    Option(
        "run",
        _text,
        _default("run"),
        "an embedded run, a signed manifest, or the beginning of the id of a run that this home has served"
        " (shakespeare)",
        "NAME|FILE|ID",
    ),
    Option("size", _text, _default("size"), "size of an embedded run's model (tiny)", choices=SIZES),
    Option(
        "data",
        _folder,
        _default("data"),
        "where the run's text files are; left out: other peers are asked",
        "DIR",
        written=str,
        is_path=True,
    ),
    Option("listen", ip, _default("listen"), "address to take peers on (0.0.0.0 = all, also of IPv6)", "IP"),
    Option("p2p_port", port, _default("p2p_port"), "0 = any", "N"),
    Option("api_port", port, _default("api_port"), "0 = any; written to HOME/api.json", "N"),
    Option("rounds", at_least(0), _default("rounds"), "end after N sealed rounds; 0 = open end", "N"),
    Option("alone", _text, _default("alone"), "never look for other peers", kind="switch"),
    Option(
        "lan", _text, _default("lan"), "look for peers in this machine's own network, and be found there", kind="switch"
    ),
    Option(
        "relay",
        _text,
        _default("relay"),
        "where this machine has a public address, relay for peers of the run behind routers",
        kind="switch",
    ),
    Option("relay_port", port, _default("relay_port"), "of that relay, TCP; 0 = any", "N"),
    Option(
        "relay_bandwidth",
        at_least(1),
        _default("relay_bandwidth"),
        "that all relayed connections share, in 10⁶ bytes a second (50)",
        "MB/S",
    ),
    Option(
        "join",
        peer_address,
        list,
        "an invitation, which names the run and its peers, or the address of a peer; may be repeated",
        "INVITATION|ADDRESS",
        kind="list",
    ),
    Option("threads", at_least(0), _default("threads"), "CPU threads of the trainer; 0 = all cores but one", "N"),
    Option("keep_checkpoints", at_least(1), _default("keep_checkpoints"), "sealed states on disk (2)", "N"),
    Option(
        "blob_cap",
        gigabytes,
        _default("blob_cap"),
        "disk for data of runs, which is fetched and served (20)",
        "GB",
        written=_gigabytes,
    ),
    Option("json", _text, _default("json"), "only JSON on stdout", kind="switch"),
    DEBUG,
)
NAMES = tuple(option.name for option in OPTIONS)


def add_flags(parser: argparse.ArgumentParser, *, without: tuple[str, ...] = ("debug",)) -> None:
    """Give a parser a flag for each option but those; what is not said on the command line is None."""
    for option in OPTIONS:
        if option.name in without:
            continue
        if option.kind == "switch":
            parser.add_argument(option.flag, action=argparse.BooleanOptionalAction, default=None, help=option.help)
        elif option.kind == "list":
            parser.add_argument(
                option.flag, type=option.parse, action="append", metavar=option.metavar, help=option.help
            )
        else:
            parser.add_argument(
                option.flag,
                type=option.parse,
                choices=option.choices or None,
                metavar=option.metavar,
                help=option.help,
            )


def fill(found: argparse.Namespace) -> None:
    """Put a value where the command line has none, for the ``settings`` that its command names; raises ConfigError.

    The command finds the outcome with its origins in ``settings``; a command that names none has no such attribute.
    """
    given = vars(found)
    names: tuple[str, ...] = given.pop("settings", ())
    named: Path | None = given.pop("config", None)
    if not names:
        found.debug = config.resolve((DEBUG,), given, os.environ, _NO_FILE).values["debug"].value
        return
    if variable := os.environ.get(config.FILE_VARIABLE):
        named = named or Path(variable).expanduser()
    file = config.read(named or config_file(), OPTIONS, named=named is not None)
    options = [option for option in OPTIONS if option.name in names or option is DEBUG]
    settings = config.resolve(options, given, os.environ, file)
    given.update(settings.plain())
    found.settings = settings


def up_options(settings: config.Settings) -> UpOptions:
    """What a daemon is told; raises ConfigError where two options contradict each other.

    Of two that were said in different places the nearer one is meant: a flag, and not the file.
    """
    plain = settings.plain()
    if plain["alone"] and plain["join"]:
        if settings.nearer("join", "alone"):
            plain["alone"] = False
        elif settings.nearer("alone", "join"):
            plain["join"] = ()
        else:
            raise ConfigError("--alone never looks for peers, and --join names some", remedy="leave one of them out")
    return UpOptions(**{**plain, "join": tuple(plain["join"])})


_NO_FILE = config.Document(Path(os.devnull), exists=False, values={})
