"""Finding the peers of a run: signed records in hivemind's DHT, a node of which runs in our event loop.

Answers are hints: every record is checked against its owner's signature, and nothing here decides anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from protocols.errors import LocalError, RemoteError

from .node import Node
from .records import CLOCK_LIMIT_S, PeerRecord, encode_record, expiration_of, key_of, next_sequence
from .seeds import Seed, Seeds, SeedTiming
from .tasks import end, keep_going
from .validator import RecordValidator, reading

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from protocols.ids import PeerId

    from .limits import Gauge
    from .transport import StreamTransport

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DirectoryTiming:
    """Pauses and deadlines, seconds."""

    lifetime_s: int = 120
    """A record expires so long after its issue; also the most that we accept from others, plus the clocks' slack.

    So long a key stays taken when its machine dies without a word (``lease``)."""
    refresh_s: float = 40.0
    retry_s: float = 5.0
    """Before the next attempt to store a record that nobody took."""
    request_s: float = 3.0
    """For one request to one node."""
    search_s: float = 20.0
    """For one look-up or store in all."""
    seeds: SeedTiming = SeedTiming()


class Directory:
    """This peer's node of the DHT. Network trouble shows in ``seeds`` and in empty answers, never as an exit."""

    def __init__(
        self,
        transport: StreamTransport,
        run: bytes,
        sign: Callable[[bytes], bytes],
        *,
        timing: DirectoryTiming | None = None,
        clock: Callable[[], float] = time.time,
        members: Callable[[], frozenset[PeerId]] = frozenset,
    ) -> None:
        """``sign`` makes this peer's Ed25519 signature; ``clock`` gives unix seconds.

        ``members`` tells whose records never give way to others'.
        """
        self._transport = transport
        self._run = run
        self._sign = sign
        self._timing = timing or DirectoryTiming()
        self._clock = clock
        lifetime_s = self._timing.lifetime_s
        self._validator = RecordValidator(run, lifetime_s, clock, members=members, on_store=self._make_room)
        self._node = Node(
            transport,
            self._validator,
            request_s=self._timing.request_s,
            search_s=self._timing.search_s,
            clock=clock,
        )
        self._seeds: Seeds | None = None
        self._record: PeerRecord | None = None
        self._sequence, self._expires = 0, 0
        self._changed, self._binding = asyncio.Event(), asyncio.Lock()
        self._refresher: asyncio.Task[None] | None = None

    async def start(self, initial_peers: Sequence[str], *, client: bool = False) -> None:
        """Start the node and try the seeds in the background. Raises ConfigError, TransportError (own p2pd).

        A ``client`` only asks: it serves and stores nothing.
        """
        self._node.client = client
        await self._node.create()
        self._seeds = Seeds(initial_peers, self._enter, timing=self._timing.seeds)
        self._refresher = keep_going(self._refresh, "directory refresh")

    async def rebind(self) -> None:
        """After the transport's ``rebind``: a new node on the new p2pd, the same seeds and record."""
        if self._refresher is None:
            return
        async with self._binding:
            await self._node.create()
        if self._seeds is not None:
            self._seeds.retry()
        self._changed.set()

    async def withdraw(self, head_round: int, *, told: bool = True) -> None:
        """Renew this peer's record no more; ``told``: its last one says that the peer has left, and at which round."""
        record, self._record = self._record, None
        if told and record is not None and self._node.runs:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.request_s):
                    await self._issue(replace(record, left=True, head_round=head_round))

    async def close(self, *, works: bool = True) -> None:
        """End all tasks and the node; ``works``: whether there is a p2pd that answers, which is told."""
        if self._seeds is not None:
            await self._seeds.close()
        if self._refresher is not None:
            await end([self._refresher])
            self._refresher = None
        await self._node.end(works=works)

    @property
    def runs(self) -> bool:
        """Whether there is a node, or one is just being begun."""
        return self._node.runs or self._binding.locked()

    @property
    def client(self) -> bool:
        """Whether it only asks, and serves and stores nothing; what is set holds from the next ``rebind`` on."""
        return self._node.client

    @client.setter
    def client(self, client: bool) -> None:
        self._node.client = client

    def seeds(self) -> list[Seed]:
        """Entry addresses and how they fare."""
        return self._seeds.states() if self._seeds is not None else []

    @property
    def refused(self) -> int:
        """How many records of others found no room in this node."""
        return self._validator.refused

    def gauges(self) -> list[Gauge]:
        """What others make this node hold."""
        return self._validator.gauges()

    def announce(self, record: PeerRecord) -> None:
        """Keep this peer's record in the directory from now on; its sequence and expiry are set at each issue.

        Raises LocalError at once when the record is too large, malformed or not this peer's.
        """
        if record.peer != self._transport.peer or record.run != self._run:
            raise LocalError("a peer announces only its own record, in its own run")
        encode_record(record, self._sign)
        self._record = record
        self._changed.set()

    async def tell(self, record: PeerRecord, sign: Callable[[bytes], bytes]) -> bool:
        """Store this record once, which may be a helper's with a key of its own; whether a node took it.

        Raises LocalError when it is too large or malformed.
        """
        value = encode_record(record, sign)
        key, owner = key_of(self._run), record.peer
        stored = await self._node.search(lambda node: node.store(key, value, expiration_of(record), subkey=owner))
        return bool(stored)

    async def meet(self, peer: PeerId, address: str) -> None:
        """Get to know another's node, which is no seed; raises TransportError."""
        await self._enter(peer, address)

    def outbid(self, record: PeerRecord) -> None:
        """Somebody else issued this newer record of this very peer: issue a newer one."""
        self._sequence, self._expires = max(self._sequence, record.sequence), max(self._expires, record.expires + 1)
        self._changed.set()

    async def peers(self) -> list[PeerRecord]:
        """``records`` of peers that have not left, by peer id."""
        return [record for record in await self.records() if not record.left]

    async def records(self) -> list[PeerRecord]:
        """The unexpired records of all peers of the run that can be found now, this one's included, by peer id."""
        token = reading.set(True)
        try:
            answer = await self._node.search(lambda node: node.get(key_of(self._run), latest=True))
        finally:
            reading.reset(token)
        entries = answer.value if answer is not None and isinstance(answer.value, dict) else {}
        found = {}
        for owner, entry in entries.items():
            try:  # what lies in our own store was checked when it came; what came over the wire, on arrival
                record = self._validator.read(owner, entry.value)
            except (RemoteError, TypeError) as error:
                log.debug("ignored a directory record: %s", error)
                continue
            found[record.peer] = record
        now = self._clock()
        return [found[peer] for peer in sorted(found) if found[peer].expires > now]

    def _make_room(self, peer: str | None) -> None:
        self._node.forget(key_of(self._run), peer)

    async def _refresh(self) -> None:
        while True:
            self._changed.clear()
            stored = self._record is None or await self._issue(self._record)
            pause = self._timing.refresh_s if stored else self._timing.retry_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._changed.wait()

    async def _issue(self, record: PeerRecord) -> bool:
        now = self._clock()
        self._sequence = next_sequence(self._sequence, int(now * 1000))
        most = int(now) + self._timing.lifetime_s
        expires = max(most, min(self._expires, most + int(CLOCK_LIMIT_S) - 1))  # nobody takes one valid for too long
        issued = replace(record, sequence=self._sequence, expires=expires)
        return await self.tell(issued, self._sign)

    async def _enter(self, peer: PeerId, address: str) -> None:
        if await self._node.enter(peer, address):
            self._changed.set()  # our record belongs on the nodes just met
