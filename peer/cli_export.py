"""``murmur export``: its flags, and what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cli_flags import Commands, common
from .paths import Home

if TYPE_CHECKING:
    from .export_check import Checked


def add(commands: Commands) -> None:
    """Put ``export`` among the commands."""
    about = "write the newest sealed model of this home, with its proof, into a new folder; or check such a folder"
    export = commands.add_parser(
        "export", help=about, description=about, parents=[common("home", "json")], allow_abbrev=False
    )
    export.add_argument("folder", type=Path, metavar="DIR", help="absent or empty; with --check: an export")
    export.add_argument(
        "--run", metavar="ID|FILE", help="which run, if this home has several: its id's start, or manifest"
    )
    export.add_argument(
        "--check", action="store_true", help="compute everything in DIR again; exit 1 if it does not hold"
    )
    export.set_defaults(command=_export)


def _export(arguments: dict[str, Any]) -> int:
    folder: Path = arguments["folder"]
    if arguments["check"]:
        from .export_check import check

        return _tell_checked(folder, check(folder), as_json=arguments["json"])
    from .export import export
    from .stored import stored_run

    manifest, store = stored_run(Home(arguments["home"]), arguments["run"])
    written = export(manifest, store, folder)
    for text in store.warnings:
        print(f"murmur: {text}", file=sys.stderr)
    if arguments["json"]:
        fields = {"folder": str(folder), "round": written.round, "seal": written.seal, "state_hash": written.state_root}
        print(json.dumps({"schema": 1, **fields}))
    else:
        print(f"wrote round {written.round} of {manifest.run.name} to {folder}, seal {written.seal}")
    return 0


def _tell_checked(folder: Path, found: Checked, *, as_json: bool) -> int:
    if as_json:
        fields = {"round": found.round, "seal": found.seal, "founders": found.founders, "voted": found.voted}
        print(json.dumps({"schema": 1, "ok": True, **fields, "proven": found.proven}))
        return 0
    print(f"{folder}: the model is that of seal {found.seal}, round {found.round}")
    votes = f"{found.voted} of {found.founders} founders voted for it"
    more = "" if found.proven else ": that it is the run's own needs the seals before it, which the run's peers have"
    print(f"{votes}{more}")
    return 0
