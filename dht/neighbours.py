"""Peers of the run in one's own network: announced, heard, and believed once each has proven itself where it was heard.

Trouble with it is one line in the log and another try: nobody needs it but those who have nothing better.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from protocols.errors import MurmurError
from protocols.ids import PeerId, short

from .dialback import prove
from .lan import MOST_ADDRESSES, MOST_PEERS, Card, networks, read, words_of
from .mdns import Mdns
from .tasks import end, keep_going

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

LOOK_S = (1.0, 5.0)
"""Shortest and longest pause between two looks: when something was heard, and when not."""
OPEN_S = (5.0, 300.0)
"""First and longest pause before it is tried again to announce this peer."""
PROVE_S = 3.0
PROVE_AGAIN_S = 60.0
"""Between proofs of one peer that is there."""
RETRY_S = (2.0, 60.0)
"""First and longest pause between proofs of one that did not answer."""
PROOFS = 16
"""Peers that are proven in one look, and connections made for it at the same time."""
MOST_TRIES = 256
"""Peers whose pauses are remembered."""


@dataclass(frozen=True, slots=True)
class Place:
    """Who this peer is to its neighbours."""

    run: bytes
    own: PeerId
    listen: str
    """IPv4 address on which p2pd takes peers."""


@dataclass
class _Try:
    due: float = 0.0
    pause: float = RETRY_S[0]


class Neighbours:
    """One for each network; ``start`` begins its task, ``close`` ends it."""

    def __init__(
        self,
        place: Place,
        port: Callable[[], int],
        found: Callable[[PeerId, str], Awaitable[None]],
        *,
        mdns: Mdns | None = None,
        prove: Callable[[str, PeerId], Awaitable[None]] | None = None,
        cards: Callable[[], list[Card]] | None = None,
    ) -> None:
        """``port`` is p2pd's; ``found`` is awaited with each peer that has proven itself, again every minute."""
        self._place, self._port, self._found = place, port, found
        self._mdns = mdns or Mdns()
        self._prove, self._cards = prove or _prove, cards or own_cards
        self._here = networks((), place.listen)
        self._is_open, self._open_at, self._pause, self._said = False, 0.0, OPEN_S[0], ""
        self._heard = asyncio.Event()
        self._tries: dict[PeerId, _Try] = {}
        self._near: dict[PeerId, str] = {}
        self._places = asyncio.Semaphore(PROOFS)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Announce this peer and look for others from now on."""
        self._task = keep_going(self.run, "neighbours")

    async def close(self) -> None:
        """Say goodbye and end. Safe to call twice."""
        if self._task is not None:
            await end([self._task])
        await self._shut()

    def near(self) -> dict[PeerId, str]:
        """Peers that have proven themselves in this network, each with the multiaddr where it did."""
        return dict(self._near)

    async def run(self) -> None:
        """Look, prove, for ever."""
        while True:
            self._heard.clear()
            await self._keep_open()
            if self._is_open:
                await self._look()
            await asyncio.sleep(LOOK_S[0])
            try:
                async with asyncio.timeout(LOOK_S[1] - LOOK_S[0]):
                    await self._heard.wait()
            except TimeoutError:
                pass

    async def _keep_open(self) -> None:
        """Announced on the interfaces that there are now, or tried again later."""
        here = networks(self._cards(), self._place.listen)
        if here != self._here:
            self._here, self._open_at, self._pause = here, 0.0, OPEN_S[0]
            await self._shut()
        if self._is_open or not here or time.monotonic() < self._open_at:
            return
        try:
            await self._mdns.open(here, self._port(), words_of(self._place.run, self._place.own), self._heard.set)
        except OSError as error:
            self._say(f"this peer is not announced in its own network: {error}")
            self._open_at, self._pause = time.monotonic() + self._pause, min(2 * self._pause, OPEN_S[1])
        else:
            self._is_open, self._pause = True, OPEN_S[0]
            self._say(f"announced in its own network, at {', '.join(str(each.ip) for each in here)}")

    async def _look(self) -> None:
        heard = read(await self._mdns.look(), self._place.run, self._place.own, self._here)
        if len(self._tries) > MOST_TRIES:
            self._tries = {peer: each for peer, each in self._tries.items() if peer in self._near}
        # who has proven itself stays until it does so no more, though a flood of others kept it out of this look
        places = {peer: (at,) for peer, at in self._near.items()}
        for peer, addresses in heard.items():
            if peer in places or len(places) < MOST_PEERS:
                places[peer] = tuple(dict.fromkeys((*places.get(peer, ()), *addresses)))[:MOST_ADDRESSES]
        now = time.monotonic()
        due = [peer for peer in places if self._tries.setdefault(peer, _Try()).due <= now]
        await asyncio.gather(*(self._meet(peer, places[peer]) for peer in due[:PROOFS]))

    async def _meet(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        proven = await asyncio.gather(*(self._is_at(peer, each) for each in addresses))
        now, attempt = time.monotonic(), self._tries[peer]
        if not any(proven):
            self._near.pop(peer, None)
            attempt.due, attempt.pause = now + attempt.pause, min(2 * attempt.pause, RETRY_S[1])
            return
        attempt.due, attempt.pause = now + PROVE_AGAIN_S, RETRY_S[0]
        address = next(each for each, is_at in zip(addresses, proven, strict=True) if is_at)
        if self._near.get(peer) != address:
            log.info("%s is in this network, at %s", short(peer), address.partition("/p2p/")[0])
        self._near[peer] = address
        try:
            await self._found(peer, address)
        except MurmurError as error:
            log.debug("%s", error)

    async def _is_at(self, peer: PeerId, address: str) -> bool:
        async with self._places:
            try:
                await self._prove(address, peer)
            except MurmurError as error:
                log.debug("announced and not there: %s", error)
                return False
        return True

    async def _shut(self) -> None:
        self._is_open, self._near, self._tries = False, {}, {}
        await self._mdns.close()

    def _say(self, text: str) -> None:
        if text != self._said:  # once, not at every try
            self._said = text
            log.info("%s", text)


def own_cards() -> list[Card]:
    """The IPv4 addresses of this machine."""
    stats = psutil.net_if_stats()
    return [
        Card(
            each.address,
            each.netmask,
            frozenset(stats[name].flags.split(",")) | ({"up"} if stats[name].isup else set()),
        )
        for name, addresses in psutil.net_if_addrs().items()
        if name in stats
        for each in addresses
        if each.family == socket.AF_INET
    ]


async def _prove(address: str, peer: PeerId) -> None:
    await prove(address, peer, within=PROVE_S)
