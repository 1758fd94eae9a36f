"""Which run a daemon serves: an embedded one, a manifest's, one this home has served before, or an invitation's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from protocols import invitation
from protocols.errors import ConfigError, EnvironmentFault
from protocols.ids import HASH_BYTES
from protocols.manifest import Manifest, render, run_id, sign, verify
from protocols.manifest_defaults import DEFAULT_SIZE, Choices, default_manifest
from protocols.manifest_text import parse

from . import corpus
from .address_book import AddressBook

if TYPE_CHECKING:
    from protocols.ids import PeerId
    from protocols.invitation import Anchor

    from .identity import Identity
    from .options import UpOptions
    from .paths import Home

MANIFEST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Goal:
    """What a daemon was asked to serve, as far as this machine knows it."""

    run: bytes
    """The run's id, 32 bytes."""
    manifest: Manifest | None
    """None: others have it (``peer/entering.py``)."""
    seeds: tuple[str, ...] = ()
    """Addresses of peers to begin with, each ending in ``/p2p/<peer>``."""
    invitation: str = ""
    """The invitation that led here, if one did."""
    anchor: Anchor | None = None
    """The final seal that the invitation vouches for."""


def find_run(options: UpOptions, home: Home, identity: Identity) -> Goal:
    """The run that ``options`` name: an embedded one, a manifest's, one saved in this home, or an invitation's.

    Raises ConfigError when it is none of these, or when invitations and ``--run`` name different ones.
    """
    named = options.run
    invited = [each for each in options.join if not each.startswith("/")]
    if named is not None and invitation.is_meant(named):
        invited, named = [*invited, named], None
    found = [invitation.decode(each) for each in invited]
    if len({each.run for each in found}) > 1:
        raise ConfigError("the invitations are to different runs", remedy="join one run with one daemon and --home")
    known = _known(options, home, identity) if named is not None or not found else None
    run = run_id(known) if known is not None else found[0].run
    if found and found[0].run != run:
        raise ConfigError(
            f"the invitation is to run {found[0].run.hex()[:12]}, and --run names {run.hex()[:12]}",
            remedy="leave out --run: the invitation names the run",
        )
    if known is None:
        known = saved(home, run)
        _refuse_size(options)
    if known is not None:
        check_admitted(known, identity.peer)
    if not invited and (last := AddressBook(home.addresses(run)).invitation):
        invited, found = [last], [invitation.decode(last)]
    given = tuple(_address(each) for each in options.join if each.startswith("/"))
    seeds = tuple(dict.fromkeys((*given, *(address for each in found for address in each.addresses))))
    anchors = [each.anchor for each in found if each.anchor is not None]
    newest = max(anchors, key=lambda each: each.round, default=None)
    return Goal(run, known, seeds, invited[0] if invited else "", newest)


def _known(options: UpOptions, home: Home, identity: Identity) -> Manifest:
    """The manifest for ``options.run``, which is on this machine. Raises ConfigError.

    An embedded run is the starter's own: its key the only founder, so its own run id.
    """
    if options.run in (None, corpus.NAME):
        if options.data is not None:
            raise ConfigError(
                "--data is for the run of a manifest",
                remedy=f"make one with `murmur run init --data {options.data} -o my-run.toml`",
            )
        return embedded(identity, Choices(size=options.size or DEFAULT_SIZE))
    _refuse_size(options)
    path = Path(options.run or "")
    if not path.exists() and (run := _saved_id(home, str(options.run))) is not None:
        manifest = saved(home, run)
        assert manifest is not None  # its id was read from where it lies
        return manifest
    manifest = read_manifest(path)
    verify(manifest)
    return manifest


def saved(home: Home, run: bytes) -> Manifest | None:
    """The manifest of a run this home has served before; None if it has not. Raises ConfigError."""
    path = home.manifest(run)
    if not path.exists():
        return None
    manifest = read_manifest(path)
    verify(manifest)
    if run_id(manifest) != run:
        raise ConfigError(f"{path} is the manifest of another run", remedy="remove it, and join by an invitation")
    return manifest


def _saved_id(home: Home, prefix: str) -> bytes | None:
    """The run saved in this home whose id begins so; raises ConfigError when several do."""
    if not 4 <= len(prefix) <= 2 * HASH_BYTES or not set(prefix.lower()) <= set("0123456789abcdef"):
        return None
    names = [each.parent.name for each in home.runs.glob(f"{prefix.lower()}*/{home.manifest(b'').name}")]
    if len(names) > 1:
        raise ConfigError(f"{len(names)} runs of this home begin with {prefix}", remedy="give more of the run's id")
    return bytes.fromhex(names[0]) if names else None


def _refuse_size(options: UpOptions) -> None:
    if options.size is not None:
        raise ConfigError("--size is for an embedded run: a manifest has its own", remedy="leave out --size")


def _address(text: str) -> str:
    try:
        invitation.split(text)
    except ValueError as error:
        remedy = "a seed looks like /ip4/203.0.113.7/tcp/4001/p2p/12D3Koo…, an invitation like murmur1…"
        raise ConfigError(str(error), remedy=remedy) from error
    return text


def check_admitted(manifest: Manifest, peer: PeerId) -> None:
    """Raises ConfigError when the run is private and ``peer`` is not on its list: everybody would refuse it."""
    if not manifest.members.admits(peer):
        raise ConfigError(
            f"private run: this key is not on its list ({peer})",
            remedy="use the --home of a key that is, or ask its founders for a run that allows this one",
        )


def keep_manifest(home: Home, manifest: Manifest) -> None:
    """Put the manifest beside the run's checkpoints, for whoever exports or succeeds it; raises EnvironmentFault."""
    path = home.manifest(run_id(manifest))
    if path.exists():
        return
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh.write_text(render(manifest), encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write {path}: {error.strerror}", remedy="free some disk space, or make the folder writable"
        ) from error


def embedded(identity: Identity, choices: Choices) -> Manifest:
    """The embedded run with ``identity`` as its founder, signed by it."""
    manifest = default_manifest(choices, founders=[identity.peer], shards=corpus.SHARDS)
    return sign(manifest, identity.peer, identity.sign)


def read_manifest(path: Path) -> Manifest:
    """Parse a manifest file; raises ConfigError."""
    try:
        if path.stat().st_size > MANIFEST_BYTES:
            text = f"{path} is larger than {MANIFEST_BYTES >> 20} MiB: not a manifest"
            raise ConfigError(text, remedy="name a manifest, such as `murmur run init` writes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = f"an embedded run ({corpus.NAME}) nor one of this home nor a manifest file"
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"{path} is neither {known}: {why}", remedy="`murmur run init` writes a manifest") from error
    return parse(text)
