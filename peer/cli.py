"""The command ``murmur``. It imports nothing heavy: what a command needs, it imports when it runs.

Every expected error becomes one line and a remedy on stderr and the exit code of ``peer.exits``;
a traceback appears only with ``--debug``.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from protocols.errors import ConfigError, MurmurError

from . import cli_completion, cli_config, cli_doctor, cli_export, cli_key, cli_lighthouse, cli_live, cli_log, cli_run
from .cli_flags import SIZES, Commands, Parser, add_methods, at_least, common, share
from .config_table import NAMES, add_flags, fill, up_options
from .exits import Exit, exit_code, told
from .options import SwarmOptions
from .paths import Home
from .swarm.plan import check, parse_kill
from .terminal import never_fail

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from .config import Settings

MODULES = (cli_run, cli_export, cli_live, cli_key, cli_log, cli_config, cli_doctor, cli_lighthouse, cli_completion)
REMEDY = "the same command with --debug shows where it came from, and `murmur log` what the daemon did"
USAGE_REMEDY = "mend what it names; the command's --help shows what there is"


def parser() -> argparse.ArgumentParser:
    """All commands and their flags. A module of commands has ``add`` and stands in ``MODULES``."""
    top = Parser(
        prog="murmur", description="Train one model together with other people's machines.", allow_abbrev=False
    )
    top.fill = fill
    top.add_argument("--version", action="store_true", help="show the version and end")
    top.add_argument("--debug", action="store_true", default=None, help="show tracebacks and more log lines")
    commands: Commands = top.add_subparsers(metavar="COMMAND")
    _up(commands)
    _simple(commands)
    _swarm(commands)
    for module in MODULES:
        module.add(commands)
    return top


def _up(commands: Commands) -> None:
    about = "train until Ctrl-C, `murmur stop`, or the last round"
    epilog = "Each of these can also stand in the configuration file or the environment: `murmur config show --origin`."
    up = commands.add_parser(
        "up", help=about, description=about, epilog=epilog, parents=[common("config")], allow_abbrev=False
    )
    add_flags(up)
    up.set_defaults(command=run_up, settings=NAMES)


def _simple(commands: Commands) -> None:
    for name, command, about in (
        ("stop", _run_stop, "end the daemon of this home and wait until it is gone"),
        ("invite", _run_invite, "print a line with which others join the run of this home's daemon"),
    ):
        flags = [common("home", "json")]
        commands.add_parser(name, help=about, description=about, parents=flags, allow_abbrev=False).set_defaults(
            command=command
        )


def _swarm(commands: Commands) -> None:
    about = "start several real daemons on this machine that train one model; exit 0 only if every check holds"
    swarm = commands.add_parser("swarm", help=about, description=about, parents=[common()], allow_abbrev=False)
    flag = swarm.add_argument
    flag("--peers", type=at_least(1), default=SwarmOptions.peers, metavar="N", help="real daemons (%(default)s)")
    flag("--rounds", type=at_least(1), default=SwarmOptions.rounds, metavar="R", help="sealed rounds (%(default)s)")
    flag(
        "--seed", type=at_least(0), default=0, metavar="S", help="keys, manifest and data derive from it (%(default)s)"
    )
    flag("--size", choices=SIZES, help="model size")
    flag("--steps", type=at_least(1), metavar="H", help="inner steps of a round")
    add_methods(swarm)
    flag(
        "--run",
        default=SwarmOptions.run,
        metavar="NAME|FILE",
        help="an embedded run, or a swarm's run.toml (%(default)s)",
    )
    flag(
        "--kill",
        type=parse_kill,
        action="append",
        default=[],
        metavar="WHO@ROUND[:PHASE]",
        help="kill -9 a peer then; WHO = an index, 2x, coordinator, reducer or contributor; may be repeated",
    )
    flag(
        "--join-at",
        type=at_least(1),
        action="append",
        default=[],
        metavar="ROUND",
        help="one more peer joins in that round; may be repeated",
    )
    _virtual(swarm)
    flag("--baseline", action="store_true", help="compare with one peer alone and with plain AdamW")
    flag("--json", type=Path, metavar="FILE", help="write the report to FILE (- = stdout)")
    flag("--trace", type=Path, metavar="DIR", help="keep updates and seals in DIR and replay them in memory")
    flag("--keep", action="store_true", help="leave the peers' homes behind")
    flag("--timeout", type=float, default=0.0, metavar="S", help="seconds in all; 0 = as long as its rounds allow")
    swarm.set_defaults(command=_run_swarm)


def _virtual(swarm: argparse.ArgumentParser) -> None:
    flag = swarm.add_argument
    flag("--virtual", action="store_true", help="all peers in this process, on a virtual clock and network")
    flag("--loss", type=share, default=0.0, metavar="P", help="virtual: share of the frames that get lost")
    flag("--deaths", type=at_least(0), default=0, metavar="N", help="virtual: peers that die at some time")
    flag("--joins", type=at_least(0), default=0, metavar="N", help="virtual: peers that join at some time")
    flag("--partition", action="count", default=0, help="virtual: a partition that heals; may be repeated")
    flag("--frozen", type=at_least(0), default=0, metavar="N", help="virtual: peers that stand still for a while")
    flag("--slow", type=at_least(0), default=0, metavar="N", help="virtual: peers with a slow uplink")


def run_up(arguments: dict[str, Any], *, wrap: Callable[[Any], Any] | None = None) -> int:
    """``murmur up``; ``wrap`` puts something between the daemon and its round machine. Raises MurmurError."""
    settings: Settings = arguments["settings"]
    try:
        options = up_options(settings)
        if options.relay:
            cli_lighthouse.check_extra()
        _use_one_blas_thread()
        signal.signal(signal.SIGTERM, _end)  # until the daemon takes signals itself: loading takes a while
        from . import daemon

        return daemon.run(options, wrap=wrap)
    except MurmurError as error:
        settings.blame(error)
        raise


def _end(_number: int, _frame: object) -> NoReturn:
    sys.exit(Exit.DONE)


def _run_swarm(arguments: dict[str, Any]) -> int:
    lists = {name: tuple(arguments[name]) for name in ("kill", "join_at")}
    options = SwarmOptions(**{**arguments, **lists})
    check(options)
    _use_one_blas_thread()
    from . import swarm

    return swarm.run(options)


def _use_one_blas_thread() -> None:
    """Read by numpy's BLAS when it loads: a daemon takes no second core, and sums do not depend on their number."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def _run_stop(arguments: dict[str, Any]) -> int:
    from . import client

    return client.stop(Home(arguments["home"]), as_json=arguments["json"])


def _run_invite(arguments: dict[str, Any]) -> int:
    from . import client

    return client.invite(Home(arguments["home"]), as_json=arguments["json"])


def report(error: MurmurError) -> Exit:
    """One line for ``error`` and one for its remedy on stderr; returns its exit code.

    On a terminal that is too narrow they are wrapped between words.
    """
    usual = USAGE_REMEDY if isinstance(error, ConfigError) else REMEDY
    for line in (f"murmur: {error}", f"  try: {error.remedy or usual}"):
        print(_fitting(line) if sys.stderr.isatty() else line, file=sys.stderr)
    return exit_code(error)


def _fitting(line: str) -> str:
    import shutil
    import textwrap

    width = max(shutil.get_terminal_size().columns, 40)
    return textwrap.fill(line, width, subsequent_indent=" " * 7, break_long_words=False, break_on_hyphens=False)


def main() -> NoReturn:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        never_fail(stream)
    try:
        commands = parser()
        arguments = vars(commands.parse_args())
    except ConfigError as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        sys.exit(report(error))
    if arguments.pop("version"):
        from importlib.metadata import version

        print(f"murmur {version('murmuration')}")
        sys.exit(Exit.DONE)
    command = arguments.pop("command", None)
    if command is None:
        commands.print_help(sys.stderr)
        sys.exit(Exit.USAGE)
    sys.exit(guarded(command, arguments))


def guarded(command: cli_run.Command, arguments: dict[str, Any]) -> int:
    """Run a command; its exit code, also when it ends by an error, which is told in one line and its remedy."""
    try:
        code = command(arguments)
        sys.stdout.flush()  # what cannot be written is an error of the command, not of Python's end
        return code
    except KeyboardInterrupt:
        return Exit.DONE if command is run_up else Exit.FAILED
    except BrokenPipeError:  # `murmur log | head`: the reader has all it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.DONE
    except Exception as error:
        if arguments["debug"]:
            traceback.print_exc()
        return report(told(error))
