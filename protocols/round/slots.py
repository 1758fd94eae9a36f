"""Whom a donor serves at a time, and who waits: members before strangers, nobody for ever (protocol.md 6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..ids import Hash, PeerId

SLOTS = 2
"""Joiners that a donor serves at a time: two, so that its line rests for none of the pauses of one of them."""
QUEUE = 64
"""Joiners that may wait; beyond these the last stranger goes for a member, else the newcomer."""
SILENT_S = 10.0
"""Whoever did not ask for so long has lost its place."""
SHIFT_S = 120.0
"""A stranger has a slot for so long while others wait; then it goes to the end. Keys are free, slots are not."""


@dataclass
class Guest:
    """A joiner: what it loads, whether it is a member, when it last asked, and since when it is served."""

    seal: Hash
    member: bool
    asked: float
    since: float = 0.0
    told: int | None = None
    """The place that it was told last."""


class Desk:
    """Slots and queue of one donor. Places: 0 is served, n is the nth to wait."""

    def __init__(self) -> None:
        self.served: dict[PeerId, Guest] = {}
        self.waiting: dict[PeerId, Guest] = {}
        """In order, but that members come first."""
        self.refused = 0
        self.dropped: list[tuple[PeerId, Hash]] = []
        """Strangers that had to go for members, and what they wanted, to be told so."""

    def __len__(self) -> int:
        return len(self.served) + len(self.waiting)

    def ask(self, peer: PeerId, seal: Hash, now: float, *, member: bool) -> bool:
        """Somebody asks for chunks, or again; whether it has a slot or a place. See ``news`` for what changed."""
        guest = self.served.get(peer) or self.waiting.get(peer)
        if guest is None:
            if len(self.waiting) >= QUEUE and not (member and self._drop_stranger()):
                self.refused += 1
                return False
            guest = self.waiting[peer] = Guest(seal, member, now)
        guest.seal, guest.asked, guest.member = seal, now, member
        self._fill(now)
        return True

    def leave(self, peer: PeerId, now: float) -> None:
        """It is done, or gone."""
        self.served.pop(peer, None)
        self.waiting.pop(peer, None)
        self._fill(now)

    def expire(self, now: float) -> None:
        """Time has passed: the silent lose their places, strangers take turns."""
        for place in (self.served, self.waiting):
            for peer in [each for each, guest in place.items() if now - guest.asked > SILENT_S]:
                del place[peer]
        if self.waiting:
            for peer, guest in list(self.served.items()):
                if not guest.member and now - guest.since > SHIFT_S:
                    self.waiting[peer] = self.served.pop(peer)
        self._fill(now)

    def uses(self, seal: Hash) -> bool:
        """Whether anybody loads, or waits for, the state of this seal."""
        return any(guest.seal == seal for place in (self.served, self.waiting) for guest in place.values())

    def news(self) -> Iterator[tuple[PeerId, Hash, int | None]]:
        """(whom to tell, its seal, its place or None) wherever that is another one than it was told."""
        for peer, seal in self.dropped:
            yield peer, seal, None
        self.dropped.clear()
        places = [*((peer, guest, 0) for peer, guest in self.served.items())]
        places += [(peer, guest, number) for number, (peer, guest) in enumerate(self._order(), 1)]
        for peer, guest, place in places:
            if guest.told != place:
                guest.told = place
                yield peer, guest.seal, place

    def _order(self) -> list[tuple[PeerId, Guest]]:
        return sorted(self.waiting.items(), key=lambda each: not each[1].member)

    def _fill(self, now: float) -> None:
        while self.waiting:
            peer, guest = self._order()[0]
            if len(self.served) >= SLOTS and not (guest.member and self._yield_stranger()):
                return
            del self.waiting[peer]
            self.served[peer] = guest
            guest.since = now

    def _yield_stranger(self) -> bool:
        """Make a stranger give its slot to a member: it is the first of the strangers to wait."""
        for peer, guest in self.served.items():
            if not guest.member:
                del self.served[peer]
                self.waiting = {peer: guest, **self.waiting}
                return True
        return False

    def _drop_stranger(self) -> bool:
        last = next((peer for peer, guest in reversed(self.waiting.items()) if not guest.member), None)
        if last is not None:
            self.dropped.append((last, self.waiting.pop(last).seal))
            self.refused += 1
        return last is not None
