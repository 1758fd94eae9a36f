"""``murmur run``: make, show, sign, verify and succeed manifests."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocols.errors import ConfigError, EnvironmentFault

from . import cli_succeed
from .cli_flags import SIZES, Commands, add_methods, at_least, common
from .paths import Home

if TYPE_CHECKING:
    from protocols.ids import PeerId
    from protocols.manifest import Manifest, ShardEntry

Command = Callable[[dict[str, Any]], int]


def add(commands: Commands) -> None:
    """Put ``run`` and its verbs among the commands."""
    about = "make, show, sign and verify manifests, or succeed a run"
    run = commands.add_parser("run", help=about, description=about, allow_abbrev=False)
    verbs: Commands = run.add_subparsers(metavar="VERB", required=True)
    _init_flags(verbs)
    _follow_flags(verbs)
    cli_succeed.add(verbs, _write)
    for name, command, flags, help_text in (
        ("show", _show, ("json",), "print a manifest, its run id and who signed it"),
        ("sign", _sign, ("home",), "sign a manifest in place with this home's key, which must be a founder's"),
        ("verify", _verify, ("json",), "exit 0 when a founder has signed exactly this manifest, else 2"),
    ):
        verb = verbs.add_parser(
            name, help=help_text, description=help_text, parents=[common(*flags)], allow_abbrev=False
        )
        verb.add_argument("file", type=Path, metavar="FILE", help="a manifest (- = stdin)")
        verb.set_defaults(command=command)


def _follow_flags(verbs: Commands) -> None:
    about = "go on with one of several histories of the run that `murmur status` shows, whatever is final here"
    follow = verbs.add_parser(
        "follow", help=about, description=about, parents=[common("home", "json")], allow_abbrev=False
    )
    follow.add_argument(
        "hash", metavar="HASH", help="its newest seal, as `murmur status --json` shows it under histories"
    )
    follow.set_defaults(command=_follow)


def _follow(arguments: dict[str, Any]) -> int:
    from . import client

    return client.follow(Home(arguments["home"]), arguments["hash"].lower(), as_json=arguments["json"])


def _init_flags(verbs: Commands) -> None:
    about = "write a new manifest, signed by this home's key, which becomes a founder"
    init = verbs.add_parser("init", help=about, description=about, parents=[common("home")], allow_abbrev=False)
    flag = init.add_argument
    flag("--data", type=Path, metavar="DIR", help="a folder of text files, kept in the home; left out: the 38 plays")
    flag("--name", help="the run's name; left out: the data's")
    flag("--size", choices=SIZES, default="tiny", help="model size (%(default)s)")
    flag("--seed", type=at_least(0), default=0, metavar="S", help="data and first parameters derive from it")
    flag("--rounds", type=at_least(0), default=0, metavar="R", help="rounds of the run; 0 = open end")
    flag("--steps", type=at_least(1), default=25, metavar="H", help="inner steps of a round (%(default)s)")
    add_methods(init, codec="float32", rule="default")
    flag("--open", action="store_true", help="let strangers enter; left out: the founders only")
    flag("--probation", type=at_least(0), default=0, metavar="N", help="sealed commits until a newcomer votes")
    flag("--allow", action="append", default=[], metavar="ID", help="private: only founders and this key; repeatable")
    flag("--founder", action="append", default=[], metavar="ID", help="another founder; may be repeated")
    flag("-o", "--output", type=Path, metavar="FILE", help="write to FILE, not to stdout")
    init.set_defaults(command=_init)


def _init(arguments: dict[str, Any]) -> int:
    from protocols.manifest import render, sign
    from protocols.manifest_defaults import Choices, default_manifest

    from .identity import Identity

    home = _home(arguments)
    data_name, shards = _shards(arguments["data"], home)
    kept = ("seed", "rounds", "size", "steps", "codec", "rule", "open", "probation")
    choices = Choices(
        name=arguments["name"] or data_name,
        data=data_name,
        allow=tuple(dict.fromkeys(arguments["allow"])),
        **{name: arguments[name] for name in kept},
    )
    identity = Identity.load_or_create(home.key)
    manifest = default_manifest(choices, founders=_founders(identity.peer, arguments["founder"]), shards=shards)
    _write(arguments["output"], render(sign(manifest, identity.peer, identity.sign)))
    return 0


def _show(arguments: dict[str, Any]) -> int:
    from protocols.manifest import render, run_id, to_plain

    manifest = _read(arguments["file"])
    signer = manifest.signature.peer if manifest.signature else None
    name = run_id(manifest).hex()
    if arguments["json"]:
        print(json.dumps({"schema": 1, "run_id": name, "signed_by": signer, "manifest": to_plain(manifest)}))
    else:
        print(f"# run {name}\n# {f'signed by {signer}' if signer else 'not signed'}\n{render(manifest)}", end="")
    return 0


def _sign(arguments: dict[str, Any]) -> int:
    from protocols.manifest import render, sign
    from protocols.manifest_text import parse_unsigned

    from .identity import Identity

    file: Path = arguments["file"]
    # An edited manifest carries a signature that no longer holds; signing anew is the remedy.
    manifest = parse_unsigned(_text(file))
    identity = Identity.load_or_create(_home(arguments).key)
    _write(None if str(file) == "-" else file, render(sign(manifest, identity.peer, identity.sign)))
    return 0


def _verify(arguments: dict[str, Any]) -> int:
    from protocols.manifest import run_id, verify

    manifest = _read(arguments["file"])
    signer, name = verify(manifest), run_id(manifest).hex()
    if arguments["json"]:
        print(json.dumps({"schema": 1, "run_id": name, "signed_by": signer}))
    else:
        print(f"run {name}, signed by its founder {signer}")
    return 0


def _home(arguments: dict[str, Any]) -> Home:
    home = Home(arguments["home"])
    home.create()
    return home


def _founders(own: PeerId, others: list[str]) -> list[PeerId]:
    from protocols.ids import PeerId

    return list(dict.fromkeys([own, *map(PeerId, others)]))


def _shards(folder: Path | None, home: Home) -> tuple[str, tuple[ShardEntry, ...]]:
    """The data's name and shards, which are kept in the home: others get them from there."""
    from . import corpus
    from .blobs import BlobStore
    from .progress import progress

    if folder is None:
        return corpus.NAME, corpus.SHARDS
    shards = corpus.from_folder(folder)
    entries = tuple(shard.entry for shard in shards)
    store = BlobStore(home.blobs)
    store.pin(entries)
    size = sum(entry.bytes for entry in entries)
    with progress("keeping texts", size) as advance:
        for shard in shards:
            store.put(shard.raw)
            advance(len(shard.raw))
    print(
        f"kept {len(entries)} shards, {size / 1e6:.1f} MB, in {home.blobs} for the others of the run", file=sys.stderr
    )
    return slug(folder.resolve().name), entries


def slug(name: str) -> str:
    """A folder's name as a manifest can carry it: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64].strip("-") or "data"


def _read(file: Path) -> Manifest:
    from protocols.manifest_text import parse

    return parse(_text(file))


def _text(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the manifest {file}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}",
            remedy="name an existing manifest, or make one with `murmur run init -o FILE`",
        ) from error


def _write(file: Path | None, text: str) -> None:
    if file is None:
        print(text, end="")
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"cannot write {file}: {error.strerror}", remedy="choose another place") from error
    print(f"wrote {file}", file=sys.stderr)
