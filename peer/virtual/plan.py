"""Who takes part in a virtual swarm and what they train: everything but its size, its seed and its faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from dht.memory import Weather
from protocols.ids import PeerId, digest
from protocols.outer import state_root
from protocols.round.chain import Head, seal_zero
from protocols.round.effects import Setting, Train, Vector, Window

from ..identity import Identity
from .wire import QuickScope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocols.statements import Scope

Trainer = Callable[[PeerId, Train], "Window | None"]
"""The window a peer trains, or None to let it rest for good."""
PART = 64
PARTS = 16
SETTING = Setting(
    values=PART * PARTS, part=PART, update_codec="float32", result_codec="float32", rule="mean", tolerated=1 / 3,
    lr=0.7, momentum=0.8, probation=0, open=True,
)  # fmt: skip
STEPS, TOKENS = 25, 25 * 1024


def keys(seed: int, count: int) -> list[Identity]:
    """Reproducible keys; the first ones found the run, the others come later."""
    return [_key(seed, number) for number in range(count)]


@cache
def _key(seed: int, number: int) -> Identity:
    return Identity.from_seed(digest(b"murmur virtual", seed.to_bytes(8, "big"), number.to_bytes(8, "big")))


def first_state(values: int) -> tuple[Vector, Vector]:
    """Parameters and outer momentum of seal 0."""
    return np.linspace(-1, 1, values, dtype=np.float32), np.zeros(values, dtype=np.float32)


def draw(peer: PeerId, parent: bytes, values: int) -> Vector:
    """What a peer "trained" on top of a seal: any fixed function of the two."""
    seed = int.from_bytes(digest(peer.encode(), parent)[:8], "big")
    return np.random.default_rng(seed).standard_normal(values, dtype=np.float32) * np.float32(0.01)


def train(peer: PeerId, effect: Train) -> Window | None:
    """A window of pseudo-random drift."""
    return Window(effect.drift + draw(peer, effect.parent, len(effect.base)), STEPS, TOKENS)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """``founders`` None: keys from the seed. Times in virtual seconds, each a range to draw from.

    ``newcomers`` are there from the start beside the founders. ``keep`` = Sealed effects that a peer remembers, 0 =
    all of them. ``linger``: how long the swarm goes on after its end.
    """

    scope: Scope = QuickScope(b"v" * 32, "model")
    setting: Setting = SETTING
    founders: Sequence[Identity] | None = None
    state: tuple[Vector, Vector] | None = None
    trainer: Trainer = train
    pace: Callable[[PeerId, Train], float] | None = None
    """How long each window takes; None: drawn from ``train_s``."""
    train_s: tuple[float, float] = (15.0, 25.0)
    work_s: tuple[float, float] = (0.0, 0.05)
    weather: Weather = Weather()
    newcomers: Sequence[Identity] = ()
    keep: int = 2
    linger: float = 0.0

    def first(self) -> tuple[Vector, Vector]:
        """A copy of the state of seal 0."""
        params, momentum = self.state or first_state(self.setting.values)
        return params.copy(), momentum.copy()

    def anchor(self, founders: Sequence[Identity]) -> Head:
        """Seal 0."""
        return seal_zero(self.scope, [each.peer for each in founders], state_root(*self.first()))
