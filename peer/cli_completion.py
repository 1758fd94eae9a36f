"""``murmur completion SHELL``: a script with which a shell completes commands, flags and files."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from protocols.errors import EnvironmentFault

from .cli_flags import Commands, common
from .exits import Exit

SHELLS = ("bash", "zsh", "fish")
WHERE = {
    "bash": "murmur completion bash > ~/.local/share/bash-completion/completions/murmur",
    "zsh": "murmur completion zsh > ~/.zfunc/_murmur    (with `fpath+=~/.zfunc` before compinit in ~/.zshrc)",
    "fish": "murmur completion fish > ~/.config/fish/completions/murmur.fish",
}
FILES, FOLDERS = {"FILE", "NAME|FILE", "NAME|FILE|ID", "ID|FILE"}, {"DIR"}


def add(commands: Commands) -> None:
    """Put ``completion`` among the commands."""
    about = "print a script with which your shell completes murmur's commands and flags"
    lines = "\n".join(f"  {each}" for each in WHERE.values())
    completion = commands.add_parser(
        "completion",
        help=about,
        description=about,
        epilog=f"Install it once:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common()],
        allow_abbrev=False,
    )
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    completion.set_defaults(command=_completion)


def _completion(arguments: dict[str, Any]) -> int:
    from .cli import parser

    print(script(parser(), arguments["shell"]), end="")
    if sys.stdout.isatty():
        print(f"\n# install it: {WHERE[arguments['shell']]}", file=sys.stderr)
    return Exit.DONE


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for ``shell``; raises EnvironmentFault where the library that writes it is missing."""
    try:
        import shtab
    except ImportError as error:
        raise EnvironmentFault("the package shtab is missing", remedy="install murmuration again, or shtab") from error
    _mark_files(parser, {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY})
    return str(shtab.complete(parser, shell=shell))


def _mark_files(parser: argparse.ArgumentParser, kinds: dict[str, Any]) -> None:
    """Say of each flag that takes a file or folder what to offer for it."""
    for action in parser._actions:  # argparse has no other way to walk through a parser
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _mark_files(below, kinds)
        elif action.metavar in FILES | FOLDERS:
            action.complete = kinds["DIR" if action.metavar in FOLDERS else "FILE"]  # type: ignore[attr-defined]
