"""Inner training: windows of AdamW steps from one flat vector to another. The trainer process is a shell round it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from .evaluate import batch_losses
from .models.gpt import GPT, flatten, load_flat
from .training import WindowResult

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from .data import Corpus
    from .training import InnerConfig, TrainConfig, Window


class Learner:
    """A model and its inner optimizer on one device, fed by a corpus."""

    def __init__(self, config: TrainConfig, corpus: Corpus, *, device: str = "cpu") -> None:
        self.config = config
        self._corpus = corpus
        self._device = torch.device(device)
        self._model = GPT(config.size, config.context).to(self._device)
        self._held_out = corpus.held_out_batches()
        self._optimizer: torch.optim.Optimizer | None = None
        self._age = 0

    def train(
        self,
        start: NDArray[np.float32],
        window: Window,
        *,
        end: NDArray[np.float32],
        on_step: Callable[[int, float], bool] = lambda step, loss: True,
    ) -> WindowResult | None:
        """Train from ``start`` and write the trained vector to ``end`` (both float32 [parameters]).

        ``on_step(steps done, loss)`` is called after each step; False from it abandons the window: None is returned
        and ``end`` left alone.
        """
        began = time.monotonic()
        load_flat(self._model, start)
        optimizer = self._fresh_optimizer()
        losses: list[float] = []
        while not _over(window, len(losses), time.monotonic() - began):
            losses.append(self._step(optimizer, window, len(losses)))
            if not on_step(len(losses), losses[-1]):
                return None
        flatten(self._model, end)
        return WindowResult(
            end=end,
            steps=len(losses),
            tokens=len(losses) * self.config.inner.batch * self.config.context,
            loss=sum(losses) / len(losses),
            last_loss=losses[-1],
            seconds=time.monotonic() - began,
        )

    def evaluate(
        self, vector: NDArray[np.float32], *, on_step: Callable[[int, float], bool] = lambda step, loss: True
    ) -> float | None:
        """Held-out loss of ``vector`` in nats per byte, in float32 also on a GPU; ``on_step`` as in ``train``."""
        load_flat(self._model, vector)
        losses: list[float] = []
        for loss in batch_losses(self._model, self._held_out):
            losses.append(loss)
            if not on_step(len(losses), loss):
                return None
        return sum(losses) / len(losses)

    def _step(self, optimizer: torch.optim.Optimizer, window: Window, done: int) -> float:
        inner = self.config.inner
        batch = self._corpus.batch(
            self.config.seed, window.parent, window.peer, step=window.first_step + done, rows=inner.batch
        )
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            loss = self._model.loss(torch.from_numpy(batch).to(self._device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if inner.clip:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), inner.clip)
        self._age += 1
        for group in optimizer.param_groups:
            group["lr"] = inner.lr * min(1.0, self._age / (inner.warmup + 1))
        optimizer.step()
        return float(loss.detach())

    def _fresh_optimizer(self) -> torch.optim.Optimizer:
        """The window's optimizer: a new one with zero moments, unless the run keeps them."""
        if self._optimizer is None or self.config.inner.reset:
            self._optimizer = make_optimizer(self._model, self.config.inner)
            self._age = 0
        return self._optimizer


def make_optimizer(model: GPT, inner: InnerConfig) -> torch.optim.Optimizer:
    """The inner optimizer with zero moments; weight decay acts on matrices only."""
    groups = [
        {"params": [p for p in model.ordered if p.ndim > 1], "weight_decay": inner.weight_decay},
        {"params": [p for p in model.ordered if p.ndim == 1], "weight_decay": 0.0},
    ]
    if inner.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=inner.lr)
    return torch.optim.AdamW(groups, lr=inner.lr, betas=inner.betas)


def _over(window: Window, done: int, seconds: float) -> bool:
    if window.steps is not None:
        return done >= window.steps
    return done > 0 and window.seconds is not None and seconds >= window.seconds
