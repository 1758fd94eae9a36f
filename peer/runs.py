"""Which run a daemon serves: an embedded one by name, or a signed manifest from a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from protocols.errors import ConfigError, EnvironmentFault
from protocols.manifest import Manifest, render, run_id, sign, verify
from protocols.manifest_defaults import DEFAULT_SIZE, Choices, default_manifest
from protocols.manifest_text import parse

from . import corpus

if TYPE_CHECKING:
    from protocols.ids import PeerId

    from .identity import Identity
    from .options import UpOptions
    from .paths import Home

MANIFEST_BYTES = 8 << 20


def load_run(options: UpOptions, identity: Identity) -> Manifest:
    """The manifest for ``options.run``. Raises ConfigError when it is neither a known name nor a valid file.

    An embedded run is the starter's own: its key the only founder, so its own run id.
    """
    if options.run == corpus.NAME:
        if options.data is not None:
            raise ConfigError(
                "--data is for the run of a manifest",
                remedy=f"make one with `murmur run init --data {options.data} -o my-run.toml`",
            )
        return embedded(identity, Choices(size=options.size or DEFAULT_SIZE))
    if options.size is not None:
        raise ConfigError("--size is for an embedded run: a manifest has its own", remedy="leave out --size")
    manifest = read_manifest(Path(options.run))
    verify(manifest)
    check_admitted(manifest, identity.peer)
    return manifest


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
            raise ConfigError(f"{path} is larger than {MANIFEST_BYTES >> 20} MiB: not a manifest")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        known = f"an embedded run ({corpus.NAME}) nor a manifest file"
        raise ConfigError(
            f"{path} is neither {known}: {error}", remedy="`murmur run init` writes a manifest"
        ) from error
    return parse(text)
