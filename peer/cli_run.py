"""``murmur run``: make, show, sign and verify manifests."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocols.errors import ConfigError, EnvironmentFault

from .paths import Home, default_home

if TYPE_CHECKING:
    from protocols.ids import PeerId
    from protocols.manifest import Manifest, ShardEntry

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make, show, sign and verify manifests.")

HomeOption = Annotated[Path | None, typer.Option("--home", help="This peer's folder (environment: MURMUR_HOME).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Only JSON on stdout.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
FileArgument = Annotated[Path, typer.Argument(help="A manifest (- = stdin).")]


@app.command()
def init(  # noqa: PLR0913 - a command's flags are its arguments
    *,
    data: Annotated[Path | None, typer.Option(help="A folder of text files; left out: the 38 plays.")] = None,
    name: Annotated[str | None, typer.Option(help="The run's name; default: the data's.")] = None,
    size: Annotated[str, typer.Option(help="Model size: nano, tiny, small or base.")] = "tiny",
    seed: Annotated[int, typer.Option(min=0, help="Data and first parameters derive from it.")] = 0,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of the run; 0 = open end.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Inner steps of a round.")] = 25,
    codec: Annotated[str, typer.Option(help="How updates are encoded: float32, bf16, int8 or int4.")] = "float32",
    rule: Annotated[str, typer.Option(help="How updates are combined: default or mean.")] = "default",
    probation: Annotated[int, typer.Option(min=0, help="Sealed commits until a newcomer votes.")] = 0,
    founder: Annotated[list[str] | None, typer.Option(help="Another founder's peer id; may be repeated.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to this file, not to stdout.")] = None,
    home: HomeOption = None,
    debug: DebugOption = False,
) -> None:
    """Write a new manifest, signed by this home's key, which becomes a founder."""
    from protocols.manifest import render, sign
    from protocols.manifest_defaults import Choices, default_manifest

    from .identity import Identity

    data_name, shards = _shards(data)
    choices = Choices(
        name=name or data_name,
        data=data_name,
        seed=seed,
        rounds=rounds,
        size=size,
        steps=steps,
        codec=codec,
        rule=rule,
        probation=probation,
    )
    identity = Identity.load_or_create(_home(home).key)
    manifest = default_manifest(choices, founders=_founders(identity.peer, founder), shards=shards)
    _write(output, render(sign(manifest, identity.peer, identity.sign)))


@app.command()
def show(*, file: FileArgument, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Print a manifest, its run id and who signed it."""
    from json import dumps

    from protocols.manifest import render, run_id, to_plain

    manifest = _read(file)
    signer = manifest.signature.peer if manifest.signature else None
    name = run_id(manifest).hex()
    if json:
        typer.echo(dumps({"schema": 1, "run_id": name, "signed_by": signer, "manifest": to_plain(manifest)}))
        return
    typer.echo(f"# run {name}\n# {f'signed by {signer}' if signer else 'not signed'}\n{render(manifest)}", nl=False)


@app.command()
def sign(*, file: FileArgument, home: HomeOption = None, debug: DebugOption = False) -> None:
    """Sign a manifest in place with this home's key, which must be a founder's."""
    from protocols import manifest as manifests
    from protocols.manifest_text import parse_unsigned

    from .identity import Identity

    identity = Identity.load_or_create(_home(home).key)
    # An edited manifest carries a signature that no longer holds; signing anew is the remedy.
    manifest = manifests.sign(parse_unsigned(_text(file)), identity.peer, identity.sign)
    _write(None if str(file) == "-" else file, manifests.render(manifest))


@app.command()
def verify(*, file: FileArgument, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Exit 0 when a founder has signed exactly this manifest, else 2."""
    from json import dumps

    from protocols import manifest as manifests

    manifest = _read(file)
    signer, name = manifests.verify(manifest), manifests.run_id(manifest).hex()
    if json:
        typer.echo(dumps({"schema": 1, "run_id": name, "signed_by": signer}))
    else:
        typer.echo(f"run {name}, signed by its founder {signer}")


def _home(chosen: Path | None) -> Home:
    home = Home(chosen or default_home())
    home.create()
    return home


def _founders(own: "PeerId", others: list[str] | None) -> "list[PeerId]":
    from protocols.ids import PeerId

    return list(dict.fromkeys([own, *map(PeerId, others or ())]))


def _shards(folder: Path | None) -> "tuple[str, list[ShardEntry]]":
    from protocols.manifest import ShardEntry

    from . import corpus

    if folder is None:
        return corpus.NAME, [ShardEntry(entry.id, entry.bytes, entry.hash) for entry in corpus.SHARDS]
    from .data import from_folder

    found = [shard.entry for shard in from_folder(folder)]
    return slug(folder.resolve().name), [ShardEntry(entry.id, entry.bytes, entry.hash) for entry in found]


def slug(name: str) -> str:
    """A folder's name as a manifest can carry it: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:64].strip("-") or "data"


def _read(file: Path) -> "Manifest":
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
        typer.echo(text, nl=False)
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"cannot write {file}: {error.strerror}", remedy="choose another place") from error
    typer.echo(f"wrote {file}", err=True)
