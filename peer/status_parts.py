"""The parts of the status document, as frozen values. Unknown is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["starting", "seeking", "syncing", "training", "paused", "finishing", "stopping"]
ReasonCode = Literal[
    "none", "user", "schedule", "idle", "battery", "program", "gpu_busy", "temperature", "quota", "memory", "disk",
    "no_data", "no_peers", "key_in_use",
]  # fmt: skip
Phase = Literal["train", "commit", "roster", "exchange", "reduce", "check", "seal", "apply"]
Ruling = Literal["pending", "accepted", "late", "rejected", "void"]
Rung = Literal["unknown", "public", "mapped", "ipv6", "punched", "relayed", "none"]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the state is what it is."""

    code: ReasonCode = "none"
    text: str = ""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run that this daemon serves; ``id`` in hex."""

    id: str | None = None
    name: str | None = None
    size: str | None = None
    cell: str | None = None


@dataclass(frozen=True, slots=True)
class RoundInfo:
    """``progress`` of the phase in 0 … 1; ``deadline_s`` = seconds until something is due.

    ``void`` counts the void rounds since the start; ``final``: whether ``last_sealed`` is.
    """

    number: int | None = None
    phase: Phase | None = None
    progress: float | None = None
    deadline_s: float | None = None
    last_sealed: int | None = None
    void: int | None = None
    final: bool | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """``tokens`` trained on by this peer; losses in nats per byte; ``state_hash`` in hex."""

    parameters: int | None = None
    tokens: int | None = None
    train_loss: float | None = None
    held_out_loss: float | None = None
    state_hash: str | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """Of this peer's inner steps."""

    steps_per_s: float | None = None
    tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Peers:
    """Open connections by kind."""

    total: int = 0
    direct: int = 0
    punched: int = 0
    relayed: int = 0


@dataclass(frozen=True, slots=True)
class Reach:
    """How others reach this peer, and why it thinks so."""

    rung: Rung = "unknown"
    evidence: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seed:
    """An address that was given to start from."""

    address: str
    state: Literal["ok", "failed", "trying"]
    error: str | None = None
    retry_s: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of this peer's update in a round."""

    round: int
    verdict: Ruling
    code: str = ""
    text: str = ""
    weight: float | None = None
    score: float | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes; ``month`` = this calendar month, ``cap`` None = none."""

    sent: int | None = None
    received: int | None = None
    month: int | None = None
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Daemon:
    """Process id and resident bytes."""

    pid: int | None = None
    rss: int | None = None


@dataclass(frozen=True, slots=True)
class Child:
    """The same of a child, and how often it had to be started again."""

    pid: int | None = None
    rss: int | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Processes:
    """All processes of this peer."""

    daemon: Daemon = Daemon()
    p2pd: Child = Child()
    trainer: Child = Child()


@dataclass(frozen=True, slots=True)
class Machine:
    """What all these processes take of the owner's machine, and what they are held to.

    ``cpu`` in cores, ``disk`` bytes of the home; the trainer has ``threads``, and data at most ``disk_cap`` bytes.
    """

    cpu: float | None = None
    cores: int | None = None
    threads: int | None = None
    disk: int | None = None
    disk_free: int | None = None
    disk_cap: int | None = None


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning, shown until cleared. Also an event: it replaces the warning with the same code."""

    code: str
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """What others may make this peer hold or do: ``in_use`` None for a rate, ``refused`` since the start."""

    limit: float
    in_use: float | None = None
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Pause:
    """Why nothing is trained: the owner wants it so, since and until then, unix seconds; None = until they say so."""

    since: float
    until: float | None = None
