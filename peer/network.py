"""The daemon's way to other peers: p2pd, streams and directory started in order, and who to connect to."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING

from dht.addresses import best_addresses
from dht.directory import Directory
from dht.listening import claim_port, is_confined
from dht.p2pd import P2pd, P2pdConfig
from dht.records import PeerRecord
from dht.relay_choice import drawn, family_of, host_of, relay_address
from dht.relay_watch import RelayWatch
from dht.rtt import RoundTrips
from dht.tasks import end, keep_going
from dht.transport import StreamTransport, TransportConfig
from protocols.errors import EnvironmentFault, MurmurError
from protocols.ids import PeerId, short
from protocols.invitation import MAX_ADDRESSES, split

from .address_book import AddressBook
from .dialling import HELPERS, takes_part, whom_to_dial
from .key_lease import KeyLease, leave
from .meetings import Memory
from .nearby import Nearby
from .network_news import NetworkNews
from .peers import Line, Record
from .reaching import Reaching, Surroundings
from .refusals import Refusals
from .serving import Serving
from .volunteering import Volunteering, volunteer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dht.seeds import Seed

    from .identity import Identity
    from .options import UpOptions
    from .paths import Home
    from .reporter import Reporter
    from .session import Session

log = logging.getLogger(__name__)

LOOK_S = (1.0, 15.0)
"""First and longest pause between looks into the directory; back to the first when neighbours change."""
SHOW_S = 1.0
ANNOUNCE_S = 60.0
"""A new head goes into the directory at most this often."""
TRIED = 16
"""Saved addresses that are tried beside the seeds."""


class Network:
    """Owns p2pd, transport and directory. Network trouble shows in the status and never ends the daemon.

    It is started before there is anything to train: until ``attach`` it finds peers and fetches from them, and no
    round's stream is opened either way, so that nobody waits for a peer that cannot take part yet.
    """

    def __init__(  # noqa: PLR0913 - who counts and who is let in come by name
        self,
        options: UpOptions,
        home: Home,
        run: bytes,
        identity: Identity,
        reporter: Reporter,
        *,
        members: Callable[[], frozenset[PeerId]] = frozenset,
        admits: Callable[[PeerId], bool] = lambda _: True,
    ) -> None:
        """``members`` tells who belongs to the run now: they come first, and strangers never keep them out.

        ``admits``: whether the run lets a peer take part at all.
        """
        self._members, self._admits = members, admits
        self._options, self._run, self._reporter = options, run, reporter
        self._own = PeerId(identity.peer)
        self.book = AddressBook(home.addresses(run))
        port = options.p2p_port or _same_port(options.listen, self.book.port)
        self._p2pd = P2pd(P2pdConfig(home.root, home.key, port, options.listen), self._restarted)
        self._session: Session | None = None
        self._neighbours_changed = asyncio.Event()
        config = TransportConfig(run, f"murmuration {version('murmuration')}")
        self.transport = StreamTransport(
            config, self._on_frame, on_neighbours=self._on_neighbours, members=members, admits=admits
        )
        self._trips = RoundTrips(lambda: self.transport.control, self.transport.neighbours, self.transport.routes.ways)
        self._directory = Directory(self.transport, run, identity.sign, members=members)
        self._nearby = Nearby(options, run, self._own, self._p2pd, self._directory, admits)
        self.lease = KeyLease(home.root, PeerId(identity.peer), reporter)
        self._tasks: list[asyncio.Task[None]] = []
        self._records: dict[PeerId, PeerRecord] = {}
        self._helpers: dict[PeerId, PeerRecord] = {}
        self._restarts, self._salt = 0, secrets.token_bytes(16)
        around = Surroundings(
            self._observers,
            self._relays,
            self._published,
            self._stand,
            self._expects,
            self._addresses,
            self._lighthouses,
            near=self._nearby.address,
            outside=self._nearby.outside,
        )
        self._reaching = Reaching(self._own, self._p2pd, self.transport, reporter, around, is_confined(options.listen))
        self._relay_watch = RelayWatch(self.transport, lambda: self._p2pd.relays)
        self._serving = Serving(self._directory, lambda: self._reaching.plan, lambda: bool(self._p2pd.relays))
        self._roles: tuple[str, ...] = ("contributor",)
        self._announced: int | None = None
        self._due = 0.0
        self._memory, self._news = Memory(self.book), NetworkNews(reporter)
        self.refusals = Refusals(reporter, self.transport.gauges, self._directory.gauges)
        self._volunteering: Volunteering | None = None
        if options.relay:
            ours = volunteer(options, home)
            self._volunteering = Volunteering(
                *ours, run, self._directory, lambda: self._reaching.plan, self._of_the_run, reporter
            )
            self.refusals.watch(self._volunteering.gauges)

    async def start(self, seeds: Sequence[str] = (), invitation: str = "") -> None:
        """Start everything, and try ``seeds`` and whom this home has met before; ``invitation`` is kept for next time.

        Waits first while another machine runs with this key. Raises EnvironmentFault (port, p2pd), ConfigError
        (addresses).
        """
        known = dict.fromkeys((*seeds, *self.book.addresses(TRIED)))
        addresses = [each for each in known if split(each)[1] != self._own]
        await self.lease.acquire(addresses, self._run)
        await self._p2pd.start()
        self.book.port, self.book.invitation = self._p2pd.port, invitation or self.book.invitation
        await self.transport.start(self._p2pd.control, in_rounds=False)
        await self._reaching.start()
        await self._directory.start(addresses, client=self.lease.entered and not self._reaching.confined)
        self._nearby.start()
        self._announce()
        self._tasks = self._begin_tasks()

    async def attach(self, session: Session) -> None:
        """Take part in the rounds from now on: frames go to ``session``, and others may find this peer.

        Where the key was free a moment ago this waits until nobody else has taken it as well.
        """
        await self.lease.settle()
        self._session = session
        session.stand(direct=self._reaching.stands)
        await self.transport.enter_rounds()
        self._announce()
        await self._end_tasks()  # to look for peers anew, at once
        self._tasks = self._begin_tasks()

    def serves(self, role: str) -> None:
        """Tell in the directory that this peer does one thing more."""
        if role not in self._roles:
            self._roles = (*self._roles, role)
            self._announced, self._due = None, 0.0

    def providers(self, role: str) -> dict[PeerId, tuple[str, ...]]:
        """Who may have what ``role`` serves, with addresses: neighbours, those that say so, and seeds."""
        found: dict[PeerId, tuple[str, ...]] = dict.fromkeys(sorted(self.transport.neighbours()), ())
        for peer, record in self._records.items():
            if peer in found or role in record.roles:
                found[peer] = record.addresses
        for seed in self._directory.seeds():
            each = PeerId(seed.address.rpartition("/p2p/")[2])
            if seed.state == "ok" and not found.get(each):
                found[each] = (seed.address,)
        return {peer: addresses for peer, addresses in found.items() if self._admits(peer)}

    def known(self) -> dict[PeerId, Record]:
        """What the directory says of peers of the run."""
        return {peer: Record(each.version, each.head_round, each.addresses) for peer, each in self._records.items()}

    def lines(self) -> dict[PeerId, Line]:
        """How each neighbour is connected, and what has crossed."""
        ways, traffic = self.transport.routes.ways(), self.transport.traffic().peers
        found = {}
        for peer in self.transport.neighbours():
            way, crossed = ways.get(peer), (*traffic.get(peer, (None, None)), self._trips.of(peer))
            found[peer] = Line(way.kind, way.transport, *crossed) if way else Line("direct", None, *crossed)
        return found

    def seeds(self) -> list[Seed]:
        """The addresses that are tried, and how they fare."""
        return self._directory.seeds()

    @property
    def found(self) -> bool:
        """Whether anybody of the run has answered."""
        return bool(self._records or self.transport.neighbours()) or any(
            seed.state == "ok" for seed in self._directory.seeds()
        )

    def meeting_points(self) -> tuple[str, ...]:
        """Addresses for an invitation: this peer's best two, and the best of members that are connected."""
        known = dict.fromkeys((*self._reaching.addresses, *self.transport.addresses()))
        own = self._nearby.tellable(each for each in known if "/tcp/" in each)[:2]
        near = self.transport.neighbours() & self._members()
        others = [best_addresses(self._records[peer].addresses, 1) for peer in sorted(near) if peer in self._records]
        return tuple(each for each in (*own, *(one for best in others for one in best)) if _fits(each))[:MAX_ADDRESSES]

    async def close(self) -> None:
        """End everything in reverse order. Safe to call twice."""
        await self._end_tasks()
        if self._volunteering is not None:
            await self._volunteering.close()
        await self._nearby.close()
        await self._reaching.close()
        await self._memory.keep(self._near(), self._members(), now=True)
        async with AsyncExitStack() as stack:  # each step is taken whatever the one before it did
            stack.push_async_callback(self._p2pd.stop)
            stack.push_async_callback(self.transport.close)
            works = await self._p2pd.retire()  # p2pd ends with its last client, and that is no crash any more
            stack.push_async_callback(self._directory.close, works=works)
            stack.push_async_callback(leave, self._directory, self._head_round(), told=works and not self.lease.lost)

    def _begin_tasks(self) -> list[asyncio.Task[None]]:
        return [
            keep_going(self._look, "look for peers"),
            keep_going(self._reaching.run, "reachability"),
            keep_going(self._relay_watch.run, "heartbeat of relays"),
            keep_going(self._show, "network status"),
            keep_going(self._trips.run, "round-trip times"),
            *([keep_going(self._volunteering.run, "relay")] if self._volunteering is not None else []),
        ]

    async def _end_tasks(self) -> None:
        await end(self._tasks)

    def traffic(self) -> tuple[int, int]:
        """Bytes (sent, received) since the start."""
        traffic = self.transport.traffic()
        return traffic.sent, traffic.received

    async def _on_frame(self, sender: PeerId, kind: str, payload: bytes) -> None:
        if self._session is not None:
            await self._session.on_frame(sender, kind, payload)

    def _on_neighbours(self, neighbours: frozenset[PeerId]) -> None:
        self._neighbours_changed.set()
        self._reaching.wake()
        if self._session is not None:
            self._session.on_neighbours(neighbours)

    async def _restarted(self, control: str) -> None:
        """p2pd died and was started again: everything that lived in it is set up anew."""
        if self._p2pd.restarts > self._restarts:
            remedy = "nothing: connections come back by themselves"
            self._reporter.warn("p2pd", "p2pd died and was started again", remedy)
        self._restarts = self._p2pd.restarts
        await self.transport.rebind(control)
        self._directory.client = self._serving.only_asks()  # what is stored behind a NAT gets lost
        await self._directory.rebind()
        self._announce()

    def _published(self) -> None:
        self._announce()
        self._neighbours_changed.set()  # others that have waited for a relay are just as soon there

    def _announce(self) -> None:
        head = self._announced = self._head_round()
        self._due = time.monotonic() + ANNOUNCE_S
        addresses, roles = self._reaching.addresses, self._roles
        if self._session is None:  # nobody shall come yet: only the key is claimed
            addresses = roles = ()
        record = PeerRecord(self._run, self.transport.peer, addresses, roles, version("murmuration"), head, 0, 0)
        self._directory.announce(self.lease.stamp(record))

    def _observers(self) -> list[PeerId]:
        """Who can tell how it sees this peer: seeds, then members, then who calls itself a lighthouse, then others."""
        seeds = [PeerId(split(seed.address)[1]) for seed in self._directory.seeds() if seed.state == "ok"]
        near = sorted(self.transport.neighbours())
        others = (*near, *sorted(self.transport.routes.ways()))  # a seed that publishes nothing yet has no neighbour
        return list(dict.fromkeys((*seeds, *(self._members() & set(near)), *self._helpers, *others)))

    def _relays(self) -> tuple[str, ...]:
        """First those beside a seed: the person has chosen it, and a name in the directory costs nothing."""
        each = ((peer, record) for peer, record in self._helpers.items() if "relay" in record.roles)
        near = {host_of(seed.address) for seed in self.seeds() if seed.state == "ok"}
        by = "".join(map(family_of, near))
        relays = {peer: found for peer, record in each if (found := relay_address(record.addresses, peer, near, by))}
        return drawn(relays, self._salt, near)

    def _lighthouses(self) -> frozenset[PeerId]:
        return frozenset(peer for peer, record in self._helpers.items() if "lighthouse" in record.roles)

    def _of_the_run(self) -> frozenset[str]:
        """Whom a relay of this peer's serves."""
        near = self.transport.neighbours()
        return frozenset(each for each in (*self._members(), *self._records, *near) if self._admits(PeerId(each)))

    def _expects(self) -> bool:
        return bool(self._directory.seeds() or self._members() - {self._own})

    def _addresses(self, peer: PeerId) -> tuple[str, ...]:
        record = self._records.get(peer)
        return record.addresses if record is not None else ()

    def _stand(self, direct: bool) -> None:
        if self._session is not None:
            self._session.stand(direct=direct)

    async def _look(self) -> None:
        """Connect to the members that the directory knows, and to some others; less often while nothing changes."""
        pause, draw = LOOK_S[0], random.Random()
        while True:
            asked = self.found
            records = await self._directory.records()
            if asked:
                self.lease.look(records, self._directory)
            records = [each for each in records if not each.left]
            found = [each for each in records if each.peer != self.transport.peer and self._admits(PeerId(each.peer))]
            self._helpers = {PeerId(each.peer): each for each in found if HELPERS & set(each.roles)}
            found = [each for each in found if takes_part(each)]
            self._records = {PeerId(each.peer): each for each in found}
            found = self._nearby.join(found)
            for record in found:
                self.transport.learn(PeerId(record.peer), record.addresses)
            if self._session is not None:
                members, others = whom_to_dial(found, self.transport.neighbours(), self._members(), draw=draw)
                await asyncio.gather(
                    *(self._connect(record, keep=True) for record in members),
                    *(self._connect(record, keep=False) for record in others),
                )
            self._neighbours_changed.clear()
            try:
                async with asyncio.timeout(pause):
                    await self._neighbours_changed.wait()
                pause = LOOK_S[0]
                await asyncio.sleep(pause)
            except TimeoutError:
                pause = min(2 * pause, LOOK_S[1])

    async def _connect(self, record: PeerRecord, *, keep: bool) -> None:
        try:
            await self.transport.connect(PeerId(record.peer), record.addresses, keep=keep)
            log.info("connected to %s", short(record.peer))
        except MurmurError as error:
            log.info("cannot reach %s yet: %s", short(record.peer), error)

    async def _show(self) -> None:
        """Bring the network's figures into the status document."""
        while True:
            if self._head_round() != self._announced and time.monotonic() >= self._due:
                self._announce()
            self.lease.beat(heard=bool(self.transport.neighbours()))
            self._news.tell([line.kind for line in self.lines().values()], self.traffic(), self._p2pd)
            if self._news.tell_seeds(self._directory.seeds()):
                self._neighbours_changed.set()  # it may know others
                self._reaching.wake()
            await self._serving.follow()
            self.refusals.tell()
            await self._memory.keep(self._near(), self._members())
            await asyncio.sleep(SHOW_S)

    def _near(self) -> list[PeerRecord]:
        near = self.transport.neighbours()
        return [record for peer in near if (record := self._records.get(peer)) is not None]

    def _head_round(self) -> int:
        return self._reporter.status.round.last_sealed or 0


def _fits(address: str) -> bool:
    """Whether an invitation can name it."""
    try:
        split(address)
    except ValueError:
        return False
    return True


def _same_port(host: str, port: int) -> int:
    """The port of the last start if it is free, else 0: others have written it down."""
    try:
        return claim_port(host, port) if port else 0
    except EnvironmentFault:
        return 0
