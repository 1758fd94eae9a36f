"""The command ``murmur``. It imports nothing heavy: what a command needs, it imports when it runs.

Every expected error becomes one line and a remedy on stderr and the exit code of ``peer.exits``;
a traceback appears only with ``--debug``.
"""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from protocols.errors import ConfigError, EnvironmentFault, MurmurError

from . import cli_run
from .exits import Exit, exit_code
from .options import SwarmOptions, UpOptions
from .paths import Home, default_home

app = typer.Typer(
    name="murmur",
    help="Train one model together with other people's machines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cli_run.app, name="run")

HomeOption = Annotated[Path | None, typer.Option("--home", help="This peer's folder (environment: MURMUR_HOME).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks and more log lines.")]
Port = typer.Option(min=0, max=65535, help="0 = any.")
SIZES = "nano, tiny, small or base"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"murmur {version('murmuration')}")
        raise typer.Exit


@app.callback()
def _common(
    _version_wanted: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """Train one model together with other people's machines."""


@app.command()
def up(  # noqa: PLR0913 - a command's flags are its arguments
    *,
    run: Annotated[str, typer.Option(help="An embedded run's name or a signed manifest's path.")] = "shakespeare",
    size: Annotated[str, typer.Option(help=f"Size of an embedded run's model: {SIZES}.")] = "tiny",
    home: HomeOption = None,
    p2p_port: Annotated[int, Port] = 0,
    api_port: Annotated[int, Port] = 0,
    rounds: Annotated[int, typer.Option(min=0, help="End after so many sealed rounds; 0 = open end.")] = 0,
    alone: Annotated[bool, typer.Option("--alone", help="Never look for other peers.")] = False,
    join: Annotated[list[str] | None, typer.Option(help="Address of a peer to dial; may be repeated.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads of the trainer; 0 = all.")] = 0,
    keep_checkpoints: Annotated[int, typer.Option(min=1, help="Sealed states kept on disk.")] = 2,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Train until Ctrl-C, `murmur stop`, or the last round."""
    options = UpOptions(
        home=home or default_home(),
        run=run,
        size=size,
        p2p_port=p2p_port,
        api_port=api_port,
        rounds=rounds,
        alone=alone,
        join=tuple(join or ()),
        threads=threads,
        keep_checkpoints=keep_checkpoints,
        json=json,
        debug=debug,
    )
    if alone and options.join:
        raise ConfigError("--alone never looks for peers, and --join names some", remedy="leave one of them out")
    from . import daemon

    raise typer.Exit(daemon.run(options))


@app.command()
def status(home: HomeOption = None, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show what the daemon of this home is doing."""
    from . import client

    raise typer.Exit(client.show_status(Home(home or default_home()), as_json=json))


@app.command()
def stop(home: HomeOption = None, json: JsonOption = False, debug: DebugOption = False) -> None:
    """End the daemon of this home and wait until it is gone."""
    from . import client

    raise typer.Exit(client.stop(Home(home or default_home()), as_json=json))


@app.command()
def swarm(  # noqa: PLR0913 - a command's flags are its arguments
    *,
    peers: Annotated[int, typer.Option(min=1, max=64, help="Real daemons to start.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Sealed rounds.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Keys, manifest and data derive from it.")] = 0,
    size: Annotated[str | None, typer.Option(help=f"Model size: {SIZES}.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Inner steps of a round.")] = None,
    codec: Annotated[str | None, typer.Option(help="How updates are encoded.")] = None,
    rule: Annotated[str | None, typer.Option(help="How updates are combined.")] = None,
    run: Annotated[str, typer.Option(help="An embedded run's name or a manifest's path.")] = "shakespeare",
    baseline: Annotated[bool, typer.Option("--baseline", help="Compare with one peer alone and plain AdamW.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the report to this file (- = stdout).")] = None,
    trace: Annotated[Path | None, typer.Option(help="Keep every received frame in this folder.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the peers' homes behind.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds for the whole swarm.")] = 0.0,
    debug: DebugOption = False,
) -> None:
    """Start several real daemons on this machine that train one model; exit 0 only if every check holds."""
    options = SwarmOptions(
        peers=peers,
        rounds=rounds,
        seed=seed,
        size=size,
        steps=steps,
        codec=codec,
        rule=rule,
        run=run,
        baseline=baseline,
        json=json,
        trace=trace,
        keep=keep,
        timeout=timeout,
        debug=debug,
    )
    from . import swarm as local_swarm

    raise typer.Exit(local_swarm.run(options))


def report(error: MurmurError) -> Exit:
    """One line for ``error`` and one for its remedy on stderr; returns its exit code."""
    typer.echo(f"murmur: {error}", err=True)
    if error.remedy:
        typer.echo(f"  try: {error.remedy}", err=True)
    return exit_code(error)


def main() -> NoReturn:
    """The console script."""
    debug = "--debug" in sys.argv
    try:
        app()
    except MurmurError as error:
        if debug:
            raise
        sys.exit(report(error))
    except OSError as error:
        if debug:
            raise
        sys.exit(report(EnvironmentFault(f"{error}", remedy="the same command with --debug shows where")))
    except Exception as error:  # the last resort of a command line: one line instead of a traceback
        if debug:
            raise
        typer.echo(f"murmur: internal error: {type(error).__name__}: {error}", err=True)
        typer.echo("  try: the same command with --debug shows where", err=True)
        sys.exit(Exit.FAILED)
    sys.exit(Exit.DONE)
