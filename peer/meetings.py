"""Who is connected goes into the book of addresses: now and then, and soon when somebody new is there."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from protocols.ids import PeerId

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from dht.records import PeerRecord

    from .address_book import AddressBook

SAVE_S, NEWS_S = 60.0, 3.0
"""Between two times that the book is written; and the same when there is somebody new in it."""


class Memory:
    """Of one book."""

    def __init__(self, book: AddressBook) -> None:
        self._book = book
        self._due, self._met = 0.0, False

    async def keep(self, near: Sequence[PeerRecord], members: Container[PeerId], *, now: bool = False) -> None:
        """Write who is ``near`` into the book when that is due, or ``now``."""
        known = {each.peer for each in self._book.peers()}
        if not self._met and any(record.peer not in known for record in near):
            self._due, self._met = min(self._due, time.monotonic() + NEWS_S), True
        if time.monotonic() < self._due and not now:
            return
        self._due, self._met = time.monotonic() + SAVE_S, False
        for record in near:
            peer = PeerId(record.peer)
            self._book.met(peer, record.addresses, member=peer in members, now=time.time())
        await asyncio.to_thread(self._book.save)
