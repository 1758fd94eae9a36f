"""A byte-level GPT: pre-norm blocks, causal attention, ReLU² MLP, learned positions, no biases.

Plain on purpose (Vaswani et al. 2017; pre-norm, Xiong et al. 2020; ReLU², So et al. 2021).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from .layout import VOCABULARY, initial_vector, layout, offsets, parameter_count, shape_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["GPT", "flatten", "flatten_all", "initial_vector", "load_flat", "parameter_count", "split_flat"]


class Block(nn.Module):
    """One attention and one MLP branch on the residual stream of ``width``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.Parameter(torch.empty(width))
        self.qkv = nn.Parameter(torch.empty(3 * width, width))
        self.mix = nn.Parameter(torch.empty(width, width))
        self.mlp_norm = nn.Parameter(torch.empty(width))
        self.up = nn.Parameter(torch.empty(4 * width, width))
        self.down = nn.Parameter(torch.empty(width, 4 * width))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, time, width] → the same."""
        batch, time, width = x.shape
        qkv = functional.linear(_normed(x, self.attention_norm), self.qkv)  # [batch, time, 3·width]
        q, k, v = qkv.view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # [batch, heads, time, width/heads]
        x = x + functional.linear(mixed.transpose(1, 2).reshape(batch, time, width), self.mix)
        hidden = functional.linear(_normed(x, self.mlp_norm), self.up).relu().square()
        return x + functional.linear(hidden, self.down)


class GPT(nn.Module):
    """Bytes in, logits of the next byte out. Parameters are uninitialised until ``load_flat``."""

    def __init__(self, size: str, context: int) -> None:
        super().__init__()
        shape = shape_of(size)
        self.bytes = nn.Parameter(torch.empty(VOCABULARY, shape.width))
        self.positions = nn.Parameter(torch.empty(context, shape.width))
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.empty(shape.width))
        self.head = nn.Parameter(torch.empty(VOCABULARY, shape.width))
        named = dict(self.named_parameters())
        self.layout = layout(size, context)
        self.ordered = [named[tensor.name] for tensor in self.layout]

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, time ≤ context] → logits [batch, time, 256]."""
        x = functional.embedding(tokens, self.bytes) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(_normed(x, self.norm), self.head)

    def loss(self, windows: Tensor) -> Tensor:
        """Mean nats per byte over int64 [batch, context + 1], each byte predicted from those before it."""
        logits = self(windows[:, :-1])
        return functional.cross_entropy(logits.float().reshape(-1, VOCABULARY), windows[:, 1:].reshape(-1))


def load_flat(model: GPT, vector: NDArray[np.float32]) -> None:
    """Copy a float32 vector [parameters] into the model; raises ValueError when the length is another."""
    with torch.no_grad():
        for parameter, values in zip(model.ordered, split_flat(model, vector), strict=True):
            parameter.copy_(values)


def split_flat(model: GPT, vector: NDArray[np.float32]) -> Iterator[Tensor]:
    """A float32 vector [parameters] as tensors of the parameters' shapes, on the CPU; ValueError as above."""
    starts = offsets(model.layout)
    if vector.shape != (starts[-1],):
        raise ValueError(f"a vector of shape {vector.shape} for a model of {starts[-1]} parameters")
    for parameter, start in zip(model.ordered, starts, strict=False):
        yield torch.from_numpy(np.array(vector[start : start + parameter.numel()])).view(parameter.shape)


def flatten(model: GPT, out: NDArray[np.float32]) -> None:
    """Copy the model's parameters into ``out``, float32 [parameters]."""
    flatten_all(model.ordered, out)


def flatten_all(tensors: Sequence[Tensor], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Tensors in order as one float32 vector [values], into ``out`` if that is given."""
    if out is None:
        out = np.empty(sum(each.numel() for each in tensors), np.float32)
    start = 0
    for each in tensors:
        out[start : start + each.numel()] = each.detach().reshape(-1).float().cpu().numpy()
        start += each.numel()
    return out


def _normed(x: Tensor, gain: Tensor) -> Tensor:
    return functional.layer_norm(x, (x.shape[-1],), gain)
