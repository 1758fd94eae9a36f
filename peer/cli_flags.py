"""Flags that several commands share, and the types of their values."""

from __future__ import annotations

import argparse
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from protocols.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

Commands = Any
"""What ``add_subparsers`` returns; argparse does not name its type."""

SIZES = ("nano", "tiny", "small", "base")
CODECS = ("float32", "bf16", "int8", "int4")
RULES = ("default", "arc-nnm-gm", "centered-clip", "multi-krum", "mean")
"""Names that ``protocols`` knows, written out: its tables load numpy."""


def common(*names: str) -> argparse.ArgumentParser:
    """``--debug``, and of ``--home`` and ``--json`` those that are named, as a parent of a command's parser.

    ``--home`` is None until ``fill`` has looked at environment and configuration.
    """
    flags = argparse.ArgumentParser(add_help=False)
    if "home" in names:
        flags.add_argument("--home", type=_home, metavar="DIR", help="this peer's folder (or MURMUR_HOME)")
        flags.set_defaults(settings=("home",))
    if "home" in names or "config" in names:
        flags.add_argument("--config", type=_home, metavar="FILE", help="configuration file (or MURMUR_CONFIG)")
    if "json" in names:
        flags.add_argument("--json", action="store_true", help="only JSON on stdout")
    # Not False: a flag before the command's name would be forgotten.
    flags.add_argument(
        "--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks and more log lines"
    )
    return flags


def add_methods(parser: argparse.ArgumentParser, *, codec: str | None = None, rule: str | None = None) -> None:
    """``--codec`` and ``--rule``, each with the names there are and its default, if it has one."""
    for name, names, default, about in (
        ("--codec", CODECS, codec, "how updates are encoded"),
        ("--rule", RULES, rule, "how updates are combined"),
    ):
        shown = " (%(default)s)" if default is not None else ""
        parser.add_argument(name, default=default, help=f"{about}: {', '.join(names[:-1])} or {names[-1]}{shown}")


def at_least(low: int) -> Callable[[str], int]:
    """An integer of at least ``low``."""

    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least {low}")
        return value

    return integer


def share(text: str) -> float:
    """A number from 0 to below 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to below 1")
    return value


def gigabytes(text: str) -> int:
    """A number of 10⁹ bytes above 0, in bytes."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of gigabytes above 0")
    return round(value * 1e9)


def port(text: str) -> int:
    """A port, or 0 for any."""
    value = at_least(0)(text)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"{value} is not a port")
    return value


class Parser(argparse.ArgumentParser):
    """Wrong usage is one line, and one with what to do, like every other error; ``fill`` completes what is found."""

    fill: Callable[[argparse.Namespace], None] | None = None

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does; raises ConfigError for wrong usage."""
        found = super().parse_args(args, namespace)
        if self.fill is not None:
            self.fill(found)
        return found

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse does; what a command does not know is its own error, not that of the program above it."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(message, remedy=f"`{self.prog} --help` shows what there is")


def peer_address(text: str) -> str:
    """An invitation, or a multiaddr that ends in a peer id, by its looks."""
    if not text.lstrip().lower().startswith("murmur") and not (text.startswith("/") and "/p2p/" in text):
        raise argparse.ArgumentTypeError(
            f"{text[:80]!r} is neither an invitation (murmur1…) nor an address like /ip4/…/tcp/…/p2p/12D3Koo…"
        )
    return text


def ip(text: str) -> str:
    """An IPv4 or IPv6 address to listen on, in its usual form."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not an IP address") from error
    if isinstance(found, ipaddress.IPv6Address) and (found.is_link_local or found.ipv4_mapped):
        raise argparse.ArgumentTypeError(f"{text!r} is not an address that other machines can dial")
    return str(found)


def ipv4(text: str) -> str:
    """An IPv4 address, as p2pd wants it."""
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not an IPv4 address") from error


def _home(text: str) -> Path:
    return Path(text).expanduser()
