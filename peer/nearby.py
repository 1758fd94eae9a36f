"""Peers in one's own home: who they are, that they are dialled there first, and that nobody outside is told where.

Their addresses go to p2pd and nowhere else: not into the directory, an invitation or the book of other peers' records.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dht.addresses import is_outward, told
from dht.neighbours import Neighbours, Place
from dht.records import PeerRecord
from protocols.ids import PeerId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dht.directory import Directory
    from dht.p2pd import P2pd

    from .options import UpOptions


class Nearby:
    """One for each network; ``start`` begins it where it is wanted, ``close`` ends it."""

    def __init__(
        self,
        options: UpOptions,
        run: bytes,
        own: PeerId,
        p2pd: P2pd,
        directory: Directory,
        admits: Callable[[PeerId], bool],
    ) -> None:
        """``admits``: whether the run lets a peer take part."""
        self._run, self._directory, self._admits = run, directory, admits
        self._is_wanted = options.lan and not options.listen.startswith("127.")
        self._neighbours = Neighbours(Place(run, own, options.listen), lambda: p2pd.port, self._met)
        self._others_outside = False

    def start(self) -> None:
        """Announce this peer in its network and look for others, unless that is not wanted."""
        if self._is_wanted:
            self._neighbours.start()

    async def close(self) -> None:
        """Say goodbye. Safe to call twice."""
        await self._neighbours.close()

    def address(self, peer: PeerId) -> str:
        """Where a peer has proven that it is in this network; "" for all others."""
        return self._neighbours.near().get(peer, "")

    def join(self, records: Iterable[PeerRecord]) -> list[PeerRecord]:
        """These records, and one for each neighbour that has none, as it is to be dialled: here first."""
        near, known = self._neighbours.near(), list(records)
        self._others_outside = any(is_outward(address) for record in known for address in record.addresses)
        found = [
            replace(record, addresses=(near[peer], *record.addresses))
            if (peer := PeerId(record.peer)) in near
            else record
            for record in known
        ]
        lacking = near.keys() - {record.peer for record in known}
        found += [
            PeerRecord(self._run, peer, (near[peer],), ("contributor",), "", 0, 0, 0)
            for peer in sorted(lacking)
            if self._admits(peer)
        ]
        return found

    def outside(self) -> bool:
        """Whether anybody out in the world is known, reached or not: then nothing private goes into the directory."""
        return self._others_outside or any(is_outward(seed.address) for seed in self._directory.seeds())

    def tellable(self, addresses: Iterable[str]) -> tuple[str, ...]:
        """Those of this peer's addresses that an invitation may name, the best first."""
        best = told(addresses)
        return tuple(each for each in best if is_outward(each)) if self.outside() else best

    async def _met(self, peer: PeerId, address: str) -> None:
        """Whoever is near leads to the directory too: without a seed there may be nobody else."""
        if self._admits(peer):
            await self._directory.meet(peer, address)
