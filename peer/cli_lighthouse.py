"""``murmur lighthouse``: its flags."""

from __future__ import annotations

import argparse
import re
from typing import Any

from protocols.errors import ConfigError, EnvironmentFault

from .cli_flags import Commands, at_least, common, ip, ipv4, peer_address, port
from .options import LighthouseOptions

EXTRA = "pip install 'murmuration[lighthouse]'"


def add(commands: Commands) -> None:
    """Put ``lighthouse`` among the commands."""
    about = "help a run from a machine that everybody can reach: an entry to its directory, and a relay; needs no GPU"
    parser = commands.add_parser(
        "lighthouse", help=about, description=about, parents=[common("home")], allow_abbrev=False
    )
    flag, usual = parser.add_argument, LighthouseOptions
    about = "address to listen on (%(default)s = all, also of IPv6)"
    flag("--listen", type=ip, default=usual.listen, metavar="IP", help=about)
    flag("--p2p-port", type=port, default=usual.p2p_port, metavar="N", help="of the entry, TCP and UDP (%(default)s)")
    flag("--relay-port", type=port, default=usual.relay_port, metavar="N", help="of the relay, TCP (%(default)s)")
    flag(
        "--announce",
        type=_host,
        action="append",
        default=[],
        metavar="HOST",
        help="how others reach this machine: an IP address or a name; left out: its own addresses; may be repeated",
    )
    flag(
        "--relay-only",
        action="store_true",
        help="relay alone, be no entry; only an entry sees the ends between which holes are punched",
    )
    flag(
        "--run",
        type=_run,
        action="append",
        default=[],
        dest="runs",
        metavar="ID",
        help="serve this run only; may be repeated; left out: any",
    )
    flag(
        "--join",
        type=peer_address,
        action="append",
        default=[],
        metavar="ADDRESS",
        help="another lighthouse; may be repeated",
    )
    flag("--http-host", type=ipv4, default=usual.http_host, metavar="IPV4", help="for /healthz and /metrics")
    flag("--http-port", type=port, default=usual.http_port, metavar="N", help="0 = any")
    flag(
        "--bandwidth",
        type=at_least(1),
        default=round(usual.total_rate / 1e6),
        metavar="MB/S",
        help="that all relayed connections share, in 10⁶ bytes a second (%(default)s)",
    )
    parser.set_defaults(command=_run_lighthouse)


def check_extra() -> None:
    """Raises EnvironmentFault, which says what to install, where a relay cannot run."""
    import importlib.util

    if importlib.util.find_spec("libp2p") is None:
        raise EnvironmentFault("the relay needs py-libp2p, which is not installed", remedy=EXTRA)


def _run_lighthouse(arguments: dict[str, Any]) -> int:
    check_extra()
    if arguments["relay_only"] and arguments["runs"]:
        raise ConfigError(
            "--relay-only has no directory, from which --run takes whom to serve", remedy="leave one of them out"
        )
    from . import lighthouse

    rate = arguments.pop("bandwidth") * 1e6
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
    names = LighthouseOptions.__dataclass_fields__
    options = LighthouseOptions(**{**{name: given[name] for name in given if name in names}, "total_rate": rate})
    return lighthouse.run(options)


def _host(text: str) -> str:
    """A multiaddr without port."""
    import ipaddress

    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        if not re.fullmatch(r"((?!-)[a-z0-9-]{1,63}\.)*(?![0-9]+$)(?!-)[a-z0-9-]{1,63}", text.lower()):
            raise argparse.ArgumentTypeError(f"{text!r} is neither an IP address nor a name") from None
        return f"/dns4/{text.lower()}"
    return f"/ip{ip.version}/{ip}"


def _run(text: str) -> bytes:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the id of a run: 64 hexadecimal digits")
    return bytes.fromhex(text)
