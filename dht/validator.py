"""Which directory records a node stores and believes, and how many: hivemind's own stores have no bound."""

from __future__ import annotations

import heapq
import logging
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgpack
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase

from protocols.errors import RemoteError

from .records import RECORD_LIMIT, PeerRecord, decode_record, key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.ids import PeerId

log = logging.getLogger(__name__)

CLOCK_LIMIT_S = 3.0
"""hivemind's own bound on the difference between two nodes' clocks."""

_WRAPPING_BYTES = 8
"""hivemind packs every value in msgpack once more."""

MAX_OWNERS = 4096
"""Peers whose records a node holds."""

reading: ContextVar[bool] = ContextVar("reading", default=False)
"""Set while others' answers are read, which nobody stores."""


class RecordValidator(RecordValidatorBase):  # type: ignore[misc]
    """Accepts a peer record of this run only with its owner's signature and no older sequence number than seen.

    When it holds ``MAX_OWNERS``, the record that was renewed longest ago gives way to a new peer's: nobody can fill
    the directory for good, and whoever is alive comes back at its next renewal. Members' records never give way.
    What others answer is read and not kept when there is no room.
    """

    def __init__(
        self,
        run: bytes,
        lifetime_s: float,
        clock: Callable[[], float] = time.time,
        *,
        members: Callable[[], frozenset[PeerId]] = frozenset,
        on_store: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        """``on_store`` is called before each record is stored, with the peer whose record gives way, if any."""
        self._run = run
        self._key = DHTID.generate(source=key_of(run)).to_bytes()
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._members, self._on_store = members, on_store
        self._seen: dict[str, PeerRecord] = {}  # what was renewed last comes last
        self.refused = 0
        """How many good records found no room, or gave way."""

    def validate(self, record: DHTRecord) -> bool:
        """hivemind asks this for every value that it is told to store or that it was given."""
        try:
            checked = self._check(record)
        except (RemoteError, ValueError, TypeError, msgpack.UnpackException) as error:
            log.debug("refused a directory record: %s", error)
            return False
        return self._remember(checked) or reading.get()

    def _check(self, record: DHTRecord) -> PeerRecord:
        if record.key != self._key or len(record.value) > RECORD_LIMIT + _WRAPPING_BYTES or len(record.subkey) > 128:
            raise ValueError("not a peer record of this run, or too large")
        owner, value = msgpack.unpackb(record.subkey), msgpack.unpackb(record.value)
        if not isinstance(owner, str) or not isinstance(value, bytes):
            raise ValueError("not a peer record")
        found = decode_record(value, source=owner[:64])
        if found.peer != owner or found.run != self._run:
            raise RemoteError(owner[:64], "record belongs to another peer or run")
        # A record prolonged by somebody else would outlive its successor, since hivemind keeps what expires last.
        if found.expires != record.expiration_time:
            raise RemoteError(owner, "record's expiry was changed")
        if found.expires > self._clock() + self._lifetime_s + CLOCK_LIMIT_S:
            raise RemoteError(owner, "record is valid for too long")
        last = self._seen.get(owner)
        # A node that missed an update hands out one old record among many good ones: `peers` sorts that out.
        if last is not None and found.sequence < last.sequence and not reading.get():
            raise RemoteError(owner, "record is older than one seen before")
        return found

    def _remember(self, record: PeerRecord) -> bool:
        """Keep the newest of each owner; False when there is no room for another owner."""
        last, gives_way = self._seen.get(record.peer), None
        if last is None and len(self._seen) >= MAX_OWNERS:
            now = self._clock()
            self._seen = {peer: seen for peer, seen in self._seen.items() if seen.expires > now}
            if len(self._seen) >= MAX_OWNERS:
                members = self._members()
                gives_way = None if reading.get() else next((peer for peer in self._seen if peer not in members), None)
                if gives_way is None and record.peer not in members:
                    self.refused += not reading.get()
                    return False
        if gives_way is not None:
            self.refused += 1
            del self._seen[gives_way]
        if last is None or last.sequence < record.sequence:
            self._seen.pop(record.peer, None)
            self._seen[record.peer] = record
        if not reading.get():
            self._on_store(gives_way)
        return True

    def newest(self, record: PeerRecord) -> PeerRecord:
        """The newest record seen of this one's peer."""
        last = self._seen.get(record.peer)
        return last if last is not None and last.sequence > record.sequence else record


def make_room(storage: Any, key: DHTID, peer: str | None) -> None:
    """Take ``peer``'s record out of one of hivemind's stores, and what these keep of entries that are no more.

    They keep a trace of each entry that was replaced or deleted until it would have expired.
    """
    stored = storage.data.get(key)
    if stored is None or not hasattr(stored.value, "expiration_heap"):
        return
    if peer is not None:
        del stored.value[peer]
    for timed in (storage, stored.value):
        if len(timed.expiration_heap) > 2 * len(timed.data) + MAX_OWNERS:
            timed.expiration_heap = list(timed.key_to_heap.values())
            heapq.heapify(timed.expiration_heap)
