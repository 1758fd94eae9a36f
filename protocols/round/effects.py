"""What a round machine asks of the world. The daemon, and the in-memory harness, carry these out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..tensors import PART_VALUES
from .timing import Timing

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ids import Hash, PeerId
    from ..messages import Body
    from ..ports import Buffer
    from ..state_payloads import StateChunk
    from ..statements import Statement
    from .chain import Head

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Setting:
    """What the manifest fixes for a cell: sizes, codecs, rule and outer optimizer.

    ``values`` counts the cell's parameters; ``tolerated`` is δ, the fraction of weight that may lie; ``deadline``
    bounds training and exchange, seconds; ``part`` is for tests with small vectors.
    """

    values: int
    update_codec: str
    result_codec: str
    rule: str
    tolerated: float
    lr: float
    momentum: float
    probation: int
    open: bool
    deadline: float = 600.0
    part: int = PART_VALUES
    timing: Timing = Timing()
    allowed: frozenset[PeerId] = frozenset()
    """Who may enter although the run is not ``open``."""

    def admits(self, peer: PeerId) -> bool:
        """Whether a stranger's commit is let in."""
        return self.open or peer in self.allowed


@dataclass(frozen=True, slots=True)
class Window:
    """What the trainer brought: ``drift`` (float32 [values]) = local − base, after ``steps`` over ``tokens``."""

    drift: Vector
    steps: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Train:
    """Train one window on ``base`` + ``drift`` and report it with ``machine.trained``."""

    parent: Hash
    round: int
    base: Vector
    drift: Vector


@dataclass(frozen=True, slots=True)
class Sign:
    """Journal and sign this body, then hand the statement to ``machine.receive`` as one's own.

    Where the journal holds another statement for the slot, that older one is handed in (5.2).
    """

    body: Body


@dataclass(frozen=True, slots=True)
class Flood:
    """Send a statement on every open stream but the one it came from."""

    statement: Statement
    source: PeerId | None


@dataclass(frozen=True, slots=True)
class Push:
    """Send a frame to one peer, behind what was sent to it before."""

    to: PeerId
    kind: str
    payload: list[Buffer]
    bulk: bool = False
    """It may wait until no bytes of a round do."""


@dataclass(frozen=True, slots=True)
class Work:
    """Run a pure function, in a thread if that is better; ``machine.done`` takes this effect and its value.

    ``about`` names what it was computed for: roster core, freeze core … A value that comes too late is dropped.
    """

    key: str
    parent: Hash
    about: bytes
    run: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Phase:
    """The round entered this phase; for the screen."""

    round: int
    name: str


@dataclass(frozen=True, slots=True)
class Sealed:
    """A certified seal was adopted: save ``head`` and its state, show the record.

    ``ages`` counts for each part of the drift the seals in a row that have not taken it.
    """

    head: Head
    params: Vector
    momentum: Vector
    drift: Vector
    ages: tuple[int, ...]
    record: Record


@dataclass(frozen=True, slots=True)
class Final:
    """More than 2/3 of the weight is ready on top of this seal: it is never undone."""

    seal: Hash
    round: int


@dataclass(frozen=True, slots=True)
class Votes:
    """The head's certificate grew by a late vote."""

    head: Head


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something a person should see: who is concerned and what happened."""

    peer: PeerId
    text: str


@dataclass(frozen=True, slots=True)
class KeepChunk:
    """A chunk of the state being loaded came and is right: keep it over a restart, if the disk has room."""

    chunk: StateChunk


@dataclass(frozen=True, slots=True)
class LoadPart:
    """Hand the chunks of this seal's state that came before a restart to ``machine.resumed``."""

    seal: Hash


@dataclass(frozen=True, slots=True)
class DropPart:
    """Chunks that were kept are not needed any more."""


@dataclass(frozen=True, slots=True)
class Syncing:
    """A state is being loaded: ``done`` of ``total`` chunks of 1 MiB are here, from ``donors`` that serve just now.

    ``position``: nobody serves, and this is the best place in a queue, the first being 1.
    """

    done: int
    total: int
    donors: int
    position: int | None


@dataclass(frozen=True, slots=True)
class Record:
    """A sealed round as this peer saw it. ``seconds`` per phase, ``payload`` = (encoded bytes, values) it committed.

    ``void``: no round was made, for ``reason``; ``synced``: the state came from a donor, rounds before it are skipped.
    """

    round: int
    view: int
    seal: Hash
    coordinator: PeerId
    contributors: tuple[PeerId, ...]
    weights: dict[PeerId, float]
    tokens: dict[PeerId, int]
    owners: tuple[PeerId, ...]
    state: Hash
    payload: tuple[int, int]
    seconds: dict[str, float]
    verdict: str
    void: bool = False
    reason: str = ""
    synced: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """One of several histories of the run that no rule ranks (5.12).

    ``head``, of ``round`` and ``view``, is its newest seal that is known here; ``weight`` of the fork's voters and lost
    (0 … 1) voted for that one. They part above seal ``fork`` of round ``since``; ``own``: this peer is on it.
    """

    head: Hash
    round: int
    view: int
    weight: float
    fork: Hash
    since: int
    own: bool


@dataclass(frozen=True, slots=True)
class Histories:
    """Histories among which a person has to choose (``machine.follow``); none: that is over."""

    branches: tuple[History, ...]


@dataclass(frozen=True, slots=True)
class Followed:
    """A person chose this seal: to be kept on the disk, as ``Link.encode`` writes it, so that a restart goes on.

    Without ``link``: it is reached, or was chosen no longer; nothing needs to be kept.
    """

    seal: Hash
    link: bytes


@dataclass(frozen=True, slots=True)
class Notice:
    """Something stands still until a person or another peer helps; without ``text``: no longer."""

    code: str
    text: str
    remedy: str


Told = Phase | Final | Votes | Trouble | Syncing | Histories | Notice
"""What is only told to a person."""
Part = KeepChunk | LoadPart | DropPart
Effect = Train | Sign | Flood | Push | Work | Sealed | Told | Followed | Part
