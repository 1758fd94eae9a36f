"""What the doctor looks at: options as `murmur up` would have them, the home, the run, and the daemon if one runs."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocols.errors import EnvironmentFault, MurmurError

from . import client, config
from .address_book import AddressBook
from .config_table import OPTIONS, up_options
from .exits import NoDaemon, told
from .identity import Identity
from .options import UpOptions
from .paths import Home, config_file
from .runs import Goal, find_run, saved

if TYPE_CHECKING:
    from collections.abc import Mapping

MET = 16
"""Addresses of peers met before that are tried, as a daemon does."""
KEY_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """Options from flags, environment and file; what is wrong with one is told, and its default stands."""

    options: UpOptions
    settings: config.Settings
    faults: tuple[MurmurError, ...] = ()
    strangers: tuple[str, ...] = ()

    def place(self, name: str) -> str:
        """Who set an option: a flag, a variable, a file; empty for a default."""
        return self.settings.values[name].place


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Everything that checks start from."""

    configured: Configured
    home: Home
    identity: Identity | MurmurError | None
    """None: there is no key yet."""
    goal: Goal | MurmurError
    """The run that `murmur up` would serve, or why there is none."""
    met: tuple[str, ...] = ()
    """Addresses of peers of that run that this home has met."""
    held: bool = False
    """Whether a daemon holds the home."""
    status: dict[str, Any] | None = None
    silence: str = ""
    """Why a daemon that is there tells no status."""


def configured(given: Mapping[str, Any], named: Path | None, environment: Mapping[str, str]) -> Configured:
    """The options; ``given``: what flags said, ``named``: another file than the usual one."""
    faults: list[MurmurError] = []
    if variable := environment.get(config.FILE_VARIABLE):
        named = named or Path(variable).expanduser()
    path = named or config_file()
    try:
        file = config.read(path, OPTIONS, named=named is not None)
    except MurmurError as error:
        faults.append(error)
        file = config.Document(path, exists=True, values={})
    values: dict[str, config.Value] = {}
    for option in OPTIONS:
        try:
            values |= config.resolve((option,), given, environment, file).values
        except MurmurError as error:
            faults.append(error)
            values |= config.resolve((option,), given, {}, config.Document(path, exists=False, values={})).values
    settings = config.Settings(file, values)
    try:
        options = up_options(settings)
    except MurmurError as error:
        faults.append(error)
        plain = settings.plain()
        options = UpOptions(**{**plain, "join": tuple(plain["join"]), "alone": False})
    strangers = tuple(config.strangers(environment, OPTIONS))
    return Configured(options=options, settings=settings, faults=tuple(faults), strangers=strangers)


def look(options: Configured) -> Subject:
    """Read home, key, run and daemon; changes nothing, and raises nothing that belongs to a check. May block."""
    for name in ("peer", "dht"):  # what a damaged file has to say comes as a finding
        logging.getLogger(name).addHandler(logging.NullHandler())
    home = Home(options.options.home)
    identity = _identity(home)
    held = is_held(home.lock)
    status, silence = _status(home, held=held)
    goal = _goal(options.options, home, identity)
    if status is not None and status["run"]["id"]:
        goal = _served(home, str(status["run"]["id"]), goal)
    met: tuple[str, ...] = ()
    if not isinstance(goal, MurmurError):
        met = tuple(AddressBook(home.addresses(goal.run)).addresses(MET))
    return Subject(
        configured=options, home=home, identity=identity, goal=goal, met=met, held=held, status=status, silence=silence
    )


def is_held(lock: Path) -> bool:
    """Whether a daemon holds this lock file; asked without making the file."""
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    finally:
        os.close(descriptor)
    return False


def _identity(home: Home) -> Identity | MurmurError | None:
    """The key as it lies there; unlike a daemon's start this mends nothing."""
    try:
        with home.key.open("rb") as file:
            raw = file.read(KEY_BYTES)
        return Identity.decode(raw, str(home.key))
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        return _no_key(f"{home.root} is not a folder", error)
    except OSError as error:
        return _no_key(f"cannot read the key {home.key}: {error.strerror}", error)
    except EnvironmentFault as error:
        error.remedy = (
            f"move {home.key} away, then `murmur key import BACKUP`; without a backup the next start makes a new key,"
            " and this peer a newcomer"
        )
        return error


def _no_key(text: str, error: OSError) -> EnvironmentFault:
    remedy = "make it readable for this user (`chmod 600`, `chown`), or choose another --home"
    fault = EnvironmentFault(text, remedy=remedy)
    fault.__cause__ = error
    return fault


def _goal(options: UpOptions, home: Home, identity: Identity | MurmurError | None) -> Goal | MurmurError:
    if isinstance(identity, MurmurError):
        return identity
    try:
        return find_run(options, home, identity or Identity.from_seed(os.urandom(32)))
    except Exception as error:  # also what the system says of a home that cannot be read
        return told(error)


def _served(home: Home, name: str, goal: Goal | MurmurError) -> Goal | MurmurError:
    """The run that a daemon serves, whatever it was asked for then; the addresses are still those of ``goal``."""
    if not isinstance(goal, MurmurError) and goal.run.hex() == name:
        return goal
    try:
        run = bytes.fromhex(name)
        return Goal(run, saved(home, run), () if isinstance(goal, MurmurError) else goal.seeds)
    except Exception as error:
        return told(error)


def _status(home: Home, *, held: bool) -> tuple[dict[str, Any] | None, str]:
    """The daemon's status, or why there is none although it is ``held``."""
    try:
        status = client.request(home, "GET", "/api/v1/status")
        client.shown(status)
    except NoDaemon as error:
        return None, f"{home.api} leads to nobody" if held else str(error)
    except MurmurError as error:
        return None, str(error)
    return status, ""
