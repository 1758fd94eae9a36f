"""The doctor on what a peer keeps: options, key, home, disk, run and data; and on the daemon itself."""

from __future__ import annotations

import os
import secrets
import stat
from typing import TYPE_CHECKING, Any

from protocols.blobs import needed_blobs
from protocols.errors import MurmurError

from . import corpus
from .blobs import hash_file
from .doctor import beside
from .doctor_report import Outcome, failed, passed, skipped, warned
from .models import parameter_count

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from protocols.manifest import Manifest, ShardEntry

    from .doctor_subject import Configured
    from .identity import Identity
    from .paths import Home
    from .runs import Goal

LOGS_BYTES = 100 * 10**6
"""Logs and histories."""
ROOMY_BYTES = 10**9
"""Free beside all that is needed, so that nothing is said about it."""
HASHED_BYTES = 64 << 20
"""Data up to this size is read and checked by its hash; of more only sizes are compared."""
FREE = "free some disk space, or choose a home on another disk with --home DIR"
TROUBLES = ("disk", "memory", "no_data", "no_peers", "key_in_use", "temperature", "quota")
"""Reasons of a daemon's state that a person would like to be told."""


def configuration(options: Configured) -> Outcome:
    """Whether flags, environment and file can be understood."""
    file = options.settings.file
    if options.faults:
        return failed("; ".join(map(str, options.faults)), "; ".join(each.remedy for each in options.faults))
    if options.strangers:
        return warned("; ".join(options.strangers), "rename it, or unset it")
    said = {each.place for each in options.settings.values.values() if each.origin in ("environment", "file")}
    places = sorted(said - {str(file.path)})
    there = f"{file.path}" if file.exists else f"no {file.path}, which is fine"
    return passed(", ".join([there, *places]) if places else there)


def key(home: Home, identity: Identity | MurmurError | None) -> Outcome:
    """Whether this peer has its key, and alone."""
    if isinstance(identity, MurmurError):
        return failed(str(identity), identity.remedy)
    if identity is None:
        if any(home.runs.glob("*/journal")):
            return warned(
                f"{home.root} has trained, and its key is gone",
                "`murmur key import BACKUP` brings it back; without one this peer begins anew, as a newcomer",
            )
        return skipped("none yet: the first `murmur up` makes one")
    mode = stat.S_IMODE(home.key.stat().st_mode)
    if mode & 0o077:
        return warned(
            f"{identity.peer}, and others on this machine can read {home.key} (mode {mode:o})",
            f"chmod 600 {home.key}",
        )
    return passed(f"{identity.peer}, readable by you only")


async def place(home: Home) -> Outcome:
    """Whether the home can be written: tried, where there is one."""
    return await beside(lambda: _place(home))


def _place(home: Home) -> Outcome:
    if not home.root.exists():
        near = next(each for each in home.root.absolute().parents if each.exists())
        if near.is_dir() and os.access(near, os.W_OK | os.X_OK):
            return passed(f"{home.root} is not there yet: `murmur up` makes it")
        return failed(f"{home.root} cannot be made: {near} is not for you to write", "choose another with --home DIR")
    if not home.root.is_dir():
        return failed(f"{home.root} is not a folder", "choose another with --home DIR")
    trial = home.root / f".doctor.{secrets.token_hex(4)}"
    try:
        with trial.open("xb") as file:
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
    finally:
        trial.unlink(missing_ok=True)
    return passed(f"{home.root} can be written")


def needed_bytes(manifest: Manifest, home: Home, folder: Path | None, keep: int) -> int:
    """About how many bytes of disk a run takes beside what is there already: states, missing data, logs."""
    lacking, _ = _sought(manifest, home, folder)
    vectors = 3 * (keep + 1) + 4  # of each state parameters, momentum and drift; a pause's; an update on its way
    state = 4 * parameter_count(manifest.model.size, manifest.model.context)
    return vectors * state + sum(entry.bytes for entry in lacking) + LOGS_BYTES


def disk(home: Home, need: int, free_bytes: Callable[[Path], int]) -> Outcome:
    """Whether what the run needs is free; ``free_bytes`` of the disk that a folder is on."""
    near = next(each for each in (home.root.absolute(), *home.root.absolute().parents) if each.exists())
    free = free_bytes(near)
    text = f"{_size(free)} free on the disk of {home.root}; the run takes about {_size(need)}"
    if free < need:
        return failed(text, FREE)
    if free < need + ROOMY_BYTES:
        return warned(text, FREE)
    return passed(text)


def run(goal: Goal | MurmurError, status: dict[str, Any] | None, own: Identity | MurmurError | None) -> Outcome:
    """Which run is trained, or would be with the key of its ``own``."""
    if status is not None:
        shown = status["run"]
        return passed(f"{shown['name'] or 'unnamed'}, {(shown['id'] or '')[:12]}, served by the daemon")
    if isinstance(own, MurmurError):
        return skipped("which one depends on the key")
    if isinstance(goal, MurmurError):
        return failed(str(goal), goal.remedy or "name a run with --run, or an invitation with --join")
    if goal.manifest is None:
        return passed(f"{goal.run.hex()[:12]}, by an invitation; its peers send the rest")
    return passed(f"{goal.manifest.run.name}, {goal.manifest.model.size}: what `murmur up` would train")


async def data(manifest: Manifest, home: Home, folder: Path | None, *, others: bool) -> Outcome:
    """Whether the run's data is on this machine; ``others``: peers may send what is not."""
    return await beside(lambda: _data(manifest, home, folder, others=others))


def _data(manifest: Manifest, home: Home, folder: Path | None, *, others: bool) -> Outcome:
    lacking, found = _sought(manifest, home, folder)
    total = sum(entry.bytes for entry in manifest.data.shards)
    whole = f"{manifest.data.name}, {len(manifest.data.shards)} shards, {_size(total)}"
    damaged = [entry.id for entry, path in found.items() if not _is_sound(path, entry, hashed=total <= HASHED_BYTES)]
    if damaged:
        return failed(
            f"{whole}: {damaged[0]} is another text than the run's"
            + (f", and {len(damaged) - 1} more are" if len(damaged) > 1 else ""),
            f"put the run's own text back into {folder}" if folder else corpus.REMEDY,
        )
    if not lacking:
        return passed(f"{whole}, all here" + (" and as the run names it" if total <= HASHED_BYTES else ""))
    text = f"{whole}: {len(lacking)} of them ({_size(sum(entry.bytes for entry in lacking))}) are not here"
    if others:
        return passed(f"{text}, and come from peers")
    embedded = any(entry in corpus.SHARDS for entry in lacking)
    return failed(text, corpus.REMEDY if embedded else "name the folder with the run's text files: --data DIR")


def _sought(manifest: Manifest, home: Home, folder: Path | None) -> tuple[list[ShardEntry], dict[ShardEntry, Path]]:
    """What a run needs and is not here, and where the rest is. Raises ConfigError for a folder that is none."""
    near = corpus.elsewhere(manifest.data.shards, folder)
    found = {}
    for entry in needed_blobs(manifest):
        path = near.get(entry.hash, home.blobs / entry.hash)
        if path.is_file():
            found[entry] = path
    return [entry for entry in needed_blobs(manifest) if entry not in found], found


def _is_sound(path: Path, entry: ShardEntry, *, hashed: bool) -> bool:
    if path.stat().st_size != entry.bytes:
        return False
    return not hashed or hash_file(path) == entry.hash


def daemon(status: dict[str, Any] | None, silence: str, *, held: bool) -> Outcome:
    """Whether a daemon runs here, and is well."""
    if status is None and held:
        return failed(
            f"a daemon uses this home and does not answer: {silence}",
            "`murmur log` shows what it does; if nothing moves, end its process and start it again",
        )
    if status is None:
        return skipped("none runs for this home: what only a running one can tell is left out")
    reason = status["reason"]
    which = f"process {status['processes']['daemon']['pid']}, murmur {status['version']}"
    text = f"{which}, {status['state']}{': ' + reason['text'] if reason['text'] else ''}"
    if reason["code"] in TROUBLES:
        return warned(text, "`murmur status` and `murmur log` show more")
    return passed(text)


def _size(value: int) -> str:
    """1234567 → ``1.2 MB``."""
    for unit, bytes_ in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if value >= bytes_:
            return f"{value / bytes_:.1f} {unit}"
    return f"{value / 1000:.0f} kB"
