"""Text from a model: one byte after the other, each drawn from what the model expects after those before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .models.gpt import GPT


def sample(model: GPT, beginning: bytes, *, context: int, temperature: float, seed: int) -> Iterator[int]:
    """Bytes that go on after ``beginning`` (at least one byte), without end; of what is before, ``context`` count.

    Probabilities are softmax(logits / ``temperature``), drawn from a generator of ``seed``; 0 takes the likeliest.
    """
    draw = torch.Generator().manual_seed(seed)
    seen = list(beginning[-context:])
    while True:
        with torch.inference_mode():
            logits = model(torch.tensor([seen]))[0, -1].double()
            if temperature == 0:
                chosen = int(logits.argmax())
            else:
                chances = torch.softmax(logits / temperature, 0)
                chosen = int(torch.multinomial(chances, 1, generator=draw))
        yield chosen
        seen = [*seen, chosen][-context:]
