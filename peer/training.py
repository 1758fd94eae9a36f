"""What a trainer is told: model, inner optimizer, data, one window of training. Needs no torch.

All of it crosses to the trainer process as plain msgpack values and is checked there again.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from protocols.errors import ConfigError
from protocols.manifest import ShardEntry

from .models import KINDS, parameter_count

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OPTIMIZERS = ("adamw", "sgd")
DEALS = ("round", "fixed")
MEND = "mend the manifest and sign it again with `murmur run sign`, or ask its founder to"
REPORT = "this is a fault of murmur itself: `murmur log` shows what led to it"


@dataclass(frozen=True, slots=True)
class InnerConfig:
    """The inner optimizer (manifest ``[inner]``). Defaults are those measured on ``tiny``."""

    optimizer: str = "adamw"
    """``adamw``, or ``sgd`` without momentum (clipping and decay apply to it as well)."""
    lr: float = 2.5e-3
    betas: tuple[float, float] = (0.8, 0.95)
    """A short memory of gradients: with zero moments in each window a longer one never fills."""
    weight_decay: float = 0.1
    """Decoupled, on matrices only: the gains of the norms are left alone."""
    clip: float = 1.0
    """Largest norm of a step's gradient; 0 = no clipping."""
    warmup: int = 3
    """Steps over which the rate rises to ``lr`` whenever the optimizer starts anew."""
    reset: bool = True
    """Zero moments at each window's start, so that a window can be replayed by anyone (protocol.md 5.3)."""
    batch: int = 16

    def __post_init__(self) -> None:
        numbers = (self.lr, *self.betas, self.weight_decay, self.clip)
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(f"unknown inner optimizer {self.optimizer!r}", remedy=f"one of {', '.join(OPTIMIZERS)}")
        if len(self.betas) != 2 or not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise ConfigError(
                "inner optimizer: lr, two betas, weight_decay and clip must be finite and not negative", remedy=MEND
            )
        if not 0 < self.lr <= 10 or max(self.betas) >= 1:
            raise ConfigError("inner optimizer: lr must be in (0, 10], betas below 1", remedy=MEND)
        if not 1 <= self.batch <= 4096 or not 0 <= self.warmup <= 1_000_000:
            raise ConfigError("inner optimizer: batch must be in 1 … 4096, warmup in 0 … 1,000,000", remedy=MEND)


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Which bytes are trained on (manifest ``[data]``), and where this machine has them.

    ``folder`` of files and folder of ``blobs`` named by hash: where those shards are that the embedded corpus has
    not. ``shards`` are what the run expects; the trainer refuses any others.
    """

    shards: tuple[ShardEntry, ...]
    name: str = "shakespeare"
    folder: str | None = None
    blobs: str | None = None
    held_out: float = 0.05
    deal: str = "round"

    def __post_init__(self) -> None:
        if not self.shards:
            raise ConfigError("the run names no shards", remedy=MEND)
        if not 0 < self.held_out <= 0.5:
            raise ConfigError(f"held_out is {self.held_out}, must be above 0 and at most 0.5", remedy=MEND)
        if self.deal not in DEALS:
            raise ConfigError(f"unknown deal {self.deal!r}", remedy=f"one of {', '.join(DEALS)}")


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """All that a trainer needs to know of a run. ``seed`` is the run's, 0 ≤ seed < 2⁶⁴."""

    data: DataConfig
    kind: str = "gpt"
    size: str = "tiny"
    context: int = 64
    seed: int = 0
    inner: InnerConfig = InnerConfig()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"unknown model kind {self.kind!r}", remedy=f"one of {', '.join(KINDS)}")
        if not 0 <= self.seed < 1 << 64:
            raise ConfigError("the run's seed must be in 0 … 2^64 − 1", remedy=MEND)
        parameter_count(self.size, self.context)

    @property
    def parameters(self) -> int:
        """Length of the flat vector."""
        return parameter_count(self.size, self.context)

    def to_plain(self) -> dict[str, Any]:
        """Values that msgpack carries."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Window:
    """One window of training of ``peer`` on top of the seal ``parent`` (32 bytes), protocol.md 5.3.

    Ends after ``steps``, or after ``seconds`` (at least one step), whichever is given. ``first_step`` numbers the
    first batch: a second window on the same parent goes on where the first ended and repeats no batch.
    """

    parent: bytes
    peer: str
    steps: int | None = None
    seconds: float | None = None
    first_step: int = 0

    def __post_init__(self) -> None:
        if len(self.parent) != 32:
            raise ConfigError(f"a seal's hash has 32 bytes, not {len(self.parent)}", remedy=REPORT)
        if (self.steps is None) == (self.seconds is None):
            raise ConfigError("a window needs either steps or seconds", remedy=MEND)
        if (self.steps is not None and self.steps < 1) or (self.seconds is not None and not 0 < self.seconds < 1e6):
            raise ConfigError("a window needs at least one step or some time", remedy=MEND)


@dataclass(frozen=True, slots=True)
class WindowResult:
    """What a window came to. ``end`` is float32 [parameters]; ``loss`` the mean over steps, in nats per byte."""

    end: NDArray[np.float32]
    steps: int
    tokens: int
    loss: float
    last_loss: float
    seconds: float


def config_from_plain(plain: dict[str, Any]) -> TrainConfig:
    """The inverse of ``TrainConfig.to_plain``; raises ConfigError for missing, extra or wrong fields."""
    try:
        inner = dict(plain["inner"])
        data = dict(plain["data"])
        inner["betas"] = tuple(inner["betas"])
        data["shards"] = tuple(ShardEntry(**entry) for entry in data["shards"])
        rest = {name: plain[name] for name in plain if name not in ("inner", "data")}
        return TrainConfig(inner=InnerConfig(**inner), data=DataConfig(**data), **rest)
    except (KeyError, TypeError, ValueError) as error:
        names = ", ".join(field.name for field in fields(TrainConfig))
        raise ConfigError(f"not a training configuration ({error}); it has {names}", remedy=REPORT) from error
