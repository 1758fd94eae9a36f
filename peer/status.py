"""What a daemon says about itself: one frozen value, events that change it, and its JSON (contracts.md).

Pure: nothing here reads a clock or another module's insides. Unknown is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from .histories import Histories, History
from .status_parts import (
    Child,
    Daemon,
    Limit,
    Machine,
    ModelInfo,
    Pause,
    Peers,
    Phase,
    Processes,
    Reach,
    Reason,
    ReasonCode,
    RoundInfo,
    Ruling,
    Rung,
    RunInfo,
    Seed,
    Speed,
    State,
    Traffic,
    Verdict,
    Warned,
)

__all__ = [
    "Child",
    "Cleared",
    "Daemon",
    "Event",
    "Finalised",
    "Limit",
    "Limits",
    "Loaded",
    "Machine",
    "Measured",
    "ModelInfo",
    "Pause",
    "Paused",
    "Peers",
    "Phase",
    "PhaseEntered",
    "Processes",
    "Progressed",
    "Reach",
    "Reason",
    "ReasonCode",
    "RoundInfo",
    "Ruling",
    "RunInfo",
    "Rung",
    "Sealed",
    "Seed",
    "Speed",
    "State",
    "StateChanged",
    "Status",
    "Traffic",
    "Trained",
    "Verdict",
    "Warned",
    "apply",
    "to_json",
]

SCHEMA = 1
KEPT_VERDICTS = 16
KEPT_WARNINGS = 16
KEPT_SEEDS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The whole document. ``event`` counts the events applied; ``since`` = unix seconds of the last state change."""

    event: int = 0
    version: str
    protocol: int
    peer: str
    state: State = "starting"
    reason: Reason = Reason()
    since: float
    pause: Pause | None = None
    run: RunInfo = RunInfo()
    round: RoundInfo = RoundInfo()
    model: ModelInfo = ModelInfo()
    speed: Speed = Speed()
    peers: Peers = Peers()
    reach: Reach = Reach()
    seeds: tuple[Seed, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    traffic: Traffic = Traffic()
    processes: Processes = Processes()
    machine: Machine = Machine()
    limits: Mapping[str, Limit] = field(default_factory=dict)
    warnings: tuple[Warned, ...] = ()
    histories: tuple[History, ...] = ()


@dataclass(frozen=True, slots=True)
class StateChanged:
    """Event: the daemon does something else now; ``since`` in unix seconds."""

    state: State
    since: float
    reason: Reason = Reason()


@dataclass(frozen=True, slots=True)
class Paused:
    """Event: the owner wants a pause, or (None) none any more."""

    pause: Pause | None


@dataclass(frozen=True, slots=True)
class PhaseEntered:
    """Event: round ``number`` is in another phase, ``deadline_s`` seconds long at most."""

    number: int
    phase: Phase
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Progressed:
    """Event: so much of the phase is done."""

    progress: float | None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Trained:
    """Event: inner steps were done on ``tokens`` more tokens."""

    tokens: int
    train_loss: float | None
    speed: Speed = field(default_factory=Speed)


@dataclass(frozen=True, slots=True)
class Sealed:
    """Event: a round was certified and applied; ``void``: it came to nothing."""

    number: int
    state_hash: str
    held_out_loss: float | None = None
    void: bool = False


@dataclass(frozen=True, slots=True)
class Finalised:
    """Event: the last sealed round can never be undone."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Event: the held-out loss of a sealed state, nats per byte."""

    held_out_loss: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """Event: the model starts from a state, new or from a checkpoint."""

    parameters: int
    state_hash: str | None = None
    held_out_loss: float | None = None
    last_sealed: int | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """Event: the warning with this code is over."""

    code: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Event: all limits, by name."""

    limits: Mapping[str, Limit]


Part = RunInfo | Peers | Reach | Traffic | Processes | Machine
"""As events, these replace the part of the document that they describe."""
Event = (
    Part
    | Seed
    | Verdict
    | Warned
    | Histories
    | Cleared
    | Limits
    | StateChanged
    | Paused
    | Loaded
    | Measured
    | PhaseEntered
    | Progressed
    | Trained
    | Sealed
    | Finalised
)

_PARTS: dict[type, str] = {
    RunInfo: "run",
    Peers: "peers",
    Reach: "reach",
    Traffic: "traffic",
    Processes: "processes",
    Machine: "machine",
}


_FIELDS: dict[type, tuple[str, str]] = {
    Histories: ("histories", "branches"),
    Limits: ("limits", "limits"),
    Paused: ("pause", "pause"),
}
"""Events of which one field becomes one of the document."""


def apply(status: Status, event: Event) -> Status:
    """The document after ``event``."""
    return replace(status, event=status.event + 1, **_changes(status, event))


def _changes(status: Status, event: Event) -> dict[str, Any]:
    if type(event) in _PARTS:
        return {_PARTS[type(event)]: event}
    if type(event) in _FIELDS:
        name, field_name = _FIELDS[type(event)]
        return {name: getattr(event, field_name)}
    match event:
        case StateChanged():
            return {"state": event.state, "reason": event.reason, "since": event.since}
        case Seed():
            others = tuple(seed for seed in status.seeds if seed.address != event.address)
            return {"seeds": (*others, event)[-KEPT_SEEDS:]}
        case Verdict():
            rest = tuple(verdict for verdict in status.verdicts if verdict.round != event.round)
            return {"verdicts": tuple(sorted((*rest, event), key=lambda each: each.round))[-KEPT_VERDICTS:]}
        case Warned() | Cleared():
            kept = tuple(warning for warning in status.warnings if warning.code != event.code)
            return {"warnings": (*kept, event)[-KEPT_WARNINGS:] if isinstance(event, Warned) else kept}
        case _:
            return _round_changes(status, event)


def _round_changes(status: Status, event: Event) -> dict[str, Any]:
    now, model = status.round, status.model
    match event:
        case Loaded():
            loaded = replace(
                model,
                parameters=event.parameters,
                state_hash=event.state_hash,
                held_out_loss=event.held_out_loss,
            )
            return {"model": loaded, "round": replace(now, last_sealed=event.last_sealed, void=0)}
        case Measured():
            return {"model": replace(model, held_out_loss=event.held_out_loss)}
        case PhaseEntered():
            entered = replace(now, number=event.number, phase=event.phase, progress=0.0, deadline_s=event.deadline_s)
            return {"round": entered}
        case Progressed():
            return {"round": replace(now, progress=event.progress, deadline_s=event.deadline_s)}
        case Trained():
            tokens = (model.tokens or 0) + event.tokens
            return {"model": replace(model, tokens=tokens, train_loss=event.train_loss), "speed": event.speed}
        case Sealed():
            loss = model.held_out_loss if event.held_out_loss is None else event.held_out_loss
            return {
                "round": replace(now, last_sealed=event.number, void=(now.void or 0) + event.void, final=False),
                "model": replace(model, state_hash=event.state_hash, held_out_loss=loss),
            }
        case Finalised():
            return {"round": replace(now, final=True)}
        case _:
            raise TypeError(f"no event of the status: {event!r}")


def to_json(status: Status) -> dict[str, Any]:
    """The document as plain values; a loss that is not finite is unknown to a reader, hence None."""
    return {"schema": SCHEMA, **_plain(status)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
