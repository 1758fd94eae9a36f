"""What p2pd's connections are: direct, punched or relayed, and over which transport. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from protocols.ids import PeerId

Kind = Literal["direct", "punched", "relayed"]
_BEST: tuple[Kind, ...] = ("direct", "punched", "relayed")


@dataclass(frozen=True, slots=True)
class Connection:
    """The way by which streams to a peer go: of several connections the most direct one."""

    kind: Kind
    transport: str
    """``tcp`` or ``quic``; of a relayed one, that to the relay."""
    address: str
    """Multiaddr of the other end."""


def ways(ends: Iterable[tuple[PeerId, str]], punched: Container[PeerId]) -> dict[PeerId, Connection]:
    """Each peer's way, from the ends of all connections; ``punched``: with whom a hole was punched."""
    found: dict[PeerId, Connection] = {}
    for peer, address in ends:
        way = _way(address, is_punched=peer in punched)
        if peer not in found or _BEST.index(way.kind) < _BEST.index(found[peer].kind):
            found[peer] = way
    return found


def quic_of(address: str) -> str:
    """The QUIC address beside a TCP address of a peer, which listens for both at one port; "" where there is none."""
    parts = address.split("/")
    if len(parts) != 7 or parts[3] != "tcp" or parts[5] != "p2p":
        return ""
    return "/".join([*parts[:3], "udp", parts[4], "quic-v1", *parts[5:]])


def _way(address: str, *, is_punched: bool) -> Connection:
    transport = "quic" if "/quic" in address else "tcp"
    if "/p2p-circuit" in address:
        return Connection("relayed", transport, address)
    return Connection("punched" if is_punched else "direct", transport, address)
