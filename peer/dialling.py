"""Which of the peers that the directory knows are dialled. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from dht.records import PeerRecord
    from protocols.ids import PeerId

HELPERS = frozenset({"lighthouse", "relay"})
"""Roles of those that help a run; most of them take no part in its rounds."""
MAX_STRANGERS = 16
"""Peers that are no members of the run to which we connect by ourselves: anybody can fill the directory."""


def whom_to_dial(
    found: Iterable[PeerRecord],
    connected: frozenset[PeerId],
    members: frozenset[PeerId],
    *,
    draw: random.Random,
) -> tuple[list[PeerRecord], list[PeerRecord]]:
    """Of the peers that are not connected, (all members, some of the others).

    The others are drawn, so that no choice of a peer id comes first; with those connected, they are at most
    ``MAX_STRANGERS``.
    """
    missing = [record for record in found if record.addresses and record.peer not in connected]
    others = [record for record in missing if record.peer not in members]
    room = max(0, MAX_STRANGERS - len(connected - members))
    return [record for record in missing if record.peer in members], draw.sample(others, min(room, len(others)))


def takes_part(record: PeerRecord) -> bool:
    """Whether a peer takes part in rounds: one that helps the run may do so as well."""
    return "contributor" in record.roles or not HELPERS & set(record.roles)
