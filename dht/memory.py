"""A network inside one process on a virtual clock: streams that are slow, lose frames, break and are cut.

No asyncio and no waiting: ``Clock`` runs events in order of their virtual seconds, ``MemoryNetwork`` puts frames
among them. Frames on one stream never overtake each other. All randomness comes from one generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from protocols.errors import LocalError
from protocols.frames import PAYLOAD_LIMITS
from protocols.statements import Statement

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from random import Random

    from protocols.ids import Hash, PeerId


SOON_S = 0.2
"""A flooded statement that reaches a peer within this time from somebody is not sent to it by others."""


class Clock:
    """Virtual seconds and what is to happen when; events of the same instant run in the order they were put in."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, time: float, call: Callable[..., object], *args: Any) -> None:
        """Run ``call(*args)`` at ``time``, or now if that is past."""
        self._count += 1
        heappush(self._heap, (time if time > self.now else self.now, self._count, call, args))

    def step(self) -> bool:
        """Run the next event; False when there is none."""
        if not self._heap:
            return False
        self.now, _, call, args = heappop(self._heap)
        call(*args)
        return True


@dataclass(frozen=True, slots=True)
class Weather:
    """How a network treats frames; times in seconds, ``uplink`` in bytes/s.

    ``loss`` is the share of frames that do not arrive, ``told`` the share of those that the sender hears of: their
    stream broke, and what was under way on it is gone.
    """

    loss: float = 0.0
    told: float = 0.5
    latency: tuple[float, float] = (0.01, 0.12)
    """Drawn once for each pair."""
    jitter: float = 0.04
    reconnect: tuple[float, float] = (1.0, 3.0)
    silence: float = 30.0
    """After so long a stream to somebody who does not answer counts as closed."""
    uplink: float = 2.5e6


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, as a courier sees it. ``payload`` is handed over as it is, never copied."""

    sender: PeerId
    to: PeerId
    kind: str
    payload: Any


Courier = Callable[[Frame], "float | None"]
"""Seconds until a frame arrives, in whatever order that makes; None withholds it (``MemoryNetwork.withheld``)."""


class Listener(Protocol):
    """Who is told what happens on the network."""

    def on_frame(self, to: PeerId, sender: PeerId, kind: str, payload: Any) -> None:
        """A frame arrived."""

    def on_stream(self, who: PeerId, neighbour: PeerId, open_: bool) -> None:
        """``who``'s stream to a neighbour opened or closed."""


class _Node:
    """One incarnation of a peer."""

    __slots__ = ("alive", "before", "busy", "known", "peer", "side", "uplink", "ways")

    def __init__(self, peer: PeerId, uplink: float) -> None:
        self.peer, self.uplink = peer, uplink
        self.alive, self.side, self.busy = True, 0, 0.0
        self.ways: dict[PeerId, _Way] = {}
        self.known: dict[Hash, float] = {}
        self.before: dict[Hash, float] = {}


class _Link:
    """A connection between neighbours; ``epoch`` counts how often it broke."""

    __slots__ = ("a", "b", "epoch", "open")

    def __init__(self, a: _Node, b: _Node) -> None:
        self.a, self.b, self.epoch, self.open = a, b, 0, False


class _Way:
    """One direction between two peers; ``link`` None: no neighbours, a stream that is opened for a push."""

    __slots__ = ("arrives", "latency", "link", "to")

    def __init__(self, to: _Node, latency: float, link: _Link | None) -> None:
        self.to, self.latency, self.link, self.arrives = to, latency, link, 0.0


class MemoryNetwork:
    """Peers, the streams between neighbours, and the frames under way.

    Neighbours hear of each other's streams; anybody can send to anybody alive, but between others than neighbours a
    frame is only ever lost in silence.
    """

    def __init__(self, clock: Clock, weather: Weather, draw: Random, listener: Listener) -> None:
        self.clock, self.weather = clock, weather
        self.courier: Courier | None = None
        self.withheld: list[Frame] = []
        self.offered = self.silent = self.told = 0
        """Frames that were to be sent, that vanished, that were lost with their stream."""
        self._random, self._draw, self._listener = draw, draw.random, listener
        self._nodes: dict[PeerId, _Node] = {}
        self._casual: dict[tuple[PeerId, PeerId], _Way] = {}
        self._links: dict[tuple[PeerId, PeerId], _Link] = {}
        self._parted = False
        self._slow: dict[PeerId, float] = {}

    # --- who is there -------------------------------------------------------------------------------

    def add(self, peer: PeerId) -> None:
        """Bring a peer up, for the first time or again; it has no neighbours yet."""
        self._nodes[peer] = _Node(peer, self.weather.uplink * self._slow.get(peer, 1.0))

    def connect(self, one: PeerId, other: PeerId) -> None:
        """Make two living peers neighbours and open their stream."""
        key = (one, other) if one < other else (other, one)
        if (old := self._links.pop(key, None)) is not None:
            self._close(old)
        a, b = self._nodes[one], self._nodes[other]
        link = self._links[key] = _Link(a, b)
        latency = self._random.uniform(*self.weather.latency)
        a.ways[other], b.ways[one] = _Way(b, latency, link), _Way(a, latency, link)
        self._reopen(link, link.epoch)

    def remove(self, peer: PeerId, *, silent: bool) -> None:
        """Take a peer down. Its neighbours see their streams close at once, or, ``silent``, when nothing answers."""
        node = self._nodes[peer]
        node.alive = False
        for way in list(node.ways.values()):
            if way.link is not None and silent:
                self.clock.at(self.clock.now + self.weather.silence, self._notice, way.link, way.link.epoch)
            elif way.link is not None:
                self._close(way.link)

    def alive(self, peer: PeerId) -> bool:
        """Whether the peer is up."""
        node = self._nodes.get(peer)
        return node is not None and node.alive

    def neighbours(self, peer: PeerId) -> list[PeerId]:
        """Living neighbours of a peer, whether or not their stream is open just now."""
        return [other for other, way in self._nodes[peer].ways.items() if way.to.alive]

    def part(self, side: Collection[PeerId]) -> None:
        """Cut these peers off from the rest; nobody is told before streams go silent for long enough."""
        self._parted = True
        for peer, node in self._nodes.items():
            node.side = int(peer in side)
        for link in list(self._links.values()):
            if link.a.side != link.b.side:
                self.clock.at(self.clock.now + self.weather.silence, self._notice, link, link.epoch)

    def heal(self) -> None:
        """End the partition; closed streams open again soon."""
        self._parted = False
        for node in self._nodes.values():
            node.side = 0
        for link in self._links.values():
            if not link.open:
                self._reconnect(link)

    def slow(self, peer: PeerId, factor: float) -> None:
        """Give a peer this share of the uplink that the others have, in all its incarnations."""
        self._slow[peer] = factor
        if peer in self._nodes:
            self._nodes[peer].uplink = self.weather.uplink * factor

    # --- frames -------------------------------------------------------------------------------------

    def send(self, sender: PeerId, to: PeerId, kind: str, payload: Any, size: int) -> None:
        """Put one frame of ``size`` bytes under way; raises LocalError when no stream would take it.

        A statement that is under way to the same peer already, and arrives in an instant, is left out.
        """
        limit = PAYLOAD_LIMITS.get(kind)
        if limit is None or size > limit:
            raise LocalError(f"{kind} frame of {size} bytes, limit {limit}")
        node = self._nodes[sender]
        way = node.ways.get(to) or self._way(node, to)
        if way is None:
            return
        if not isinstance(payload, Statement):
            self._put(node, way, kind, payload, size)
        elif not self.clock.now < way.to.known.get(payload.hash, 0.0) <= self.clock.now + SOON_S:
            arrives = self._put(node, way, kind, payload, size)
            if arrives is not None:
                way.to.known[payload.hash] = arrives

    def flood(self, sender: PeerId, statement: Statement, size: int) -> None:
        """Put a statement under way to every neighbour that does not have it, or gets it in an instant."""
        node, soon, name = self._nodes[sender], self.clock.now + SOON_S, statement.hash
        node.known.setdefault(name, self.clock.now)
        for way in node.ways.values():
            to = way.to
            if (to.known.get(name) or to.before.get(name, inf)) > soon:
                arrives = self._put(node, way, "statement", statement, size)
                if arrives is not None:
                    to.known[name] = arrives

    def forget(self, peer: PeerId) -> None:
        """Before the second call from now on, statements that this peer had are brought to it again."""
        node = self._nodes[peer]
        node.before, node.known = node.known, {}

    def release(self, frame: Frame) -> None:
        """Deliver a withheld frame now."""
        self.withheld.remove(frame)
        self._hand(frame)

    def _way(self, node: _Node, to: PeerId) -> _Way | None:
        """The way to somebody who is no neighbour, None when there was never such a peer."""
        other = self._nodes.get(to)
        way = self._casual.get((node.peer, to))
        if other is not None and (way is None or way.to is not other):
            way = self._casual[node.peer, to] = _Way(other, self._random.uniform(*self.weather.latency), None)
        return way

    def _put(self, node: _Node, way: _Way, kind: str, payload: Any, size: int) -> float | None:
        """When the frame arrives, as things are now; None when it does not, or a courier has it."""
        to, link, weather, now = way.to, way.link, self.weather, self.clock.now
        self.offered += 1
        if link is not None and not link.open:
            self.told += 1
            return None
        if not to.alive or (self._parted and node.side != to.side):
            self.silent += 1
            return None
        if self.courier is not None:
            self._by_courier(Frame(node.peer, to.peer, kind, payload))
            return None
        if weather.loss and (fate := self._draw()) < weather.loss:
            if link is None or fate >= weather.loss * weather.told:
                self.silent += 1
                return None
            # A broken stream costs more frames than the one it broke at, so it may not break every time.
            if self.told < weather.loss * weather.told * self.offered:
                self.told += 1
                self._close(link)
                self._reconnect(link)
                return None
        node.busy = (now if now > node.busy else node.busy) + size / node.uplink
        arrives = node.busy + way.latency + weather.jitter * self._draw()
        way.arrives = arrives = arrives if arrives > way.arrives else way.arrives
        self.clock.at(arrives, self._arrive, node, way, 0 if link is None else link.epoch, kind, payload)
        return arrives

    def _by_courier(self, frame: Frame) -> None:
        assert self.courier is not None
        delay = self.courier(frame)
        if delay is None:
            self.withheld.append(frame)
        else:
            self.clock.at(self.clock.now + delay, self._hand, frame)

    def _hand(self, frame: Frame) -> None:
        if self.alive(frame.to):
            self._listener.on_frame(frame.to, frame.sender, frame.kind, frame.payload)

    def _arrive(self, node: _Node, way: _Way, epoch: int, kind: str, payload: Any) -> None:
        if way.link is not None and way.link.epoch != epoch:
            self.told += 1
            way.to.known.clear()  # what else was under way is gone too: let others bring it
        elif way.to.alive:
            self._listener.on_frame(way.to.peer, node.peer, kind, payload)

    # --- streams ------------------------------------------------------------------------------------

    def _ends(self, link: _Link) -> Iterator[tuple[_Node, _Node]]:
        yield link.a, link.b
        yield link.b, link.a

    def _close(self, link: _Link) -> None:
        link.epoch += 1
        for node, other in self._ends(link):
            if not other.alive:
                node.ways.pop(other.peer, None)
            if link.open and node.alive:
                self.clock.at(self.clock.now, self._tell, node, other.peer, False)
        link.open = False

    def _reconnect(self, link: _Link) -> None:
        after = self._random.uniform(*self.weather.reconnect)
        self.clock.at(self.clock.now + after, self._reopen, link, link.epoch)

    def _reopen(self, link: _Link, epoch: int) -> None:
        if link.open or link.epoch != epoch or self._cut(link):
            return
        link.open = True
        for node, other in self._ends(link):
            self.clock.at(self.clock.now, self._tell, node, other.peer, True)

    def _notice(self, link: _Link, epoch: int) -> None:
        """Nothing was heard for long: the stream closes, if that is still so."""
        if link.open and link.epoch == epoch and self._cut(link):
            self._close(link)

    def _cut(self, link: _Link) -> bool:
        return not (link.a.alive and link.b.alive) or (self._parted and link.a.side != link.b.side)

    def _tell(self, node: _Node, other: PeerId, open_: bool) -> None:
        if node.alive:
            self._listener.on_stream(node.peer, other, open_)
