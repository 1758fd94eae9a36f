"""``murmur key``: show who this home is, write its key to a file as a backup, or begin a home with such a file."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocols.errors import ConfigError, EnvironmentFault

from .cli_flags import Commands, common
from .exits import Exit, NoDaemon, Refused
from .paths import Home

if TYPE_CHECKING:
    from .identity import Identity

STDIN = STDOUT = "-"
COPY = "whoever has this file is this peer: keep it off the network, and use a key on one machine at a time"


def add(commands: Commands) -> None:
    """Put ``key`` and its verbs among the commands."""
    about = "show, back up or bring in the key that this home's peer is known by"
    key = commands.add_parser("key", help=about, description=about, allow_abbrev=False)
    verbs: Commands = key.add_subparsers(metavar="VERB", required=True)
    for name, command, help_text in (
        ("show", _show, "print the peer's id, which is its public key, and where the secret one lies"),
        ("export", _export, "write the secret key to a new file that only you can read"),
        ("import", _import, "make the key in a file the key of this home"),
    ):
        parents = [common("home", "json")]
        verb = verbs.add_parser(name, help=help_text, description=help_text, parents=parents, allow_abbrev=False)
        verb.set_defaults(command=command)
        if name == "export":
            verb.add_argument("file", metavar="FILE", help="must not exist (- = stdout, for a pipe to gpg or age)")
        elif name == "import":
            verb.add_argument("file", metavar="FILE", help="what `murmur key export` wrote (- = stdin)")
            verb.add_argument(
                "--replace", action="store_true", help="even if the home has another key, which is kept beside it"
            )


def _show(arguments: dict[str, Any]) -> int:
    home = Home(arguments["home"])
    identity, held = _own(home), _holder(home)
    if arguments["json"]:
        fields = {"peer": identity.peer, "file": str(home.key), "in_use": held}
        print(json.dumps({"schema": 1, **fields}))
        return Exit.DONE
    use = {"here": "in use by the daemon of this home", "elsewhere": "in use on another machine"}.get(
        held, "not in use"
    )
    print(f"peer  {identity.peer}\nfile  {home.key}\nuse   {use}")
    return Exit.DONE


def _export(arguments: dict[str, Any]) -> int:
    home, target = Home(arguments["home"]), str(arguments["file"])
    identity, held = _own(home), _holder(home)
    if held == "elsewhere":
        raise Refused(
            "this key is in use on another machine just now: a third copy would be one more to confuse",
            remedy="stop the other machine, or `murmur stop` here, and try again",
        )
    if target == STDOUT:
        if sys.stdout.isatty():
            raise ConfigError("a secret key does not belong on a terminal", remedy="name a FILE, or pipe it")
        sys.stdout.buffer.write(identity.encoded())
        sys.stdout.buffer.flush()
    else:
        _write(identity, Path(target).expanduser())
    if arguments["json"] and target != STDOUT:
        print(json.dumps({"schema": 1, "peer": identity.peer, "file": target}))
    else:
        print(f"wrote the key of {identity.peer} to {_place(target, 'stdout')}; {COPY}", file=sys.stderr)
    return Exit.DONE


def _write(identity: Identity, path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise EnvironmentFault(f"there is no folder {path.absolute().parent}", remedy="make it, or name another FILE")
    identity.save(path, remedy="name another FILE: an export never writes over one")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        print(f"murmur: {path} can be read by others: its file system has no permissions", file=sys.stderr)


def _import(arguments: dict[str, Any]) -> int:
    from .identity import Identity
    from .lock import hold

    home, source = Home(arguments["home"]), str(arguments["file"])
    identity = Identity.decode(sys.stdin.buffer.read(1 << 12), "stdin") if source == STDIN else _from(Path(source))
    home.create()
    try:
        with hold(home.lock):
            kept = _put(identity, home, replace=arguments["replace"])
    except EnvironmentFault as error:
        if home.key.exists() and _holder(home) != "":
            raise Refused(
                "a daemon runs in this home, with its key", remedy="`murmur stop` ends it; or choose another --home"
            ) from error
        raise
    if arguments["json"]:
        fields = {"peer": identity.peer, "file": str(home.key), "kept": str(kept) if kept else None}
        print(json.dumps({"schema": 1, **fields}))
        return Exit.DONE
    print(f"this home is {identity.peer}")
    if kept is not None:
        print(f"its key until now is {kept}", file=sys.stderr)
    print("if another machine still runs with this key, this one waits until that has left", file=sys.stderr)
    return Exit.DONE


def _from(path: Path) -> Identity:
    from .identity import Identity

    try:
        return Identity.load(path.expanduser(), remedy="name a file that `murmur key export` wrote")
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}", remedy="name one that `murmur key export` wrote") from error


def _put(identity: Identity, home: Home, *, replace: bool) -> Path | None:
    """Make this the home's key; returns where the one before is kept, None if there was none or the same."""
    from .identity import Identity

    try:
        old = Identity.load(home.key)
    except FileNotFoundError:
        identity.save(home.key)
        return None
    if old.peer == identity.peer:
        return None
    if runs := len({path.parent for path in home.runs.glob("*/journal*")}):
        raise EnvironmentFault(
            f"this home's key has signed in {runs} run{'s' * (runs > 1)}, and each key needs a journal of its own",
            remedy="bring the key into a fresh home with --home DIR",
        )
    if not replace:
        raise EnvironmentFault(
            f"this home has another key: it is {old.peer}",
            remedy="--replace puts the new one in its place and keeps the old one beside it; or choose another --home",
        )
    kept = home.key.with_name(f"{home.key.name}.{old.peer[-8:]}")
    old.save(kept, remedy="move it away: it is a key that was replaced before")
    fresh = home.key.with_name(f".{home.key.name}.{os.getpid()}.new")
    identity.save(fresh)
    fresh.replace(home.key)
    return kept


def _own(home: Home) -> Identity:
    """The home's identity; raises EnvironmentFault when it has none."""
    from .identity import Identity

    try:
        return Identity.load(home.key)
    except FileNotFoundError as error:
        raise EnvironmentFault(
            f"{home.root} has no key yet",
            remedy="`murmur up` makes one, `murmur key import FILE` brings one in; or name another --home",
        ) from error


def _holder(home: Home) -> str:
    """Who runs with the home's key, as the daemon here knows it: ``here``, ``elsewhere``, or empty without a daemon."""
    from . import client

    try:
        reason = client.request(home, "GET", "/api/v1/status").get("reason")
    except NoDaemon:
        return ""
    except Refused:
        return "here"
    return "elsewhere" if isinstance(reason, dict) and reason.get("code") == "key_in_use" else "here"


def _place(text: str, standard: str) -> str:
    return standard if text == STDOUT else text
