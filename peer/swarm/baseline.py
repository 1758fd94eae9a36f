"""What a swarm is compared with: one peer alone with the same rounds, and plain AdamW for the same steps."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from protocols.compression import get_codec
from protocols.ids import digest
from protocols.outer import nesterov_step

from ..data import Corpus
from ..learner import Learner
from ..models import initial_vector
from ..training import TrainConfig, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from protocols.manifest import Manifest
    from protocols.round.effects import Vector

    from ..data import Shard

RATES = (2.5e-3, 4e-3, 8e-3, 12e-3)
"""Inner learning rates tried; the best counts."""
PEER = "baseline"


class Baselines:
    """Trains in this process, on the data that a peer called ``baseline`` would draw."""

    def __init__(self, manifest: Manifest, config: TrainConfig, shards: Sequence[Shard]) -> None:
        self._manifest, self._config, self._shards = manifest, config, shards

    def run(self, rounds: int, say: Callable[[str], None]) -> dict[str, float | None]:
        """Held-out loss after ``rounds``, the best over the rates, of both baselines."""
        out: dict[str, float | None] = {}
        for name, train in (("alone", self.alone), ("adamw", self.adamw)):
            losses = {rate: train(rate, rounds) for rate in RATES}
            out[name] = min(losses.values())
            say(f"  {name:<6} " + "   ".join(f"lr {rate:g}: {loss:.4f}" for rate, loss in losses.items()))
        return out

    def alone(self, rate: float, rounds: int) -> float:
        """One peer: fresh moments in each window, its own update through both codecs, the outer step."""
        learner = self._learner(rate, reset=True)
        update_codec, result_codec = (get_codec(name) for name in self._codecs())
        params = self._start()
        momentum, end = np.zeros_like(params), np.empty_like(params)
        outer = self._manifest.outer
        for number in range(rounds):
            learner.train(params, self._window(number), end=end)
            update = update_codec.decode(update_codec.encode(params - end), len(params))
            result = result_codec.decode(result_codec.encode(update), len(params))
            nesterov_step(params, momentum, result, lr=float(outer.lr), momentum_factor=float(outer.momentum))
        return _loss(learner, params)

    def adamw(self, rate: float, rounds: int) -> float:
        """Plain AdamW: moments kept, one warm-up, as many steps as all rounds together."""
        learner = self._learner(rate, reset=False)
        params, end = self._start(), self._start()
        for number in range(rounds):
            learner.train(params, self._window(number), end=end)
            params[:] = end
        return _loss(learner, params)

    def _learner(self, rate: float, *, reset: bool) -> Learner:
        inner = dataclasses.replace(self._config.inner, lr=rate, reset=reset)
        config = dataclasses.replace(self._config, inner=inner)
        return Learner(config, Corpus(self._shards, config.data, context=config.context))

    def _start(self) -> Vector:
        return initial_vector(self._config.size, self._config.context, self._config.seed)

    def _window(self, number: int) -> Window:
        return Window(digest(b"baseline", number.to_bytes(8, "big")), PEER, steps=self._manifest.round.steps or 1)

    def _codecs(self) -> tuple[str, str]:
        return self._manifest.codec.update, self._manifest.codec.result


def _loss(learner: Learner, params: Vector) -> float:
    loss = learner.evaluate(params)
    assert loss is not None  # nobody asked it to stop
    return loss
