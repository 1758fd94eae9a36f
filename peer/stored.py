"""Runs that a home has trained: found by id or manifest, their newest sound checkpoint read beside a running daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocols.errors import ConfigError, EnvironmentFault
from protocols.manifest import Manifest, run_id
from protocols.statements import Scope

from .models import parameter_count
from .runs import read_manifest
from .settings import CELL
from .state import Checkpoint, StateStore

if TYPE_CHECKING:
    from pathlib import Path

    from .paths import Home

TRIES = 3
"""While a daemon seals quickly, checkpoints may be replaced between their listing and their reading."""


def stored_run(home: Home, which: str | None) -> tuple[Manifest, StateStore]:
    """The run in ``home`` that ``which`` names: the start of its id, a manifest's path, or None for the only one.

    Raises ConfigError when it names none or several, EnvironmentFault when the home holds no run at all.
    """
    known = sorted(path.name for path in home.runs.glob("*") if any(path.glob("round-*.safetensors")))
    if not known:
        raise EnvironmentFault(
            f"{home.root} holds no sealed round", remedy="train with `murmur up`, or name its --home"
        )
    fitting = [name for name in known if name.startswith(which.lower())] if which else known
    path = _path(which) if which else None
    if path is not None and not fitting:
        manifest = read_manifest(path)
        fitting = [name for name in known if name == run_id(manifest).hex()]
    elif len(fitting) == 1:
        manifest = _kept(home.manifest(bytes.fromhex(fitting[0])), fitting[0])
    if len(fitting) != 1:
        listed = ", ".join(name[:12] for name in known)
        what = f"{home.root} holds no run {which}" if not fitting else "which of its runs?"
        raise ConfigError(f"{what}: there are {listed}", remedy="name one by the start of its id, or by its manifest")
    values = parameter_count(manifest.model.size, manifest.model.context)
    scope = Scope(run_id(manifest), CELL)
    return manifest, StateStore(home.run(scope.run), scope, values)


def newest(store: StateStore) -> Checkpoint:
    """The newest sound checkpoint; ``store.warnings`` says what was passed over. Raises EnvironmentFault."""
    for left in reversed(range(TRIES)):
        store.warnings.clear()
        try:
            found = store.load()
        except EnvironmentFault:
            if not left:
                raise
        else:
            if found is not None:
                return found
    raise EnvironmentFault(f"{store.folder} holds no sealed round", remedy="wait until a round is sealed")


def _path(which: str) -> Path | None:
    from pathlib import Path

    path = Path(which)
    return path if path.is_file() else None


def _kept(path: Path, name: str) -> Manifest:
    """The manifest that the daemon left beside the checkpoints, if it is this run's."""
    if not path.is_file():
        raise ConfigError(
            f"the manifest of run {name[:12]} is not in this home", remedy="name the manifest's file instead"
        )
    manifest = read_manifest(path)
    if run_id(manifest).hex() != name:
        raise EnvironmentFault(f"{path} is of another run", remedy="name the manifest's file instead")
    return manifest
