"""One key, one machine: the directory is asked before anything is signed, and looked at from then on (FC07)."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from dht.directory import DirectoryTiming
from dht.lease import Lease, answered, asking, instance_of, look_up
from protocols.errors import MurmurError

from . import status as st
from .journal import SlotUsed, Withheld

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from dht.directory import Directory
    from dht.records import PeerRecord
    from protocols.ids import PeerId

    from .reporter import Reporter

log = logging.getLogger(__name__)

AGAIN_S = 2.0
"""Between two questions whether the other machine has left."""
SETTLE_S = 4.0
"""Between saying that a free key is taken and the first signature: of two that found it free at once each sees the
other in this time, and the younger one yields."""


class KeyLease:
    """Whether this daemon may sign with its key, and what to do when another machine does."""

    def __init__(
        self,
        root: Path,
        peer: PeerId,
        reporter: Reporter,
        timing: DirectoryTiming | None = None,
    ) -> None:
        """``root`` is the home."""
        self._root, self._peer, self._reporter = root, peer, reporter
        self._timing = timing or DirectoryTiming()
        self.on_lost: Callable[[], None] = lambda: None
        """Called when another machine turns out to have held the key before."""
        self._lease = Lease(instance_of(root))
        self._unsure_until = 0.0  # monotonic; nobody could be asked yet
        self._settled_at = 0.0  # monotonic; the key was free, and somebody else may take it as well
        self._level_at: int | None = None
        self._beat = self._heard = time.time()  # a machine that sleeps has no monotonic time
        self._taken = False
        self.lost = False
        self.entered = False
        """Whether anybody could be asked for the key."""

    async def acquire(self, addresses: Sequence[str], run: bytes) -> None:
        """Returns when no other machine holds the key, as far as those at ``addresses`` know.

        When none of them answers it returns as well, and nothing is signed before ``look``, for one lease at most.
        """
        if addresses:
            async with asking(addresses, run, self._timing, self._root / "asking") as directory:
                if await answered(directory):
                    self.entered = True
                    await self._wait(directory)
                else:
                    self._unsure_until = time.monotonic() + self._timing.lifetime_s
        self._beat = self._heard = time.time()
        self._lease.take(self._beat)
        self._taken = True

    async def settle(self) -> None:
        """Returns when nothing contests this machine's claim any more; to be awaited before anything is signed."""
        await asyncio.sleep(max(0.0, self._settled_at - time.monotonic()))
        if self.lost:
            self.on_lost()

    async def _wait(self, directory: Directory) -> None:
        record: PeerRecord | None = None
        looks = 0
        while True:
            # an answer may not come: what was seen holds until it expires, and nothing seen once is not enough
            record = look_up(await directory.records(), self._peer) or record
            left, looks = self._lease.wait(record, time.time()), looks + 1
            if left and record is not None:
                self._tell(record, left)
            elif record is not None or looks > 1:
                if record is None or record.left or record.instance != self._lease.instance:
                    self._settled_at = time.monotonic() + SETTLE_S
                return
            await asyncio.sleep(min(left or AGAIN_S / 4, AGAIN_S))

    def _tell(self, record: PeerRecord, left: float) -> None:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.since))
        text = f"this key is running on another machine (since {since}): stop that one, or wait {left:.0f} s"
        if self._reporter.status.reason.code != "key_in_use":
            self._reporter.welcome()
            self._reporter.say(f"{text}; it is asked again by itself", event="key_in_use", since=record.since)
        self._reporter.enter("seeking", st.Reason("key_in_use", f"{text}; it is asked again by itself"))

    def stamp(self, record: PeerRecord) -> PeerRecord:
        """This daemon's own record, with whose it is."""
        return replace(record, instance=self._lease.instance, since=self._lease.since or int(time.time()))

    def beat(self, *, heard: bool) -> None:
        """Called every second or so; ``heard``: somebody is connected.

        After a sleep, or without anybody, for longer than a lease the key may have been taken over in good faith: then
        this machine holds it from the next ``look`` on, and not since before.
        """
        now, longest = time.time(), self._timing.lifetime_s
        if now - self._beat > longest or (heard and now - self._heard > longest):
            self._lease.since = 0
            self._unsure_until = time.monotonic() + longest
        self._beat = now
        if heard:
            self._heard = now

    def look(self, records: Sequence[PeerRecord], directory: Directory) -> None:
        """Somebody's answer is here: does another machine say that the key is its own?"""
        record = look_up(records, self._peer)
        if not self._taken or self.lost:
            return
        if self._lease.wait(record, time.time()):
            self.lost = True
            self._reporter.say("another machine has run with this key before: this one stops signing", event="key_lost")
            self.on_lost()
        elif record is not None and record.instance != self._lease.instance and not record.left:
            directory.outbid(record)
        self._lease.take(time.time())
        self._unsure_until = 0.0

    def sealed(self, number: int, *, synced: bool, level: bool) -> None:
        """The seal of a round was adopted; ``synced``: by jumping to it; ``level``: no further one is known.

        Above a seal with which this machine was level, the next one was made since the key is here: the other machine
        has signed nothing for what follows. One that only catches up adopts seals that are much older.
        """
        if not self._lease.inherited:
            self._level_at = None
        elif self._level_at is None:
            self._level_at = number if level else None
        elif not synced and number > max(self._level_at, self._lease.floor):
            self._lease.inherited = False

    def gate(self) -> None:
        """Called before each new signature. Raises Withheld: later; SlotUsed: this one never."""
        if self.lost:
            raise Withheld("another machine runs with this key", remedy="use each key on one machine")
        if time.monotonic() < self._unsure_until or time.time() - self._beat > self._timing.lifetime_s:
            raise Withheld(
                "nobody has been asked yet whether another machine runs with this key; nothing is signed until then",
                remedy=f"nothing to do: it goes on when a peer answers, or by itself after {self._timing.lifetime_s} s",
            )
        if self._lease.inherited:
            raise SlotUsed(
                "another machine may have signed for this round with this key; it goes on after the next seals",
                remedy="nothing",
            )


async def leave(directory: Directory, head: int, *, told: bool) -> None:
    """Give the key up at the last round, so that it can go on elsewhere at once; trouble is only logged."""
    try:
        await directory.withdraw(head, told=told)
    except MurmurError as error:
        log.info("could not say that this peer leaves: %s", error)
