"""``murmur log``: what the daemon of this home has logged, and what it logs from now on."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from . import log_reader
from .cli_flags import Commands, at_least, common
from .exits import Exit, NoDaemon
from .paths import Home

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_S = 0.25
STYLES = {"debug": "dim", "info": "", "warning": "yellow"}
LEVEL_WIDTH = 8


def add(commands: Commands) -> None:
    """Put ``log`` among the commands."""
    about = "show what the daemon of this home has logged"
    log = commands.add_parser(
        "log", help=about, description=about, parents=[common("home", "json")], allow_abbrev=False
    )
    flag = log.add_argument
    flag("-f", "--follow", action="store_true", help="go on with what is logged from now on, until Ctrl-C")
    flag("-n", "--lines", type=at_least(0), default=40, metavar="N", help="how many; 0 = all (%(default)s)")
    flag("--level", choices=log_reader.LEVELS, default="debug", help="only lines at least as serious (%(default)s)")
    log.set_defaults(command=_log)


def _log(arguments: dict[str, Any]) -> int:
    home = Home(arguments["home"])
    try:
        reader = log_reader.LogReader(home.json_log)
    except FileNotFoundError as error:
        raise NoDaemon(
            f"there is no log yet: no daemon has run in {home.root}",
            remedy="start one with `murmur up`, or name the home of one with --home",
        ) from error
    show = _raw if arguments["json"] else _printer()
    wanted = log_reader.at_least(arguments["level"])
    try:
        for line in reader.last(arguments["lines"], wanted):
            show(line)
        if arguments["follow"]:
            for line in reader.follow(lambda: time.sleep(POLL_S), wanted):
                show(line)
    except KeyboardInterrupt:
        pass  # that is how following ends
    finally:
        reader.close()
    return Exit.DONE


def _raw(line: bytes) -> None:
    if log_reader.parsed(line) is not None:
        sys.stdout.write(line.decode(errors="replace") + "\n")
        sys.stdout.flush()


def _printer() -> Callable[[bytes], None]:
    """Three columns on a terminal, in colour unless NO_COLOR forbids it; elsewhere plain lines."""
    if not sys.stdout.isatty():
        return _plain
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)

    def show(line: bytes) -> None:
        row = log_reader.shown(line)
        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True, style="dim")
        table.add_column(no_wrap=True, width=LEVEL_WIDTH, style=STYLES.get(row.level, "bold red"))
        table.add_column(overflow="fold")
        table.add_row(row.stamp, row.level, Text(row.text))
        for each in row.trace:
            table.add_row("", "", Text(f"  {each}", style="dim"))
        console.print(table if row.stamp else Text(row.text))

    return show


def _plain(line: bytes) -> None:
    row = log_reader.shown(line)
    head = f"{row.stamp} {row.level:<{LEVEL_WIDTH}} " if row.stamp else ""
    sys.stdout.write("\n".join((f"{head}{row.text}", *(f"    {each}" for each in row.trace))) + "\n")
    sys.stdout.flush()
