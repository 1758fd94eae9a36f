"""The held-out loss of a flat vector: what status, the swarm's report and the curve on the screen show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .data import Corpus
from .models.gpt import GPT, load_flat

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from .data import Shard
    from .training import TrainConfig


def held_out_loss(vector: NDArray[np.float32], config: TrainConfig, shards: Sequence[Shard]) -> float:
    """Mean nats per byte of ``vector`` (float32 [parameters]) on the 20 held-out batches, in float32 on the CPU.

    Raises EnvironmentFault when ``shards`` are not the run's.
    """
    model = GPT(config.size, config.context)
    load_flat(model, vector)
    return mean_loss(model, Corpus(shards, config.data, context=config.context).held_out_batches())


def mean_loss(model: GPT, batches: Sequence[NDArray[np.int64]]) -> float:
    """Mean nats per byte over batches int64 [rows, context + 1] of equal size, in float32 where the model is."""
    device = model.head.device
    with torch.inference_mode():
        losses = [float(model.loss(torch.from_numpy(batch).to(device))) for batch in batches]
    return sum(losses) / len(losses)
