"""Carries out the reachability ladder: asks observers, publishes what is proven, reserves at relays, punches holes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import psutil

from dht import reach
from dht.addresses import best_addresses, is_outward
from dht.links import Refused
from dht.punch import Puncher
from dht.reachability import MOST_RELAYS, NO_PUBLIC_PEER, Plan, View, is_outside, plan
from dht.relay_choice import candidates, replacement
from dht.relay_watch import relay_of
from dht.tasks import end
from protocols.errors import MurmurError
from protocols.ids import short
from protocols.reach import BUSY

from . import status as st
from .doctor_interfaces import is_contained

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from dht.connections import Connection
    from dht.p2pd import P2pd
    from dht.transport import StreamTransport
    from protocols.ids import PeerId
    from protocols.reach import ReachReply

    from .reporter import Reporter

log = logging.getLogger(__name__)

LOOK_S, SOON_S, BREATH_S = 2.0, 0.5, 0.2
"""Between two looks at addresses and connections; the same while a reservation is due; the least."""
RESERVED_S = 10.0
"""For so long one is due."""
MISSED_S = 10.0
"""So long an observer's word holds that is not connected: p2pd drops all when it begins to reserve. So long, too, it
is remembered how often a hole to a peer was tried that is not connected: while one is dialled none is."""
ASK_EVERY_S = 60.0
"""Between two questions to one observer while nothing changes."""
ASK_AGAIN_S = 5.0
"""The same after one that failed."""
OBSERVERS = 4
RELAY_PATIENCE_S = (20.0, 640.0)
"""For a relay to take the reservation before others are tried, which costs all connections: twice as long each time."""
REPLACE_S = (150.0, 2400.0)
"""After the loss of one of several reservations, before p2pd starts anew for another one, twice as long each time.

By then the directory has forgotten a relay that is gone, and knows again one that came back.
"""
SETTLE_S = 3.0
"""From the first relay that is known to the first reservation: others may become known, and all are reserved at."""
ROUTER_S = (8.0, 20.0)
"""From p2pd's start to the first reservation: the router opens its port after 5 s, and p2pd hides that once it
reserves. The second while what the router opened has not been asked about."""
HOLES = 8
"""Punched at the same time: whoever does not answer holds up nobody for long."""
PUNCH_RETRY_S = (3.0, 600.0)
"""First and longest pause before it is tried again to reach a peer without a relay."""
UNREADY = 0.2
"""Part of that pause after which a peer is asked again that was not ready: it has cost no connection."""
REDIAL_S = 5.0
"""For a peer that can be dialled, as it says."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the ladder needs of the network round it."""

    observers: Callable[[], list[PeerId]]
    """Who can be asked, those preferred first."""
    relays: Callable[[], tuple[str, ...]]
    """Addresses of known relays, one of each."""
    publish: Callable[[], None]
    """What this peer says of itself has changed."""
    stand: Callable[[bool], None]
    """Whether others can dial this peer has changed."""
    expects: Callable[[], bool]
    """Whether anybody else should be there."""
    addresses: Callable[[PeerId], tuple[str, ...]]
    """Where a peer says that it can be reached."""
    lighthouses: Callable[[], frozenset[PeerId]]
    """Entries that listen for QUIC too."""
    near: Callable[[PeerId], str] = lambda _: ""
    """Where a peer is in this very network; "" for others."""
    outside: Callable[[], bool] = lambda: False
    """Whether peers out in the world are known."""


@dataclass
class _Observer:
    """What one peer has told."""

    due: float = 0.0
    reply: ReachReply | None = None
    end: str = ""
    """Where it sees this peer, known before the reply; "" after a change."""
    met: float = 0.0


@dataclass
class _Hole:
    """Attempts to punch through to one peer."""

    due: float = 0.0
    pause: float = PUNCH_RETRY_S[0]
    tries: int = 0
    """Dials that both sides agreed upon."""
    met: float = 0.0


@dataclass
class Reaching:
    """One for each network; ``run`` is its task, ``close`` ends what else it began."""

    own: PeerId
    p2pd: P2pd
    transport: StreamTransport
    reporter: Reporter
    around: Surroundings
    confined: bool
    """p2pd listens on loopback only."""
    plan: Plan = field(default_factory=lambda: Plan("unknown", ("nobody has been asked yet",), (), (), ()))

    def __post_init__(self) -> None:
        self._observers: dict[PeerId, _Observer] = {}
        self._holes: dict[PeerId, _Hole] = {}
        self._listen: tuple[str, ...] = ()
        self._interfaces: frozenset[str] = frozenset()
        self._changes = 0
        self._reserved_at, self._patience, self._failed = -math.inf, RELAY_PATIENCE_S[0], dict[str, int]()
        self._relays_since = self._lonely_since = time.monotonic()
        self._whole_at, self._replace_pause = -math.inf, REPLACE_S[0]
        self._began = self._lonely_since
        self._server = reach.ReachServer()
        self._puncher = Puncher(self.transport, self._udp_end, done=self._punched, first=is_contained)
        self._woken = asyncio.Event()
        self._busy: dict[tuple[str, PeerId], asyncio.Task[None]] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """What others are told, each ending in this peer's id."""
        return best_addresses(f"{each}/p2p/{self.own}" for each in self.plan.publish)

    @property
    def stands(self) -> bool:
        """Whether others can dial this peer, as far as is known."""
        return self.plan.direct or self.plan.rung == "unknown"

    async def start(self) -> None:
        """Answer others' questions; raises TransportError."""
        self._began = time.monotonic()
        await self.transport.serve(reach.PROTOCOL, self._server.serve)
        await self._puncher.start()

    async def close(self) -> None:
        """End questions and holes under way."""
        await end(list(self._busy.values()))
        await self._puncher.close()

    def wake(self) -> None:
        """Look again soon: something has changed."""
        self._woken.set()

    async def run(self) -> None:
        """Look, ask, act, for ever."""
        while True:
            self._woken.clear()
            with contextlib.suppress(MurmurError):  # p2pd is being restarted
                await self._look()
                self.plan = replace(self.plan, ask=plan(self._view()).ask)
                self._ask()
                self._follow(plan(self._view()))
                self._leave_relays()
            await asyncio.sleep(BREATH_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SOON_S if self._is_reserving() else LOOK_S):
                    await self._woken.wait()

    def _is_reserving(self) -> bool:
        is_new = time.monotonic() - self._reserved_at < RESERVED_S
        return is_new and not any("/p2p-circuit" in each for each in self._listen)

    def _do(self, what: str, peer: PeerId, work: Coroutine[Any, Any, None]) -> None:
        """Beside the looks, which a peer that does not answer shall not hold up; then there is one more."""
        task = self._busy[what, peer] = asyncio.create_task(work, name=f"{what} {peer}")
        task.add_done_callback(lambda task: self._done(what, peer, task))

    def _done(self, what: str, peer: PeerId, task: asyncio.Task[None]) -> None:
        del self._busy[what, peer]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("to %s %s failed", what, short(peer), exc_info=error)
        self.wake()

    async def _look(self) -> None:
        await self.transport.count_connections()
        listen = await self.transport.routes.listening()
        if self.transport.routes.ways() or not self.around.expects():
            self._lonely_since = time.monotonic()
        interfaces = frozenset(
            each.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for each in addresses
        )
        if interfaces != self._interfaces or _fixed(listen) != _fixed(self._listen):
            self._changes += 1
            for observer in self._observers.values():
                observer.due, observer.end = 0.0, ""
        self._listen, self._interfaces = listen, interfaces
        if not self.around.relays():
            self._relays_since = time.monotonic()

    def _ask(self) -> None:
        known = self.around.observers()
        direct = [peer for peer, way in self.transport.routes.ways().items() if way.kind == "direct"]
        chosen = [peer for peer in known if peer in direct][:OBSERVERS]
        now, missed = time.monotonic(), self._observers
        self._observers = {peer: missed.pop(peer, _Observer()) for peer in chosen}
        for peer, observer in self._observers.items():
            observer.met = now
            if observer.due <= now and ("ask", peer) not in self._busy:
                self._do("ask", peer, self._ask_one(peer, observer))
        self._observers |= {peer: each for peer, each in missed.items() if now - each.met < MISSED_S}

    async def _ask_one(self, peer: PeerId, observer: _Observer) -> None:
        changes, pause = self._changes, ASK_AGAIN_S
        try:
            if self.p2pd.relays and not observer.end:  # what is dialled back in vain takes seconds
                observer.end = (await reach.ask(self.transport, peer)).observed
                self.wake()
            reply = await reach.ask(self.transport, peer, self.plan.ask)
            observer.end = reply.observed
            is_busy = any(each.found == BUSY for each in reply.outcomes)
            pause = ASK_AGAIN_S if is_busy else ASK_EVERY_S
            if observer.reply is None or not is_busy:
                observer.reply = reply
        except MurmurError as error:
            log.debug("%s does not tell how it sees this peer: %s", short(peer), error)
        if changes == self._changes:  # else the answer is about what was before, and the next question is due
            observer.due = time.monotonic() + pause

    def _view(self) -> View:
        seen: dict[str, str] = {}
        found: dict[str, dict[str, str]] = {}
        for peer, observer in self._observers.items():
            if observer.reply is not None:
                seen[peer] = observer.end or observer.reply.observed
                for outcome in observer.reply.outcomes:
                    if outcome.found != BUSY:
                        found.setdefault(outcome.address, {})[peer] = outcome.found
        ways = self.transport.routes.ways().values()
        punched = sum(way.kind == "punched" for way in ways)
        relays = candidates(self.around.relays(), self.p2pd.relays, self._failed)
        return View(
            self.p2pd.port,
            self._listen,
            self._interfaces,
            seen,
            found,
            relays,
            punched=punched,
            lonely_s=time.monotonic() - self._lonely_since,
            confined=self.confined,
            contained=is_contained(),
            outside=self.around.outside() or any(is_outward(way.address) for way in ways),
        )

    def _follow(self, new: Plan) -> None:
        """Tell what has changed, and let p2pd reserve where that is called for."""
        before, stood, self.plan = self.plan, self.stands, new
        if new != before:
            self.reporter.apply(st.Reach(new.rung, new.evidence, self.addresses))
            self._warn(before)
        if new.publish != before.publish:
            log.info("reachable: %s (%s)", new.rung, "; ".join(new.evidence))
            self.around.publish()
        if self.stands != stood:
            self.around.stand(self.stands)
        reserves = new.relays or (self.p2pd.relays and not new.direct)
        self.transport.routes.by_quic = self.around.lighthouses() if reserves else ()
        now = time.monotonic()
        if new.relays and now - self._relays_since > SETTLE_S and not self._awaits_router(now - self._began):
            self._reserve(now)

    def _awaits_router(self, age: float) -> bool:
        replies = [each.reply for each in self._observers.values() if each.reply is not None]
        asked = {outcome.address for reply in replies for outcome in reply.outcomes}
        is_open = any(each.startswith("/ip") and each not in asked for each in self.plan.ask)
        return not self.p2pd.relays and age < ROUTER_S[is_open]

    def _warn(self, before: Plan) -> None:
        if NO_PUBLIC_PEER in self.plan.evidence:
            self.reporter.warn("reach", NO_PUBLIC_PEER, "nothing here: it trains alone meanwhile, and tries again")
        elif NO_PUBLIC_PEER in before.evidence:
            self.reporter.apply(st.Cleared("reach"))

    def _reserve(self, now: float) -> None:
        """Go on to other relays when those in use have taken nothing for so long. Whoever names false ones gains it.

        p2pd restarts for it; a relay that takes a reservation and drops it again is no reason to do so often.
        """
        waited, using = now - self._reserved_at, self.p2pd.relays
        if any("/p2p-circuit" in each for each in self._listen):
            if waited > RELAY_PATIENCE_S[1]:
                self._patience = RELAY_PATIENCE_S[0]
            self._replace(now)
            return
        if waited < self._patience:
            return
        known = self.around.relays()
        failed = {each: self._failed.get(each, 0) + (each in using) for each in known}
        relays = candidates(known, using, failed)[:MOST_RELAYS]
        if relays and set(relays) != set(using) and self.p2pd.reserve_at(relays):
            self._failed, self._reserved_at, self._whole_at = failed, now, now
            self._patience = min(2 * self._patience, RELAY_PATIENCE_S[1]) if using else self._patience

    def _replace(self, now: float) -> None:
        """Go on to another relay, or back to a lost one, when one of those in use has been gone for long enough."""
        using, circuits = self.p2pd.relays, {relay_of(each) for each in self._listen if "/p2p-circuit" in each}
        serving = [each for each in using if relay_of(each) in circuits]
        relays = replacement(self.around.relays(), using, serving, self._failed, MOST_RELAYS)
        if not relays:
            self._whole_at = now
            self._replace_pause = REPLACE_S[0] if now - self._reserved_at > REPLACE_S[1] else self._replace_pause
        elif now - self._whole_at > self._replace_pause and self.p2pd.reserve_at(relays, again=True):
            self._failed |= {each: self._failed.get(each, 0) + 1 for each in using if each not in serving}
            self._reserved_at, self._whole_at = now, now
            self._replace_pause = min(2 * self._replace_pause, REPLACE_S[1])

    def _leave_relays(self) -> None:
        """Now and then try to reach each relayed peer, and each neighbour, in another way."""
        now, ways = time.monotonic(), self.transport.routes.ways()
        for peer, hole in self._holes.items():
            hole.met = now if peer in ways else hole.met
        self._holes = {peer: hole for peer, hole in self._holes.items() if now - hole.met < MISSED_S}
        detours = [peer for peer, way in ways.items() if self._is_detour(peer, way) and self._begins(peer)]
        due = [peer for peer in detours if self._holes.setdefault(peer, _Hole(met=now)).due <= now]
        due = sorted(
            (peer for peer in due if ("leave the relay to", peer) not in self._busy), key=lambda p: self._holes[p].due
        )
        room = HOLES - sum(what == "leave the relay to" for what, _ in self._busy)
        for peer in due[:room]:
            self._do("leave the relay to", peer, self._leave_relay(peer, self._holes[peer]))

    def _is_detour(self, peer: PeerId, way: Connection) -> bool:
        """Whether there may be a shorter way: through no relay, and in one's own home not out and in again."""
        return way.kind == "relayed" or (bool(self.around.near(peer)) and is_outward(way.address))

    def _begins(self, peer: PeerId) -> bool:
        """Of two peers one begins: whoever cannot be dialled where the other can, else the one with the smaller id."""
        if self.around.near(peer):
            return peer > self.own
        if self._dialled_at(peer):
            return not self.plan.direct or peer > self.own
        return bool(self._udp_end()) and not self.plan.direct and peer > self.own

    async def _leave_relay(self, peer: PeerId, hole: _Hole) -> None:
        hole.due, hole.pause = time.monotonic() + hole.pause, min(2 * hole.pause, PUNCH_RETRY_S[1])
        try:
            if address := self._dialled_at(peer):
                worked = await self.transport.routes.redial(peer, address, within=REDIAL_S, punched=False)
                log.info("%s is %s without a relay", short(peer), "reached" if worked else "not reached")
            else:
                await self._puncher.punch(peer, lead=hole.tries % 2 == 1)
                hole.tries += 1
        except Refused:  # p2pd meets peers of other runs, too
            hole.due = time.monotonic() + PUNCH_RETRY_S[1]
        except MurmurError as error:
            log.info("no hole to %s: %s", short(peer), error)
            hole.due = min(hole.due, time.monotonic() + hole.pause * UNREADY)

    def _dialled_at(self, peer: PeerId) -> str:
        """Where it is near, or can be dialled by its own word; "" where it names relays alone."""
        return self.around.near(peer) or next(
            (each for each in self.around.addresses(peer) if "/p2p-circuit" not in each), ""
        )

    def _udp_end(self) -> str:
        """Where observers out in the world see this peer's UDP socket; "" where none does."""
        ends = [each.end for each in self._observers.values()]
        return next((each for each in ends if "/udp/" in each and is_outside(each)), "")

    def _punched(self, peer: PeerId, worked: bool) -> None:
        log.info("a hole to %s: %s", short(peer), "punched" if worked else "failed, back through the relay")


def _fixed(listen: tuple[str, ...]) -> frozenset[str]:
    """Addresses without circuits, which come and go without a change of the network."""
    return frozenset(each for each in listen if "/p2p-circuit" not in each)
