"""``--relay``: a relay for the peers of this run, beside a daemon that others can dial, while they can.

Nobody can be asked to prove the relay's port: observers dial back only whoever asks them, under its own key. So it is
made known where this peer was proven at an address of this very machine, and never behind a router's mapping.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol

import psutil

from dht.addresses import told
from dht.directory import DirectoryTiming
from dht.limits import Gauge
from dht.listening import at, claim_port, hosts_of
from dht.records import PeerRecord, next_sequence
from dht.relay_choice import host_of
from dht.relay_limits import RelayLimits
from dht.relay_process import RelayConfig, RelayProcess
from protocols.errors import MurmurError

from .identity import Identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from dht.reachability import Plan
    from dht.relay_process import RelayFigures

    from .options import UpOptions
    from .paths import Home
    from .reporter import Reporter

log = logging.getLogger(__name__)

LOOK_S = 1.0
AGAIN_S = 30.0
"""Before the next attempt to start a relay that does not start."""
LEAVE_S = 3.0
"""For the directory to take it that the relay is gone."""
TIMING = DirectoryTiming()


def offered(plan: Plan, interfaces: frozenset[str], port: int, peer: str) -> tuple[str, ...]:
    """Where the relay ``peer`` at ``port`` can be reached, as far as that is known; none: it has no use. Pure.

    ``interfaces``: IP addresses of this machine.
    """
    if plan.rung != "public":
        return ()
    hosts = dict.fromkeys(host_of(each) for each in plan.publish if each.split("/")[2] in interfaces)
    return told(f"{host}/tcp/{port}/p2p/{peer}" for host in hosts)


class Relay(Protocol):
    """What is used of a ``RelayProcess``."""

    figures: RelayFigures

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        ...

    async def start(self) -> None:
        """Raises EnvironmentFault."""
        ...

    async def stop(self) -> None:
        """Ends it for certain."""
        ...

    def allow(self, peers: frozenset[str] | None) -> None:
        """Only these may reserve."""
        ...


class Board(Protocol):
    """What is used of a ``Directory``."""

    async def tell(self, record: PeerRecord, sign: Callable[[bytes], bytes]) -> bool:
        """Store a record that another key than the node's signs."""
        ...


@dataclass
class Volunteering:
    """Starts, announces, withdraws and ends the relay as this peer's reach is found out; ``run`` is its task."""

    relay: Relay
    key: Identity
    port: int
    limits: RelayLimits
    run_id: bytes
    board: Board
    plan: Callable[[], Plan]
    """The ladder's latest."""
    known: Callable[[], frozenset[str]]
    """Peers of the run: nobody else may reserve."""
    reporter: Reporter
    interfaces: Callable[[], frozenset[str]] = field(default_factory=lambda: own_ips)

    def __post_init__(self) -> None:
        self._is_open, self._told = False, tuple[str, ...]()
        self._allowed: frozenset[str] | None = None
        self._due = self._again = 0.0
        self._sequence = 0

    async def run(self) -> None:
        """Follow the ladder, for ever."""
        while True:
            await self.follow(time.monotonic())
            await asyncio.sleep(LOOK_S)

    async def follow(self, now: float) -> None:
        """Bring the relay and its record to where the ladder stands ``now``, monotonic seconds."""
        addresses = offered(self.plan(), self.interfaces(), self.port, self.key.peer)
        if not addresses:
            await self.close()
            return
        if not self._is_open and now >= self._again:
            await self._open(now)
        if not self._is_open:
            return
        if (known := self.known()) != self._allowed:
            self._allowed = known
            self.relay.allow(known)
        if self.relay.pid is not None and (now >= self._due or addresses != self._told):
            stored = await self._tell(addresses)
            self._told, self._due = addresses, now + (TIMING.refresh_s if stored else TIMING.retry_s)

    async def close(self) -> None:
        """Withdraw the record and end the process. Safe to call twice."""
        if not self._is_open:
            return
        if self._told:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self._tell((), left=True)
        self._is_open, self._told, self._allowed = False, (), None
        await self.relay.stop()
        log.info("the relay has ended")

    def gauges(self) -> list[Gauge]:
        """What peers of the run have of it, for ``status``; nothing while there is no relay."""
        if not self._is_open:
            return []
        figures, limits = self.relay.figures, self.limits
        refused = sum(figures.refused.values())
        return [
            Gauge("relay_reservations", limits.reservations, "requests to this relay", figures.reservations, refused),
            Gauge("relay_circuits", limits.circuits, "circuits", figures.circuits),
        ]

    async def _open(self, now: float) -> None:
        self._again = now + AGAIN_S
        self._allowed = self.known()
        self.relay.allow(self._allowed)  # before it takes anybody
        try:
            await self.relay.start()
        except MurmurError as error:
            self.reporter.warn("relay", f"no relay here: {error}", error.remedy)
            return
        self._is_open, self._due = True, 0.0
        log.info("a relay for this run at port %d, as %s", self.port, self.key.peer)

    async def _tell(self, addresses: tuple[str, ...], *, left: bool = False) -> bool:
        now = time.time()
        self._sequence = next_sequence(self._sequence, int(now * 1000))
        expires = int(now) + TIMING.lifetime_s
        ours = (self.run_id, self.key.peer, addresses, ("relay",), version("murmuration"))
        return await self.board.tell(PeerRecord(*ours, 0, self._sequence, expires, left=left), self.key.sign)


def volunteer(options: UpOptions, home: Home) -> tuple[RelayProcess, Identity, int, RelayLimits]:
    """A relay that is not started, its key, its port and limits; raises EnvironmentFault (port, home)."""
    path = home.root / "relay.key"
    key, rate = Identity.load_or_create(path), options.relay_bandwidth * 1e6
    limits = RelayLimits(total_rate=rate, circuit_rate=rate / 2)
    port = claim_port(options.listen, options.relay_port)
    listen = tuple(f"{at(host)}/tcp/{port}" for host in hosts_of(options.listen))
    return RelayProcess(RelayConfig(path, listen, limits=limits)), key, port, limits


def own_ips() -> frozenset[str]:
    """This machine's IP addresses."""
    found = (each.address.partition("%")[0] for ours in psutil.net_if_addrs().values() for each in ours)
    return frozenset(found)
