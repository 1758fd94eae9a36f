"""The held-out loss of a flat vector: what status, the swarm's report and the curve on the screen show."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

import torch

from .data import Corpus
from .models.gpt import GPT, load_flat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    losses = batch_losses(model, Corpus(shards, config.data, context=config.context).held_out_batches())
    return fmean(losses)


def batch_losses(model: GPT, batches: Sequence[NDArray[np.int64]]) -> Iterator[float]:
    """Nats per byte of each batch, int64 [rows, context + 1], in float32 where the model is."""
    device = model.head.device
    for batch in batches:
        with torch.inference_mode():
            loss = float(model.loss(torch.from_numpy(batch).to(device)))
        yield loss
