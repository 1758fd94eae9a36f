"""The manifest of a new run: values measured on ``tiny`` (CONTRIBUTING.md has the figures)."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from .errors import ConfigError
from .ids import PROTOCOL
from .manifest import (
    Cells,
    Codec,
    Data,
    Inner,
    Manifest,
    Members,
    Model,
    Outer,
    Rule,
    Run,
    ShardEntry,
    Window,
    render,
)
from .manifest_text import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .ids import PeerId

CONTEXTS = MappingProxyType({"nano": 32, "tiny": 64, "small": 256, "base": 512})
"""Tokens of context of each size."""
DEFAULT_STEPS = 25
DEFAULT_SIZE = "tiny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What may differ between new runs; all else has one default."""

    name: str = "shakespeare"
    data: str = "shakespeare"
    """Name of the data: an embedded corpus, or a folder's."""
    seed: int = 0
    rounds: int = 0
    size: str = DEFAULT_SIZE
    steps: int = DEFAULT_STEPS
    codec: str = "float32"
    """Of updates; results are int8."""
    rule: str = "default"
    open: bool = False
    """Whether strangers may enter. Until deadlines exist, a member that goes away stops a run."""
    probation: int = 0
    allow: tuple[PeerId, ...] = ()
    """Keys of a private run, beside its founders'; empty: the run is not private."""


def default_manifest(choices: Choices, *, founders: Sequence[PeerId], shards: Sequence[ShardEntry]) -> Manifest:
    """An unsigned manifest of a new run over ``shards``; raises ConfigError for a choice that is not allowed."""
    if choices.size not in CONTEXTS:
        raise ConfigError(f"unknown model size {choices.size!r}", remedy=f"choose one of {', '.join(CONTEXTS)}")
    manifest = Manifest(
        run=Run(name=choices.name, seed=choices.seed, protocol=PROTOCOL, rounds=choices.rounds),
        model=Model(kind="gpt", size=choices.size, context=CONTEXTS[choices.size]),
        data=Data(name=choices.data, shards=tuple(shards), held_out="0.05", deal="round"),
        round=Window(steps=choices.steps, deadline=600),
        inner=Inner(
            optimizer="adamw",
            lr="0.0025",
            betas=("0.8", "0.95"),
            weight_decay="0.1",
            clip="1",
            warmup=3,
            reset=True,
            batch=16,
        ),
        outer=Outer(lr="0.9", momentum="0.5"),
        codec=Codec(update=choices.codec, result="int8", block=64, error_feedback="1"),
        rule=Rule(name=choices.rule, fallback="mean", tolerated="1/3"),
        members=Members(
            founders=tuple(founders), open=choices.open, probation=choices.probation, allow=choices.allow or None
        ),
        cells=Cells(list=("model",)),
    )
    return parse(render(manifest))  # the one place that knows what is allowed
