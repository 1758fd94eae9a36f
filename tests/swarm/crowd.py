"""Swarms in memory for the tests of this folder, with a network in which one peer's frames can be bent."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dht.memory import MemoryNetwork
from peer.identity import Identity
from peer.virtual import VirtualPeer, VirtualSwarm
from protocols.errors import RemoteError
from protocols.ids import Hash, PeerId, digest
from protocols.outer import state_root
from protocols.round.chain import Head, seal_zero
from protocols.round.effects import Setting, Train, Window
from protocols.statements import Scope, Statement

if TYPE_CHECKING:
    from protocols.messages import Body

Vector = NDArray[np.float32]


class QuickScope(Scope):
    """Decodes what it has already decoded from memory: in a flood every statement arrives many times."""

    def decode(self, encoded: bytes, *, sender: str) -> Statement:
        """See ``Scope.decode``, a pure function but for the sender that its errors name."""
        if encoded not in _DECODED:
            _DECODED[encoded] = super().decode(encoded, sender=sender)
        return _DECODED[encoded]


_DECODED: dict[bytes, Statement] = {}
SCOPE = QuickScope(b"r" * 32, "model")
VALUES = 5 * 32768 + 100
"""Six parts, the last one short."""
SETTING = Setting(
    values=VALUES, update_codec="float32", result_codec="float32", rule="mean", tolerated=1 / 3,
    lr=0.7, momentum=0.8, probation=0, open=True,
)  # fmt: skip
Bend = Callable[[PeerId, str, bytes], "Sequence[tuple[str, bytes]] | None"]
"""(to, kind, payload) of a frame → the frames to send in its place, or None to leave it as it is."""


def identities(count: int) -> list[Identity]:
    """Keys from small numbers."""
    return [Identity.from_seed(bytes([number]) * 32) for number in range(1, count + 1)]


def draw(peer: PeerId, parent: bytes, values: int = VALUES) -> Vector:
    """What a peer "trained" on top of a seal: any fixed function of the two."""
    seed = int.from_bytes(digest(peer.encode(), parent)[:8], "big")
    return np.random.default_rng(seed).standard_normal(values, dtype=np.float32) * np.float32(0.01)


def trains(rounds: int) -> Callable[[PeerId, Train], Window | None]:
    """A trainer that rests after ``rounds``."""

    def train(peer: PeerId, effect: Train) -> Window | None:
        if effect.round > rounds:
            return None
        return Window(effect.drift + draw(peer, effect.parent, len(effect.base)), 25, 25 * 1024)

    return train


def first_state(values: int = VALUES) -> tuple[Vector, Vector]:
    """Parameters and outer momentum of seal 0."""
    return np.linspace(-1, 1, values, dtype=np.float32), np.zeros(values, dtype=np.float32)


def first_head(founders: Sequence[Identity], values: int = VALUES) -> Head:
    """Seal 0."""
    return seal_zero(SCOPE, [each.peer for each in founders], state_root(*first_state(values)))


class BentNetwork(MemoryNetwork):
    """A network in which what ``liar`` posts (None: everybody) goes through ``bend`` first."""

    liar: PeerId | None = None
    bend: Bend | None = None

    def post(self, sender: PeerId, to: PeerId, kind: str, payload: bytes) -> None:
        """See ``MemoryNetwork.post``."""
        bent = self.bend(to, kind, payload) if self.bend and self.liar in (None, sender) else None
        for each_kind, each in [(kind, payload)] if bent is None else bent:
            super().post(sender, to, each_kind, each)


class Swarm(VirtualSwarm):
    """A virtual swarm that writes down who sent what was refused."""

    def __init__(self, setting: Setting, rounds: int, seed: int | None = None) -> None:
        self.bent = BentNetwork(random.Random(seed) if seed is not None else None)
        self.hung_up: set[tuple[PeerId, PeerId]] = set()
        """(sender of a refused frame, who the error names)."""
        super().__init__(SCOPE, setting, trains(rounds), self.bent)

    def deliver(self) -> None:
        """Deliver until nothing is under way, whoever has started."""
        while (frame := self.network.pop()) is not None:
            try:
                self.peers[frame.to].receive(frame.sender, frame.kind, frame.payload)
            except RemoteError as error:
                self.network.refused.append(error)
                self.hung_up.add((frame.sender, PeerId(error.peer)))


@dataclass(frozen=True)
class Outcome:
    """A run that has come to rest."""

    peers: list[VirtualPeer]
    swarm: Swarm

    def chains(self) -> list[list[Hash]]:
        """The seals each peer adopted."""
        return [[sealed.head.seal for sealed in peer.sealed] for peer in self.peers]

    def troubles(self, but: PeerId | None = None) -> list[tuple[PeerId, str]]:
        """(who, what) that peers other than ``but`` showed."""
        return [(each.peer, each.text) for peer in self.peers if peer.peer != but for each in peer.troubles]

    def refusals(self) -> list[tuple[str, str]]:
        """(who, what) of every refused frame."""
        return [(each.peer, each.text) for each in self.swarm.network.refused]


def run(
    count: int,
    rounds: int = 1,
    *,
    seed: int | None = None,
    bend: tuple[PeerId | None, Bend] | None = None,
    newcomers: int = 0,
    **changes: Any,
) -> Outcome:
    """``count`` founders and ``newcomers`` strangers, ``rounds`` windows each; ``bend`` = a liar and what it does."""
    setting = replace(SETTING, **changes)
    swarm = Swarm(setting, rounds, seed)
    if bend is not None:
        swarm.bent.liar, swarm.bent.bend = bend
    keys = identities(count + newcomers)
    swarm.add(keys, first_head(keys[:count], setting.values), first_state(setting.values))
    for each in reversed(swarm.peers.values()):  # strangers first: nobody waits for their commits
        each.start()
    swarm.deliver()
    return Outcome(list(swarm.peers.values()), swarm)


def restate(payload: bytes, identity: Identity, **changes: Any) -> bytes:
    """The same statement with other fields, signed by ``identity``."""
    return state(replace(SCOPE.decode(payload, sender="test").body, **changes), identity)  # type: ignore[type-var]


def state(body: Body, identity: Identity) -> bytes:
    """A body signed by ``identity``, as it travels."""
    return SCOPE.state(identity.peer, body, identity.sign).encode()


def kind_of(kind: str, payload: bytes) -> str:
    """The statement's kind, or the frame's."""
    return SCOPE.decode(payload, sender="test").body.kind if kind == "statement" else kind
