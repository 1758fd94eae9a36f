"""``murmur config show``: every option of `murmur up` and where it comes from; ``murmur paths``: where things are."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from . import config
from .cli_flags import Commands, common
from .config_table import NAMES, OPTIONS, add_flags
from .exits import Exit
from .paths import Home

if TYPE_CHECKING:
    from pathlib import Path

WIDEST = 40
"""A comment stands in one column up to here."""


def add(commands: Commands) -> None:
    """Put ``config`` and ``paths`` among the commands."""
    about = "show the options of `murmur up` as they are in force, and where they come from"
    shows = commands.add_parser("config", help=about, description=about, allow_abbrev=False)
    verbs: Commands = shows.add_subparsers(metavar="VERB", required=True)
    help_text = "print them as a configuration file; a flag of `murmur up` given here counts as it would there"
    show = verbs.add_parser(
        "show", help=help_text, description=help_text, parents=[common("config")], allow_abbrev=False
    )
    show.add_argument(
        "--origin", action="store_true", help="say of each whether a flag, the environment, the file or the default"
    )
    add_flags(show, without=("debug", "json"))
    show.add_argument("--json", dest="as_json", action="store_true", help="only JSON on stdout")
    show.set_defaults(command=_show, settings=NAMES)

    about = "show where this home and the configuration are, and everything in them"
    paths = commands.add_parser(
        "paths", help=about, description=about, parents=[common("home", "json")], allow_abbrev=False
    )
    paths.set_defaults(command=_paths)


def _show(arguments: dict[str, Any]) -> int:
    settings: config.Settings = arguments["settings"]
    for text in config.strangers(os.environ, OPTIONS):
        print(f"murmur: {text}", file=sys.stderr)
    if arguments["as_json"]:
        options = [
            {"name": option.key, "value": _written(option, found.value), "origin": found.origin, "from": found.place}
            for option in OPTIONS
            for found in (settings.values[option.name],)
        ]
        file = {"path": str(settings.file.path), "exists": settings.file.exists}
        print(json.dumps({"schema": 1, "file": file, "options": options}))
        return Exit.DONE
    print(text_of(settings, origin=arguments["origin"]))
    return Exit.DONE


def text_of(settings: config.Settings, *, origin: bool) -> str:
    """The settings as a configuration file, which can be read again; an option that is not set is a comment."""
    import tomli_w

    lines = [f"# {settings.file.path}{'' if settings.file.exists else ' (not there)'}"]
    for option in OPTIONS:
        found = settings.values[option.name]
        value = _written(option, found.value)
        line = f"# {option.key} =" if value is None else _one_line(tomli_w.dumps({option.key: value}))
        source = {"default": "default", "file": "file"}.get(found.origin, found.place)
        lines.append(f"{line:<{WIDEST}}  # {source}" if origin else line)
    return "\n".join(lines)


def _written(option: config.Option, value: Any) -> Any:
    return None if value is None else option.written(value)


def _one_line(text: str) -> str:
    """A list of texts, which the writer spreads over several lines, in one."""
    return " ".join(line.strip() for line in text.splitlines())


def _paths(arguments: dict[str, Any]) -> int:
    home = Home(arguments["home"])
    file: Path = arguments["settings"].file.path
    places = {
        "config": file,
        "home": home.root,
        "key": home.key,
        "api": home.api,
        "log": home.log,
        "json log": home.json_log,
        "runs": home.runs,
        "blobs": home.blobs,
    }
    if arguments["json"]:
        shown = {name.replace(" ", "_"): {"path": str(path), "exists": path.exists()} for name, path in places.items()}
        print(json.dumps({"schema": 1, **shown}))
        return Exit.DONE
    for name, path in places.items():
        print(f"{name:<9} {path}{'' if path.exists() else '  (not there yet)'}")
    return Exit.DONE
