"""Where a peer keeps its things: one home directory, mode 0700, and the names in it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import platformdirs

from protocols.errors import EnvironmentFault

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Home:
    """The home of one peer; two daemons never share one."""

    root: Path

    @property
    def key(self) -> Path:
        """The Ed25519 key, mode 0600."""
        return self.root / "identity.key"

    @property
    def api(self) -> Path:
        """Port and token of the running daemon, mode 0600."""
        return self.root / "api.json"

    @property
    def lock(self) -> Path:
        """Held by the running daemon."""
        return self.root / "daemon.lock"

    @property
    def log(self) -> Path:
        """The daemon's log, for people."""
        return self.root / "murmur.log"

    @property
    def json_log(self) -> Path:
        """The same log, a JSON object a line."""
        return self.root / "murmur.jsonl"

    @property
    def runs(self) -> Path:
        """Manifests by run id, and below each its checkpoints."""
        return self.root / "runs"

    @property
    def blobs(self) -> Path:
        """Files that runs name by hash, of all runs."""
        return self.root / "blobs"

    def run(self, run_id: bytes) -> Path:
        """The folder of one run."""
        return self.runs / run_id.hex()

    def addresses(self, run_id: bytes) -> Path:
        """Where peers of one run were met."""
        return self.run(run_id) / "peers.json"

    def manifest(self, run_id: bytes) -> Path:
        """The manifest of one run, beside its checkpoints."""
        return self.run(run_id) / "manifest.toml"

    def create(self) -> None:
        """Make the folder if it is not there, for its owner only; EnvironmentFault when it cannot be written."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.chmod(0o700)
        except OSError as error:
            raise _unusable(self.root, error.strerror) from error
        if not os.access(self.root, os.R_OK | os.W_OK | os.X_OK):
            raise _unusable(self.root, "not writable")


def default_home() -> Path:
    """The platform's place for user data (XDG on Linux); ``MURMUR_HOME`` and the configuration come before it."""
    return platformdirs.user_data_path("murmur", appauthor=False)


def config_file() -> Path:
    """The configuration in the platform's place for it (XDG on Linux); ``MURMUR_CONFIG`` names another."""
    return platformdirs.user_config_path("murmur", appauthor=False) / "config.toml"


def sync_folder(folder: Path) -> None:
    """What was created, renamed or removed in a folder outlives a power failure from here on; raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_safely(path: Path, data: bytes) -> None:
    """Put ``data`` into ``path``, synced; after a crash either it or what was there before is in it. Raises OSError."""
    fresh = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


def _unusable(root: Path, why: str | None) -> EnvironmentFault:
    return EnvironmentFault(
        f"the home {root} cannot be used: {why}",
        remedy="choose a folder of your own with --home DIR or MURMUR_HOME",
    )
