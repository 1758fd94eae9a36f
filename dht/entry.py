"""A directory node for any run, as a lighthouse has one: it keeps the records of peers it knows nothing else of."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgpack
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import RecordValidatorBase

from protocols.errors import LocalError, RemoteError

from .directory import DirectoryTiming
from .limits import RUNS, Gauge
from .node import Node
from .records import PeerRecord, decode_record, encode_record, expiration_of, key_of, next_sequence
from .seeds import Seed, Seeds
from .tasks import end, keep_going
from .validator import RecordValidator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hivemind.dht.validation import DHTRecord

    from protocols.ids import PeerId

    from .transport import StreamTransport

log = logging.getLogger(__name__)

TELL_S = 0.5
"""Between two looks for runs that do not know of the heralds yet."""


class RunsValidator(RecordValidatorBase):  # type: ignore[misc]
    """A ``RecordValidator`` for each of at most ``RUNS`` runs; one that expired, or has fewest records, gives way.

    So invented runs of one peer each push out no run of several. With ``named`` runs no other is served, and none
    gives way. What a stranger's new run costs to refuse is two signatures, which the guard has paced.
    """

    def __init__(
        self,
        lifetime_s: float,
        clock: Callable[[], float] = time.time,
        *,
        named: Iterable[bytes] = (),
        on_gone: Callable[[bytes, str | None], None] = lambda _run, _peer: None,
    ) -> None:
        """``on_gone(run, peer)``: this record gives way to another; peer None: look after the run's store anyway."""
        self._lifetime_s, self._clock, self._on_gone = lifetime_s, clock, on_gone
        self._runs: dict[bytes, RecordValidator] = {}  # by directory key; what was renewed last comes last
        self._ids: dict[bytes, bytes] = {}
        self._expire: dict[bytes, float] = {}
        """When the record of each that was renewed last expires, unix seconds."""
        self._named = tuple(named)
        self.runs = Gauge("runs", len(self._named) or RUNS, "runs found no room or gave way to others", None)
        for run in self._named:
            self._begin(run)

    def validate(self, record: DHTRecord) -> bool:
        """hivemind asks this for every value that it is told to store."""
        validator = self._runs.get(record.key)
        if validator is None:
            return self._newcomer(record)
        if not validator.validate(record):
            return False
        self._runs[record.key] = self._runs.pop(record.key)  # the run renewed last comes last
        self._expire[record.key] = record.expiration_time
        return True

    def screen(self, key: bytes, records: Any) -> bool:
        """hivemind asks this for a dictionary of records that another node answered with."""
        validator = self._runs.get(key)
        return validator is not None and validator.screen(key, records)

    def served(self, without: frozenset[str] = frozenset()) -> list[bytes]:
        """Ids of the runs of which there is a record that has not expired, of others than ``without``."""
        now = self._clock()
        return [self._ids[key] for key, each in self._runs.items() if any(set(each.owners(now)) - without)]

    def peers(self) -> frozenset[str]:
        """Peers of all runs whose records have not expired."""
        now = self._clock()
        return frozenset(peer for each in self._runs.values() for peer in each.owners(now))

    def gauges(self) -> list[Gauge]:
        """Runs in number, and records in number and bytes over all of them."""
        self.runs.in_use = len(self.served())
        total: list[Gauge] = [self.runs]
        for position in (0, 1):
            each = [validator.gauges()[position] for validator in self._runs.values()]
            if each:
                total.append(replace(each[0], in_use=sum(gauge.in_use or 0 for gauge in each)))
        return total

    def _newcomer(self, record: DHTRecord) -> bool:
        """Begin with the run of this record, if it is a good one; another may have to give way."""
        if self._named:
            return False
        try:
            value = msgpack.unpackb(record.value, max_array_len=0)
            if not isinstance(value, bytes):
                return False
            run = decode_record(value, source="a stranger").run
        except (RemoteError, ValueError, TypeError, msgpack.UnpackException) as error:
            log.debug("refused a directory record: %s", error)
            return False
        if DHTID.generate(source=key_of(run)).to_bytes() != record.key:
            return False
        if not self._begin(run).validate(record):
            self._end(record.key)
            return False
        self._expire[record.key] = record.expiration_time
        if len(self._runs) > RUNS:
            self.runs.refused += 1
            self._end(min((key for key in self._runs if key != record.key), key=self._worth))
        return True

    def _worth(self, key: bytes) -> int:
        return self._runs[key].size if self._expire.get(key, 0.0) > self._clock() else 0

    def _end(self, key: bytes) -> None:
        run, gone = self._ids.pop(key), self._runs.pop(key)
        self._expire.pop(key, None)
        for peer in gone.owners():
            self._on_gone(run, peer)

    def _begin(self, run: bytes) -> RecordValidator:
        key = DHTID.generate(source=key_of(run)).to_bytes()

        def on_store(peer: str | None) -> None:
            self._on_gone(run, peer)

        validator = RecordValidator(run, self._lifetime_s, self._clock, on_store=on_store)
        self._runs[key], self._ids[key] = validator, run
        return validator


@dataclass(frozen=True, slots=True)
class Herald:
    """A peer that the entry node makes known in every run it serves: a lighthouse, or its relay."""

    peer: PeerId
    addresses: tuple[str, ...]
    role: str
    sign: Callable[[bytes], bytes]


class EntryNode:
    """The node, its seeds (other lighthouses), and the heralds' records. Network trouble shows and never ends it."""

    def __init__(
        self,
        transport: StreamTransport,
        version: str,
        *,
        named: Iterable[bytes] = (),
        timing: DirectoryTiming | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._timing, self._clock, self._version = timing or DirectoryTiming(), clock, version
        self.validator = RunsValidator(self._timing.lifetime_s, clock, named=named, on_gone=self._make_room)
        self._node = Node(
            transport,
            self.validator,
            request_s=self._timing.request_s,
            search_s=self._timing.search_s,
            clock=clock,
        )
        self._heralds: tuple[Herald, ...] = ()
        self._told: dict[tuple[bytes, str], float] = {}
        self._sequence = 0
        self._seeds: Seeds | None = None
        self._teller: asyncio.Task[None] | None = None

    async def start(self, seeds: Sequence[str] = ()) -> None:
        """Start the node and try the seeds in the background. Raises ConfigError, TransportError (own p2pd)."""
        await self._node.create()
        self._seeds = Seeds(seeds, self._enter, timing=self._timing.seeds)
        self._teller = keep_going(self._tell, "heralds")

    async def rebind(self) -> None:
        """After the transport's ``rebind``: a new node on the new p2pd, the same seeds and heralds."""
        await self._node.create()
        self._told.clear()
        if self._seeds is not None:
            self._seeds.retry()

    async def close(self, *, works: bool = True) -> None:
        """End all tasks and the node; ``works``: whether there is a p2pd that answers."""
        if self._seeds is not None:
            await self._seeds.close()
        if self._teller is not None:
            await end([self._teller])
        await self._node.end(works=works)

    def seeds(self) -> list[Seed]:
        """The other lighthouses, and how they fare."""
        return self._seeds.states() if self._seeds is not None else []

    def make_known(self, heralds: Iterable[Herald]) -> None:
        """Tell of these from now on, and of no others."""
        self._heralds = tuple(heralds)
        self._told.clear()

    def _make_room(self, run: bytes, peer: str | None) -> None:
        self._node.forget(key_of(run), peer)

    async def _enter(self, peer: PeerId, address: str) -> None:
        await self._node.enter(peer, address)

    async def _tell(self) -> None:
        """Keep the heralds' records fresh in each run, and in a new one at once."""
        while True:
            now = self._clock()
            due = [
                (run, herald)
                for run in self.validator.served(frozenset(each.peer for each in self._heralds))
                for herald in self._heralds
                if self._told.get((run, herald.peer), 0.0) <= now
            ]
            self._told |= {(run, herald.peer): now + self._timing.refresh_s for run, herald in due}
            await asyncio.gather(*(self._issue(run, herald) for run, herald in due))  # not one after another: nodes die
            self._told = {key: at for key, at in self._told.items() if at > now}
            await asyncio.sleep(TELL_S)

    async def _issue(self, run: bytes, herald: Herald) -> None:
        now = self._clock()
        self._sequence = next_sequence(self._sequence, int(now * 1000))
        record = PeerRecord(
            run=run,
            peer=herald.peer,
            addresses=herald.addresses,
            roles=(herald.role,),
            version=self._version,
            head_round=0,
            sequence=self._sequence,
            expires=int(now) + self._timing.lifetime_s,
        )
        try:
            value = encode_record(record, herald.sign)
        except LocalError as error:
            log.warning("%s is not made known: %s", herald.peer, error)
            return
        await self._node.search(lambda node: node.store(key_of(run), value, expiration_of(record), subkey=record.peer))
