"""What a pause leaves of a trainer, window in flight and optimizer, in one file: it goes on bit for bit from there."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3
from safetensors import SafetensorError
from safetensors.numpy import load, save

from protocols.canonical import Value, pack
from protocols.ids import Hash, digest

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from .training import Window

PARAMETERS = "parameters"
LOSSES = "losses"
NO_WINDOW = Hash(bytes(32))


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A learner between two steps. ``age`` = steps of its optimizer, ``seconds`` spent on the window in flight."""

    origin: Hash
    """Which window that is (``origin_of``), or ``NO_WINDOW``."""
    age: int
    seconds: float
    losses: tuple[float, ...]
    """Of the window's steps so far; empty: no window is in flight, only the optimizer goes on."""
    vectors: dict[str, NDArray[np.float32]]
    """``parameters``, and each of the optimizer's moments by its name in torch; float32 [parameters] each."""


def origin_of(window: Window, start: NDArray[np.float32]) -> Hash:
    """A hash of all that a window's steps follow from: which one it is, and what it started from."""
    fields: list[Value] = [window.parent, window.peer, window.steps, repr(window.seconds), window.first_step]
    return digest(pack(fields), blake3(start.data.cast("B"), max_threads=blake3.AUTO).digest())


def write(path: Path, state: Interrupted) -> None:
    """Replace the file at ``path``; raises OSError. Not synced: it says itself whether it is whole."""
    body = save({**state.vectors, LOSSES: np.array(state.losses, np.float64)})
    about = {"origin": state.origin.hex(), "age": state.age, "seconds": state.seconds}
    head = json.dumps({**about, "body": _hash(body)}).encode()
    temporary = path.with_suffix(".new")
    with temporary.open("wb") as file:
        file.write(len(head).to_bytes(4, "little") + head + body)
    temporary.replace(path)


def read(path: Path, parameters: int) -> Interrupted | None:
    """What ``write`` left for a model of so many parameters; None where there is nothing, or not all of it."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, SafetensorError):
        raw = path.read_bytes()
        size = int.from_bytes(raw[:4], "little")
        about: dict[str, Any] = json.loads(raw[4 : 4 + size])
        body = raw[4 + size :]
        if about["body"] != _hash(body):
            return None
        vectors = load(body)
        losses = tuple(vectors.pop(LOSSES).tolist())
        if any(each.shape != (parameters,) or each.dtype != np.float32 for each in vectors.values()):
            return None
        age, seconds = int(about["age"]), float(about["seconds"])
        if age < len(losses) or not math.isfinite(seconds):
            return None
        return Interrupted(Hash(bytes.fromhex(about["origin"])), age, seconds, losses, vectors)
    return None


def _hash(body: bytes) -> str:
    return blake3(body, max_threads=blake3.AUTO).hexdigest()
