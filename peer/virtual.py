"""Round machines in memory: the same class as in the daemon, real statements, an in-process network, no clock.

``murmur swarm --trace`` replays what real daemons trained through it and compares the seals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from dht.memory import MemoryNetwork
from protocols.errors import RemoteError
from protocols.ids import PeerId, digest
from protocols.round.effects import (
    Effect,
    Final,
    Flood,
    Push,
    Sealed,
    Setting,
    Sign,
    Train,
    Trouble,
    Vector,
    Window,
    Work,
)
from protocols.round.machine import Machine

if TYPE_CHECKING:
    from protocols.messages import Body
    from protocols.round.chain import Head
    from protocols.statements import Scope, Statement

    from .identity import Identity

Trainer = Callable[[PeerId, Train], Window | None]
"""Gives the window a peer trains, or None to let it rest for good."""


class VirtualPeer:
    """A machine whose effects are carried out at once."""

    def __init__(self, swarm: VirtualSwarm, identity: Identity, head: Head, state: tuple[Vector, Vector]) -> None:
        self.peer = identity.peer
        self.sealed: list[Sealed] = []
        self.final: list[Final] = []
        self.troubles: list[Trouble] = []
        self._swarm, self._identity = swarm, identity
        self._signed: dict[bytes, Statement] = {}
        self.machine = Machine(swarm.scope, identity.peer, swarm.setting, head, state)

    def start(self) -> None:
        """Begin the first round."""
        self.carry_out(self.machine.start(0.0))

    def receive(self, sender: PeerId, kind: str, payload: bytes) -> None:
        """A frame arrived; raises RemoteError like the machine."""
        if kind == "statement":
            statement = self._swarm.scope.decode(payload, sender=sender)
            self.carry_out(self.machine.receive(statement, sender, 0.0))
        else:
            self.carry_out(self.machine.payload(sender, kind, payload, 0.0))

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Do what the machine asks, and what that leads to."""
        queue = deque(effects)
        while queue:
            queue.extend(self._one(queue.popleft()))

    def _one(self, effect: Effect) -> list[Effect]:
        match effect:
            case Sign(body):
                return self.machine.receive(self._sign(body), None, 0.0)
            case Work(key, parent, run):
                return self.machine.done(key, parent, run(), 0.0)
            case Train():
                window = self._swarm.trainer(self.peer, effect)
                return self.machine.finish(0.0) if window is None else self.machine.trained(effect.parent, window, 0.0)
            case Flood(statement, source):
                for each in self._swarm.peers:
                    if each not in (self.peer, source):
                        self._swarm.network.post(self.peer, each, "statement", statement.encode())
            case Push(to, kind, payload):
                self._swarm.network.post(self.peer, to, kind, b"".join(payload))
            case Sealed():
                self.sealed.append(effect)
            case Final():
                self.final.append(effect)
            case Trouble():
                self.troubles.append(effect)
        return []

    def _sign(self, body: Body) -> Statement:
        key = digest(body.kind.encode(), body.slot())
        if key not in self._signed:
            self._signed[key] = self._swarm.scope.state(self.peer, body, self._identity.sign)
        return self._signed[key]


class VirtualSwarm:
    """Peers in one process, each connected to every other."""

    def __init__(self, scope: Scope, setting: Setting, trainer: Trainer, network: MemoryNetwork | None = None) -> None:
        self.scope, self.setting, self.trainer = scope, setting, trainer
        self.network = MemoryNetwork() if network is None else network
        self.peers: dict[PeerId, VirtualPeer] = {}

    def add(self, identities: Iterable[Identity], head: Head, state: tuple[Vector, Vector]) -> None:
        """Add peers that all begin at ``head`` with the same ``state`` (parameters, momentum)."""
        for identity in identities:
            copies = (state[0].copy(), state[1].copy())
            self.peers[identity.peer] = VirtualPeer(self, identity, head, copies)

    def run(self) -> Mapping[PeerId, VirtualPeer]:
        """Start everybody and deliver frames until nothing is under way."""
        for each in self.peers.values():
            each.start()
        while (frame := self.network.pop()) is not None:
            try:
                self.peers[frame.to].receive(frame.sender, frame.kind, frame.payload)
            except RemoteError as error:
                self.network.refused.append(error)
        return self.peers
