"""A whole swarm on one virtual clock: peers come, train, die and come back until they have made their rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from dht.memory import Clock, MemoryNetwork
from protocols.ids import PeerId, short
from protocols.outer import state_root

from .chronicle import Chronicle
from .faults import Faults, Injector, Lots
from .invariants import Invariants, Link, Violation
from .peer import VirtualPeer
from .plan import Plan, keys
from .storage import Disk, Journal
from .trace import Trace
from .wire import forget

if TYPE_CHECKING:
    from protocols.errors import RemoteError
    from protocols.round.chain import Head
    from protocols.round.effects import Final, Phase, Sealed, Train


FULL_MESH = 8
"""Up to so many peers everybody is everybody's neighbour."""
CHORDS = 1.75
"""Random streams for each peer beside the ring."""
DIALS = 5
"""Neighbours whom a newcomer dials."""
FEW = 3
"""With fewer neighbours a peer dials another."""
START_S, ROUND_S = 1800.0, 240.0
"""Virtual time after which a swarm has failed: so long, and so long for each round."""
REFUSED = 256


@dataclass(frozen=True)
class Outcome:
    """How it ended. ``detail`` says where everybody stands when it failed."""

    ok: bool
    detail: str
    seconds: float
    """Virtual."""
    trace: str
    """Hash of everything that happened."""
    chain: tuple[Link, ...]
    """Of the newest head, oldest first, without seal 0."""
    peers: tuple[VirtualPeer, ...]
    """Living honest ones."""
    world: World

    @property
    def void_share(self) -> float:
        """Void rounds among all of the chain."""
        return sum(link.void for link in self.chain) / max(1, len(self.chain))

    def require(self) -> Outcome:
        """Itself, if all is well; else raises Violation with the command that replays it."""
        if not self.ok:
            raise Violation("progress", f"{self.detail}\nreplay: {self.world.command}")
        return self


class World:
    """``peers`` founders make ``rounds`` rounds; all else is in ``faults`` and ``plan``."""

    def __init__(
        self, seed: int, peers: int, rounds: int, faults: Faults | None = None, *, plan: Plan | None = None
    ) -> None:
        forget()
        self.seed, self.rounds = seed, rounds
        self.faults, self.plan = faults or Faults(), plan or Plan()
        self.clock, self.draw = Clock(), Random(f"{seed} peers")
        weather = replace(self.plan.weather, loss=self.faults.loss or self.plan.weather.loss)
        self.network = MemoryNetwork(self.clock, weather, Random(f"{seed} network"), self)
        self.founders = list(self.plan.founders or keys(seed, peers))
        self.anchor: Head = self.plan.anchor(self.founders)
        self.rules = Invariants(self.anchor, state_root(*self.plan.first()))
        self.peers: dict[PeerId, VirtualPeer] = {}
        """The last incarnation of everybody."""
        self.trace, self.chronicle = Trace(), Chronicle()
        self.refused: list[tuple[PeerId, PeerId, RemoteError]] = []
        """(who refused, whose frame, why), the first few."""
        self.lots = Lots()
        self.done = False
        self._finishing = False
        self._numbers: dict[PeerId, int] = {}
        for identity in [*self.founders, *self.plan.newcomers]:
            self._add(Disk(identity))
        self.injector = Injector(self, self.faults, Random(f"{seed} faults"))

    @property
    def command(self) -> str:
        """What replays this run, as far as a command can."""
        faults, out = self.faults, f"murmur swarm --virtual --peers {len(self.founders)} --rounds {self.rounds}"
        for name in ("loss", "deaths", "joins", "frozen", "slow"):
            if value := getattr(faults, name):
                out += f" --{name} {value}"
        out += " --partition" * faults.partitions
        for kill in faults.kills:
            out += f" --kill {kill}"
        for number in faults.join_at:
            out += f" --join-at {number}"
        return f"{out} --seed {self.seed}"

    # --- running ------------------------------------------------------------------------------------

    def run(self, limit: float = 0.0) -> Outcome:
        """To the end, or to ``limit`` virtual seconds. Raises Violation, with the command that replays it."""
        end = limit or START_S + ROUND_S * self.rounds
        try:
            self.begin()
            while not self.done and self.clock.now <= end and self.clock.step():
                pass
        except Violation as error:
            error.args = (f"{error} (at {self.clock.now:.3f} s)\nreplay: {self.command}",)
            raise
        return self.outcome()

    def begin(self) -> None:
        """Start everybody; ``clock.step`` does the rest."""
        for peer in reversed(self.peers.values()):  # newcomers first
            peer.start()
        for one, other in self._graph(list(self.peers)):
            self.network.connect(one, other)
        self.injector.begin()

    def outcome(self) -> Outcome:
        """As it is now."""
        head = self.newest()
        chain = tuple(reversed([link for link in self.rules.back(head.seal) if link.parent != link.seal]))
        return Outcome(
            self.done, "" if self.done else self.stand(), self.clock.now, self.trace.digest, chain,
            tuple(self.living()), self,
        )  # fmt: skip

    def stand(self) -> str:
        """Where everybody stands."""
        lines = [f"not done after {self.clock.now:.0f} virtual seconds; {self.injector.open} faults are not over"]
        for each in self.living():
            phase, peers = each.machine.waiting()
            names = ", ".join(short(peer) for peer in peers[:4])
            lines.append(
                f"  {self.number(each.peer)} {short(each.peer)}: {each.depth} rounds, head round {each.head.round} "
                f"view {each.head.view} {each.head.seal.hex()[:8]}, in view {each.machine.view}, {phase}, "
                f"waits for {names or 'nobody'}"
            )
        return "\n".join(lines)

    def living(self) -> list[VirtualPeer]:
        """Honest peers that are up."""
        return [each for each in self.peers.values() if each.alive and each.honest]

    def newest(self) -> Head:
        """The head with most rounds among the living."""
        heads = [(each.depth, each.head.view, each.head) for each in self.living()]
        return max(heads, key=lambda each: each[:2])[2] if heads else self.anchor

    def number(self, peer: PeerId) -> int:
        """The index of a peer, in order of its coming."""
        return self._numbers[peer]

    def check_end(self) -> None:
        """Whether everybody has made the rounds and is on one chain with one state."""
        if self.done or self.injector.open:
            return
        living = self.living()
        if not living or any(each.depth < self.rounds for each in living):
            return
        if not self._finishing:
            self._finishing = True
            for each in living:
                self.clock.at(self.clock.now, each.finish)
        newest = self.newest().seal
        states = {self.rules.links[each.head.seal].state for each in living}
        if len(states) == 1 and all(self.rules.descends(newest, each.head.seal) for each in living):
            if self.plan.linger:
                self.clock.at(self.clock.now + self.plan.linger, self._end)
            else:
                self._end()

    def _end(self) -> None:
        self.done = True

    # --- who comes and goes -------------------------------------------------------------------------

    def join(self) -> VirtualPeer:
        """A newcomer with a new key, from seal 0."""
        identity = keys(self.seed, len(self._numbers) + 1)[-1]
        peer = self._add(Disk(identity))
        self.say(peer.peer, "joins", "")
        self._connect(peer)
        return peer

    def kill(self, peer: VirtualPeer, *, silent: bool = False) -> None:
        """The process is gone; its neighbours are told at once, or (``silent``) when it has not answered for long."""
        if not peer.alive:
            return
        self.say(peer.peer, "dies", "in silence" if silent else "")
        bereft = self.network.neighbours(peer.peer)
        peer.die()
        self.network.remove(peer.peer, silent=silent)
        self.clock.at(self.clock.now + self.network.weather.reconnect[1], self._repair, bereft)
        self.clock.at(self.clock.now, self.check_end)

    def restart(self, peer: VirtualPeer, *, journal: bool = True) -> VirtualPeer:
        """The same key again, from its disk."""
        if not journal:
            peer.disk.journal = Journal()
        fresh = self._add(peer.disk)
        fresh.forge, fresh.honest = peer.forge, peer.honest
        self.say(fresh.peer, "restarts", f"at round {fresh.head.round}")
        self._connect(fresh)
        return fresh

    def _add(self, disk: Disk) -> VirtualPeer:
        name = disk.identity.peer
        self._numbers.setdefault(name, len(self._numbers))
        peer = self.peers[name] = VirtualPeer(self, disk)
        self.network.add(name)
        return peer

    def _connect(self, peer: VirtualPeer) -> None:
        peer.start()
        others = [each.peer for each in self.peers.values() if each.alive and each is not peer]
        count = len(others) if len(others) < FULL_MESH else DIALS
        for other in self.draw.sample(others, count):
            self.network.connect(peer.peer, other)

    def _repair(self, bereft: list[PeerId]) -> None:
        """Who has lost a neighbour for good dials another."""
        alive = [each.peer for each in self.peers.values() if each.alive]
        for peer in bereft:
            near = set(self.network.neighbours(peer))
            far = [each for each in alive if each != peer and each not in near]
            if self.peers[peer].alive and len(near) <= FEW and far:
                self.network.connect(peer, self.draw.choice(far))

    def _graph(self, peers: list[PeerId]) -> list[tuple[PeerId, PeerId]]:
        """A ring and random chords: connected, five to six neighbours each."""
        count = len(peers)
        if count <= FULL_MESH:
            return [(peers[i], peers[j]) for i in range(count) for j in range(i)]
        order = self.draw.sample(peers, count)
        pairs = {_pair(order[i - 1], order[i]): None for i in range(count)}
        while len(pairs) < count * (1 + CHORDS):
            pairs[_pair(*self.draw.sample(peers, 2))] = None
        return list(pairs)

    # --- what happens -------------------------------------------------------------------------------

    def say(self, peer: PeerId | None, what: str, text: str) -> None:
        """A line of the trace."""
        self.trace.say(self.clock.now, "-" if peer is None else str(self._numbers[peer]), f"{what} {text}")

    def pace(self, peer: PeerId, effect: Train) -> float:
        """Seconds that a window takes."""
        return self.plan.pace(peer, effect) if self.plan.pace else self.draw.uniform(*self.plan.train_s)

    def refuse(self, who: PeerId, sender: PeerId, error: RemoteError) -> None:
        """A frame was refused."""
        self.say(who, "refuses", f"{self._numbers[sender]}: {error.text}")
        if len(self.refused) < REFUSED:
            self.refused.append((who, sender, error))

    def on_frame(self, to: PeerId, sender: PeerId, kind: str, payload: Any) -> None:
        """See ``dht.memory.Listener``."""
        self.peers[to].on_frame(sender, kind, payload)

    def on_stream(self, who: PeerId, neighbour: PeerId, open_: bool) -> None:
        """See ``dht.memory.Listener``."""
        self.say(who, "stream", f"{self._numbers[neighbour]} {'opens' if open_ else 'closes'}")
        self.peers[who].on_stream(neighbour, open_)

    def on_sealed(self, peer: VirtualPeer, effect: Sealed) -> None:
        """A peer adopted a seal: every rule about seals holds."""
        before, peer.head = peer.head, effect.head
        if not peer.honest:
            return
        link = self.rules.adopted(peer.peer, before, effect)
        self.rules.drift_by_rule(peer.peer, peer.shadow, effect, self.plan.setting.part)
        self.rules.bounded(peer.peer, peer.machine.sizes())
        peer.depth = link.depth
        self.chronicle.sealed(peer.peer, effect)
        how = "void" if effect.record.void else "synced" if effect.record.synced else "seals"
        self.say(peer.peer, how, f"{link.round} {link.view} {link.seal.hex()}")
        self.injector.reached(link.depth)
        if link.depth >= self.rounds:
            self.check_end()

    def on_final(self, peer: VirtualPeer, effect: Final) -> None:
        """A peer saw that a seal is final."""
        if peer.honest:
            self.rules.one_final_chain(peer.peer, effect.seal)
            self.chronicle.final(effect.seal)
            self.say(peer.peer, "final", f"{effect.round} {effect.seal.hex()}")

    def on_phase(self, peer: VirtualPeer, effect: Phase) -> None:
        """A peer's round entered a phase."""
        self.say(peer.peer, "phase", f"{effect.round} {effect.name}")


def _pair(one: PeerId, other: PeerId) -> tuple[PeerId, PeerId]:
    return (one, other) if one < other else (other, one)
