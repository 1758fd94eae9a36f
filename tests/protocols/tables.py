"""Tables of members for tests."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from protocols.ids import Hash, PeerId, digest, peer_id
from protocols.table import Table, genesis

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ZERO = Hash(b"0" * 32)
PARENT = Hash(b"p" * 32)


def peers(count: int, start: int = 0) -> list[PeerId]:
    """Ids that nobody has the keys of, ascending."""
    return sorted(peer_id(digest(struct.pack("<Q", number))) for number in range(start, start + count))


def founders(count: int) -> Table:
    """Members in standing, admitted by seal 0."""
    return genesis(peers(count), ZERO)


def changed(table: Table, who: Iterable[PeerId], **fields: Any) -> Table:
    """The table with these fields in some members' rows."""
    return Table({**table.members, **{each: replace(table.members[each], **fields) for each in who}})


def weighted(weights: Sequence[float]) -> Table:
    """Founders of these weights."""
    table = founders(len(weights))
    for each, weight in zip(peers(len(weights)), weights, strict=True):
        table = changed(table, [each], weight=weight)
    return table
