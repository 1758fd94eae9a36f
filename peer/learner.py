"""Inner training: windows of AdamW steps from one flat vector to another. The trainer process is a shell round it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from .evaluate import batch_losses
from .interrupted import NO_WINDOW, PARAMETERS, Interrupted
from .models.gpt import GPT, flatten, flatten_all, load_flat, split_flat
from .training import WindowResult

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from protocols.ids import Hash

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
        self._losses: list[float] = []
        self._seconds = 0.0

    def train(
        self,
        start: NDArray[np.float32],
        window: Window,
        *,
        end: NDArray[np.float32],
        on_step: Callable[[int, float], bool] = lambda step, loss: True,
        interrupted: Interrupted | None = None,
    ) -> WindowResult | None:
        """Train from ``start`` and write the trained vector to ``end`` (both float32 [parameters]).

        ``on_step(steps done, loss)`` is called after each step; False from it ends the window there: None is returned,
        ``end`` left alone, and ``interrupt`` gives what goes on from there as ``interrupted``, with the bits of a
        window that nothing had interrupted.
        """
        if interrupted is None:
            load_flat(self._model, start)
            optimizer = self._fresh_optimizer()
            self._losses, self._seconds = [], 0.0
        else:
            optimizer = self.take_up(interrupted)
        began = time.monotonic() - self._seconds
        while not _over(window, len(self._losses), self._seconds):
            self._losses.append(self._step(optimizer, window, len(self._losses)))
            self._seconds = time.monotonic() - began
            if not on_step(len(self._losses), self._losses[-1]):
                return None
        flatten(self._model, end)
        losses, self._losses = self._losses, []
        return WindowResult(
            end=end,
            steps=len(losses),
            tokens=len(losses) * self.config.inner.batch * self.config.context,
            loss=sum(losses) / len(losses),
            last_loss=losses[-1],
            seconds=self._seconds,
        )

    def interrupt(self, origin: Hash | None) -> Interrupted | None:
        """The window that ``train`` has left, which came from ``origin``, and the optimizer; None: nothing to keep.

        ``origin`` None: no window is to go on.
        """
        if origin is None:
            self._losses = []
        if self._optimizer is None or not (self._losses or not self.config.inner.reset):
            return None
        state = self._optimizer.state
        first: dict[str, torch.Tensor] = state.get(self._model.ordered[0], {})
        names = first.keys() - {"step"}
        vectors = {name: flatten_all([state[each][name] for each in self._model.ordered]) for name in sorted(names)}
        if self._losses:
            vectors[PARAMETERS] = flatten_all(self._model.ordered)
        return Interrupted(origin or NO_WINDOW, self._age, self._seconds, tuple(self._losses), vectors)

    def take_up(self, state: Interrupted) -> torch.optim.Optimizer:
        """Be where ``interrupt`` was; returns the optimizer. Raises ValueError for the state of another model."""
        optimizer = self._optimizer = make_optimizer(self._model, self.config.inner)
        self._age, self._losses, self._seconds = state.age, list(state.losses), state.seconds
        if PARAMETERS in state.vectors:
            load_flat(self._model, state.vectors[PARAMETERS])
        for name, vector in state.vectors.items():
            if name == PARAMETERS:
                continue
            for parameter, values in zip(self._model.ordered, split_flat(self._model, vector), strict=True):
                kept = optimizer.state[parameter]
                kept["step"] = torch.tensor(float(state.age))
                kept[name] = values.to(parameter.device)
        return optimizer

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
