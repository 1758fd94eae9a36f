"""Who coordinates a view and who owns a part: hashes that nobody can grind (protocol.md 5.1, 5.5).

Turn order hashes the admission seal, which nothing chosen later can change; owners hash the
commits, which nobody knows before they are all made.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from blake3 import blake3

from .ids import Hash, PeerId, digest
from .messages import MAX_REDUCERS
from .table import STRIKE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .statements import Scope
    from .table import Table

MAX_TICKETS = 4


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def _key(table: Table, scope: Scope, word: bytes, number: int, peer: PeerId) -> bytes:
    return _place(word, scope.run, scope.cell, number, table.members[peer].admitted, peer)


@lru_cache(maxsize=1024)
def _place(word: bytes, run: bytes, cell: str, number: int, admitted: Hash, peer: PeerId) -> bytes:  # noqa: PLR0913, PLR0917
    return digest(word, run, cell.encode(), _number(number), admitted, peer.encode())


def coordinator(table: Table, scope: Scope, view: int) -> PeerId:
    """The voter whose turn the view is: largest hash among direct voters without an open strike, else among all."""
    direct = [each for each in table.voters if table.members[each].direct and table.members[each].benched < view]
    return first_turn(table, scope, view, direct or list(table.voters))


def first_turn(table: Table, scope: Scope, view: int, peers: Iterable[PeerId]) -> PeerId:
    """Whose turn comes first among these members."""
    return max(peers, key=lambda peer: _key(table, scope, b"turn", view, peer))


def failed_turns(table: Table, scope: Scope, views: range) -> tuple[tuple[PeerId, int], ...]:
    """Coordinators of views that came to nothing, of the last 16 at most, and the view."""
    return tuple((coordinator(table, scope, view), view) for view in views[-STRIKE:])


def seats(table: Table, scope: Scope, round_number: int, peers: Iterable[PeerId]) -> list[PeerId]:
    """Members in the seat order of a round."""
    return sorted(peers, key=lambda peer: _key(table, scope, b"seat", round_number, peer), reverse=True)


def reducers(table: Table, scope: Scope, round_number: int, direct: Mapping[PeerId, bool]) -> list[PeerId]:
    """At most 16 members in standing in the roster that can be dialled (else any of them, else all voters), by id.

    ``direct`` holds the roster's peers and what their commits say of their reachability. Who was put out lately
    reduces only if nobody else can.
    """
    able = [each for each in direct if direct[each] and table.stands(each)]
    fresh = [each for each in able if table.members[each].rested < round_number]
    standing = [each for each in direct if table.stands(each)]
    return sorted(seats(table, scope, round_number, fresh or able or standing or table.voters)[:MAX_REDUCERS])


def tickets(up: Mapping[PeerId, int]) -> dict[PeerId, int]:
    """Lots in the drawing of parts, 1 to 4: twice the claimed uplink over the median claim; 0 = unknown = median."""
    known = sorted(value for value in up.values() if value > 0)
    median = known[(len(known) - 1) // 2] if known else 0
    return {
        each: min(MAX_TICKETS, max(1, (4 * value + median) // (2 * median))) if value > 0 else 2
        for each, value in up.items()
    }


def owners(parent: Hash, commits: Sequence[Hash], lots: Mapping[PeerId, int], parts: int) -> list[PeerId]:
    """The reducer of every part: largest BLAKE3(parent ‖ commits ‖ part ‖ id ‖ lot)."""
    seed = _framed(digest(b"owner", parent, *commits))
    drawn = [
        (each, _framed(each.encode()) + _framed(_number(lot))) for each in lots for lot in range(1, lots[each] + 1)
    ]
    out = []
    for part in range(parts):
        start = seed + _framed(_number(part))
        out.append(max([(blake3(start + tail).digest(), each) for each, tail in drawn])[1])
    return out


def _framed(part: bytes) -> bytes:
    """A part as ``digest`` hashes it; a model has thousands of parts, so ``owners`` joins them by itself."""
    return len(part).to_bytes(8, "little") + part
