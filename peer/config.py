"""Where the options of ``murmur up`` come from: flag, else environment, else configuration file, else default.

The file is TOML with one key per flag, spelled like it: ``p2p-port = 4001`` is ``--p2p-port 4001`` and
``MURMUR_P2P_PORT=4001``. A key that no flag has is an error; so is a value that the flag would refuse.
"""

from __future__ import annotations

import argparse
import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from protocols.errors import ConfigError, MurmurError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Origin = Literal["flag", "environment", "file", "default"]
PREFIX = "MURMUR_"
FILE_VARIABLE = "MURMUR_CONFIG"
FILE_BYTES = 1 << 20
YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its flag, environment variable and key in the file are one thing."""

    name: str
    """As an attribute: ``p2p_port``."""
    parse: Callable[[str], Any]
    """Text → value; raises ``argparse.ArgumentTypeError``."""
    default: Callable[[], Any]
    help: str
    metavar: str | None = None
    kind: Literal["value", "switch", "list"] = "value"
    choices: tuple[str, ...] = ()
    written: Callable[[Any], Any] = _as_it_is
    """Value → what stands for it in TOML."""
    is_path: bool = False
    """In the file a relative path begins at the file's folder."""

    @property
    def key(self) -> str:
        """Its key in the file."""
        return self.name.replace("_", "-")

    @property
    def flag(self) -> str:
        """Its flag."""
        return f"--{self.key}"

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.name.upper()


@dataclass(frozen=True, slots=True)
class Value:
    """What an option is, and who said so."""

    value: Any
    origin: Origin
    place: str
    """The flag, the variable or the file; empty for a default."""


@dataclass(frozen=True, slots=True)
class Document:
    """A configuration file, read."""

    path: Path
    exists: bool
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one command, resolved."""

    file: Document
    values: Mapping[str, Value]

    def plain(self) -> dict[str, Any]:
        """Name → value."""
        return {name: each.value for name, each in self.values.items()}

    def nearer(self, name: str, other: str) -> bool:
        """Whether option ``name`` was said closer to the command line than the ``other``."""
        ranks: tuple[Origin, ...] = ("flag", "environment", "file", "default")
        return ranks.index(self.values[name].origin) < ranks.index(self.values[other].origin)

    def blame(self, error: MurmurError) -> None:
        """Add to the error's remedy where each option it names was set, if that was not on the command line."""
        words = {word.strip(",.:;()`") for word in f"{error} {error.remedy}".split()}
        named = [
            f"--{name.replace('_', '-')} is set by {each.place}"
            for name, each in self.values.items()
            if f"--{name.replace('_', '-')}" in words and each.origin in ("environment", "file")
        ]
        if named:
            error.remedy = one_line(f"{error.remedy or 'change it'} ({'; '.join(named)})")


def read(path: Path, options: Iterable[Option], *, named: bool) -> Document:
    """The file at ``path``; an absent one is empty unless it was ``named``. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES + 1)
    except FileNotFoundError as error:
        if named:
            remedy = "name one that exists with --config FILE (or MURMUR_CONFIG), or none: --config /dev/null"
            raise ConfigError(f"there is no configuration file {path}", remedy=remedy) from error
        return Document(path, exists=False, values={})
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration file {path}: {error.strerror}",
            remedy="make it readable for this user, or name another with --config FILE",
        ) from error
    return Document(path, exists=True, values=_parsed(raw, path, {option.key for option in options}))


def _parsed(raw: bytes, path: Path, known: set[str]) -> dict[str, Any]:
    import tomllib

    if len(raw) > FILE_BYTES:
        raise ConfigError(f"{path} is larger than {FILE_BYTES >> 20} MiB: no configuration", remedy=_without(path))
    try:
        values = tomllib.loads(raw.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", remedy=_without(path)) from error
    for key in values:
        if key not in known:
            raise ConfigError(f"{path}: there is no option {key!r}", remedy=f"{_guess(key, known)}, or remove the line")
    return values


def resolve(
    options: Iterable[Option], given: Mapping[str, Any], environment: Mapping[str, str], file: Document
) -> Settings:
    """Each option's value; ``given``: what flags said, None where there was none. Raises ConfigError."""
    values = {}
    for option in options:
        if (value := given.get(option.name)) is not None:
            values[option.name] = Value(value, "flag", option.flag)
        elif text := environment.get(option.variable):
            values[option.name] = Value(_from_text(option, text, option.variable), "environment", option.variable)
        elif option.key in file.values:
            values[option.name] = Value(_from_file(option, file), "file", str(file.path))
        else:
            values[option.name] = Value(option.default(), "default", "")
    return Settings(file, values)


def strangers(environment: Mapping[str, str], options: Iterable[Option]) -> list[str]:
    """A sentence for each variable that looks like one of ours and is none: perhaps a slip."""
    known = {FILE_VARIABLE, *(option.variable for option in options)}
    ours = sorted(name for name in environment if name.startswith(PREFIX) and name not in known)
    return [f"{name} is no option of `murmur up`: {_guess(name, known)}" for name in ours]


def _guess(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name.lower(), [each.lower() for each in names], n=1)
    if near:
        return f"did you mean {next(each for each in names if each.lower() == near[0])}?"
    return "`murmur config show` lists what there is"


def _from_text(option: Option, text: str, where: str) -> Any:
    if option.kind == "switch":
        if text.lower() in YES + NO:
            return text.lower() in YES
        raise ConfigError(f"{where}: {text!r} is neither true nor false", remedy="say 1 or 0, or leave it out")
    if option.kind == "list":
        return [_checked(option, each, where) for each in text.replace(",", " ").split()]
    return _checked(option, text, where)


def _from_file(option: Option, file: Document) -> Any:
    """The option's value in the file, of the type that a person would write there."""
    raw, where = file.values[option.key], f"{file.path}: {option.key}"
    if option.kind == "switch":
        if not isinstance(raw, bool):
            raise ConfigError(f"{where} is {raw!r}, not true or false", remedy="write true or false, without quotes")
        return raw
    if option.kind == "list":
        if not isinstance(raw, list) or not all(isinstance(each, str) for each in raw):
            raise ConfigError(f"{where} is not a list of texts", remedy=f'write {option.key} = ["…", "…"]')
        return [_checked(option, each, where) for each in raw]
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise ConfigError(f"{where} is {raw!r}, not one value", remedy=f"write it like {option.flag}, see `up --help`")
    text = str(raw)
    if option.is_path and text:
        text = str(file.path.parent / Path(text).expanduser())
    elif option.name == "run" and (file.path.parent / text).is_file():
        text = str(file.path.parent / text)  # a manifest beside the configuration
    return _checked(option, text, where)


def _checked(option: Option, text: str, where: str) -> Any:
    if option.choices and text not in option.choices:
        raise ConfigError(f"{where}: {text!r} is none of {', '.join(option.choices)}", remedy="choose one of these")
    try:
        return option.parse(text)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{where}: {error}", remedy=f"{option.flag}: {option.help}") from error


def _without(path: Path) -> str:
    return f"mend {path}, name another with --config FILE, or go without: --config /dev/null"


def unset(options: Sequence[Option], environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without anything that configures a daemon, and without the person's file."""
    own = {option.variable for option in options}
    return {name: text for name, text in environment.items() if name not in own} | {FILE_VARIABLE: "/dev/null"}
