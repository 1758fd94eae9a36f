"""Four machines over the in-memory network: every round ends with the same bits on every peer."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dht.memory import MemoryNetwork
from peer.identity import Identity
from peer.virtual import VirtualPeer, VirtualSwarm
from protocols.ids import PeerId, digest
from protocols.outer import state_root
from protocols.round.chain import check_head, seal_zero
from protocols.round.effects import Setting, Train, Window
from protocols.statements import Scope

if TYPE_CHECKING:
    from collections.abc import Callable

VALUES = 3 * 32768 + 1000
SCOPE = Scope(b"r" * 32, "model")


def setting(**changes: object) -> Setting:
    """Float32 both ways, plain mean, unless changed."""
    plain: dict[str, object] = {
        "values": VALUES, "update_codec": "float32", "result_codec": "float32", "rule": "mean", "tolerated": 1 / 3,
        "lr": 0.7, "momentum": 0.8, "probation": 0, "open": True,
    }  # fmt: skip
    return Setting(**{**plain, **changes})  # type: ignore[arg-type]


def identities(count: int) -> list[Identity]:
    """Keys from small numbers."""
    return [Identity.from_seed(bytes([number]) * 32) for number in range(1, count + 1)]


def draw(peer: PeerId, parent: bytes) -> np.ndarray:
    """What a peer 'trained' on top of a seal: any fixed function of the two."""
    seed = int.from_bytes(digest(peer.encode(), parent)[:8], "big")
    return np.random.default_rng(seed).standard_normal(VALUES, dtype=np.float32) * np.float32(0.01)


def trainer(rounds: int) -> Callable[[PeerId, Train], Window | None]:
    """Trains every round up to ``rounds``, then rests."""

    def train(peer: PeerId, effect: Train) -> Window | None:
        if effect.round > rounds:
            return None
        return Window(effect.drift + draw(peer, effect.parent), 25, 25 * 1024)

    return train


def run_swarm(count: int, rounds: int, chosen: Setting, seed: int | None = None) -> list[VirtualPeer]:
    """A whole run; the order of frames between pairs is drawn from ``seed``."""
    network = MemoryNetwork(random.Random(seed) if seed is not None else None)
    swarm = VirtualSwarm(SCOPE, chosen, trainer(rounds), network)
    keys = identities(count)
    state = (np.linspace(-1, 1, VALUES, dtype=np.float32), np.zeros(VALUES, dtype=np.float32))
    swarm.add(keys, seal_zero(SCOPE, [key.peer for key in keys], state_root(*state)), state)
    peers = list(swarm.run().values())
    assert not network.refused
    return peers


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("rule", ["mean", "default"])
def test_everybody_ends_every_round_with_the_same_seal(count: int, rule: str) -> None:
    peers = run_swarm(count, 3, setting(rule=rule, result_codec="int8"), seed=count)
    chains = [[sealed.head.seal for sealed in peer.sealed] for peer in peers]
    assert len(chains[0]) == 3
    assert all(chain == chains[0] for chain in chains)
    for peer in peers:
        assert not peer.troubles
        assert [each.round for each in peer.final] == [0, 1, 2, 3]
        last = peer.sealed[-1]
        check_head(last.head, SCOPE, state_root(last.params, last.momentum))
