"""Which directory records a node stores and believes, and how many: hivemind's own stores have no bound."""

from __future__ import annotations

import heapq
import logging
import random
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgpack
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase

from protocols.errors import RemoteError

from .limits import RECORD_BYTES, RECORDS, SIGNATURES, Gauge
from .records import CLOCK_LIMIT_S, RECORD_LIMIT, PeerRecord, decode_record, expiration_of, key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.ids import PeerId

log = logging.getLogger(__name__)

_WRAPPING_BYTES = 8
"""hivemind packs every value in msgpack once more."""

reading: ContextVar[bool] = ContextVar("reading", default=False)
"""Set while others' answers are read, which nobody stores."""


class RecordValidator(RecordValidatorBase):  # type: ignore[misc]
    """Accepts a peer record of this run only with its owner's signature and no older sequence number than seen.

    When it holds ``RECORDS``, or ``RECORD_BYTES`` in all, the record that was renewed longest ago gives way to a new
    one: nobody can fill the directory for good, and whoever is alive comes back at its next renewal. Members' records
    never give way. What others answer is read and not kept when there is no room. No key but the run's own is served:
    other runs store nothing here.
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
        self._values: dict[str, bytes] = {}  # the same, as they came: equal bytes need no second look
        self._bytes = 0
        self.records = Gauge("records", RECORDS, "directory records found no room or gave way to others")
        self.bytes = Gauge("record_bytes", RECORD_BYTES, "directory records were too large for the room left", None)

    def validate(self, record: DHTRecord) -> bool:
        """hivemind asks this for every value that it is told to store or that it was given."""
        try:
            checked = self._check(record)
        except (RemoteError, ValueError, TypeError, msgpack.UnpackException) as error:
            log.debug("refused a directory record: %s", error)
            return False
        return self._remember(checked, record.value) or reading.get()

    def screen(self, key: bytes, records: Any) -> bool:
        """hivemind asks this for a whole dictionary of records, of which no more than ``SIGNATURES`` new ones stay.

        An answer may hold ``RECORDS`` of them, and to check them all would hold up the event loop for half a second.
        """
        with records.freeze():
            entries = {
                owner: DHTRecord(key, msgpack.packb(owner), value, expires)
                for owner, (value, expires) in records.items()
            }
            members = self._members()
            fresh = [
                owner
                for owner, entry in entries.items()
                if owner not in members and self._values.get(owner) != entry.value
            ]
            for owner in random.sample(fresh, max(0, len(fresh) - SIGNATURES)):
                del records[owner], entries[owner]
        return all(map(self.validate, entries.values()))

    def read(self, owner: str, value: bytes) -> PeerRecord:
        """The newest record of ``owner``, of which ``value`` was accepted; raises RemoteError when it is none."""
        if self._values.get(owner) == msgpack.packb(value):
            return self._seen[owner]
        return self._newest(decode_record(value, source=owner[:64], checked=True))

    def _check(self, record: DHTRecord) -> PeerRecord:
        if record.key != self._key or len(record.value) > RECORD_LIMIT + _WRAPPING_BYTES or len(record.subkey) > 128:
            raise ValueError("not a peer record of this run, or too large")
        # Lists in lists that only declare their lengths would have megabytes set aside.
        owner, value = (msgpack.unpackb(each, max_array_len=0) for each in (record.subkey, record.value))
        if not isinstance(owner, str) or not isinstance(value, bytes):
            raise ValueError("not a peer record")
        known = self._values.get(owner) == record.value
        found = self._seen[owner] if known else decode_record(value, source=owner[:64])
        if found.peer != owner or found.run != self._run:
            raise RemoteError(owner[:64], "record belongs to another peer or run")
        # A record prolonged by somebody else would outlive its successor, since hivemind keeps what expires last.
        if expiration_of(found) != record.expiration_time:
            raise RemoteError(owner, "record's expiry was changed")
        if found.expires > self._clock() + self._lifetime_s + CLOCK_LIMIT_S:
            raise RemoteError(owner, "record is valid for too long")
        last = self._seen.get(owner)
        # A node that missed an update hands out one old record among many good ones: `peers` sorts that out.
        if last is not None and found.sequence < last.sequence and not reading.get():
            raise RemoteError(owner, "record is older than one seen before")
        return found

    def owners(self, now: float = 0.0) -> list[str]:
        """Peers whose records are held, and have not expired by ``now``, unix seconds."""
        return [peer for peer, record in self._seen.items() if record.expires > now]

    @property
    def size(self) -> int:
        """How many records are held, expired ones included."""
        return len(self._seen)

    @property
    def refused(self) -> int:
        """How many good records found no room, or gave way."""
        return self.records.refused + self.bytes.refused

    def gauges(self) -> list[Gauge]:
        """The records held, in number and bytes."""
        self.records.in_use, self.bytes.in_use = len(self._seen), self._bytes
        return [self.records, self.bytes]

    def _remember(self, record: PeerRecord, value: bytes) -> bool:
        """Keep the newest of each owner; False when there is no room for this one."""
        last = self._seen.get(record.peer)
        stays = last is not None and last.sequence >= record.sequence
        fits, gone = (True, []) if stays else self._make_room_for(record, len(value))
        if fits and not stays:
            self._forget(record.peer)
            self._seen[record.peer], self._values[record.peer] = record, value
            self._bytes += len(value)
        if not reading.get() and (fits or gone):
            self._on_store(gone[0] if gone else None)
            for peer in gone[1:]:
                self._on_store(peer)
        return fits

    def _make_room_for(self, record: PeerRecord, size: int) -> tuple[bool, list[str]]:
        """Forget others until ``record`` fits: whether it does, and whose records gave way."""
        gone: list[str] = []
        if self._fits(record, size):
            return True, gone
        now = self._clock()
        for peer in [peer for peer, seen in self._seen.items() if seen.expires <= now]:
            self._forget(peer)
        members = self._members()
        while not self._fits(record, size):
            full = self.records if len(self._seen) >= RECORDS else self.bytes
            others = (peer for peer in self._seen if peer not in members and peer != record.peer)
            gives_way = None if reading.get() else next(others, None)
            if gives_way is None:
                full.refused += not (reading.get() or record.peer in members)
                return record.peer in members, gone
            full.refused += 1
            self._forget(gives_way)
            gone.append(gives_way)
        return True, gone

    def _fits(self, record: PeerRecord, size: int) -> bool:
        new, before = record.peer not in self._seen, len(self._values.get(record.peer, b""))
        return len(self._seen) + new <= RECORDS and self._bytes + size - before <= RECORD_BYTES

    def _forget(self, peer: str) -> None:
        if self._seen.pop(peer, None) is not None:
            self._bytes -= len(self._values.pop(peer))

    def _newest(self, record: PeerRecord) -> PeerRecord:
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
        if len(timed.expiration_heap) > 2 * len(timed.data) + RECORDS:
            timed.expiration_heap = list(timed.key_to_heap.values())
            heapq.heapify(timed.expiration_heap)
