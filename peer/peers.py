"""The peers of a run as this one sees them, for ``murmur peers``. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from protocols.ids import PeerId
    from protocols.round.chain import Head


@dataclass(frozen=True, slots=True)
class Record:
    """What a peer says of itself in the directory. ``head``: its last sealed round; None while it has none."""

    software: str
    head: int | None
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A connection: ``direct``, ``punched`` or ``relayed``, over ``tcp`` or ``quic``, and its figures."""

    kind: str = "direct"
    transport: str | None = None
    sent: int | None = None
    received: int | None = None
    rtt_s: float | None = None
    """From a ping to its answer."""


def rows(
    own: PeerId,
    head: Head | None,
    connected: Mapping[PeerId, Line],
    records: Mapping[PeerId, Record],
    founders: Iterable[PeerId],
) -> list[dict[str, Any]]:
    """One row for each member, neighbour and peer of the directory: oneself first, then who is connected, then by id.

    ``connection`` is null where there is none; ``member`` is null for who is none, and while no ``head`` is known.
    """
    table = head.table.members if head is not None else {}
    everybody = {own, *table, *connected, *records, *founders}
    order = sorted(everybody, key=lambda each: (each != own, each not in connected, each not in table, each))
    return [_row(each, own, head, connected, records) for each in order]


def _row(
    peer: PeerId, own: PeerId, head: Head | None, connected: Mapping[PeerId, Line], records: Mapping[PeerId, Record]
) -> dict[str, Any]:
    member = head.table.members.get(peer) if head is not None else None
    record, line = records.get(peer), connected.get(peer)
    return {
        "id": peer,
        "own": peer == own,
        "connection": line.kind if line else None,
        "transport": line.transport if line else None,
        "sent": line.sent if line else None,
        "received": line.received if line else None,
        "rtt_s": line.rtt_s if line else None,
        "member": None
        if member is None
        else {"state": member.state, "weight": member.weight, "sealed": member.sealed, "missed": member.missed},
        "software": record.software if record else None,
        "head": record.head if record else None,
        "addresses": list(record.addresses) if record else [],
    }
