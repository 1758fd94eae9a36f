"""The signed small messages of a round (protocol.md 5.2), as frozen values with their limits.

A body knows its ``kind``, its ``slot`` (one signer, one slot, one statement) and how it looks
on the wire. What makes a well-formed message *valid* is decided by the round machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from .canonical import pack
from .ids import digest
from .shapes import Check, boolean, data, hash32, identity, integer, list_of, real, record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .canonical import Value
    from .ids import Hash, PeerId

MAX_CONTRIBUTORS = 64
MAX_VOTERS = 96
"""Members in standing; above 64 contributors the seats of the round decide (5.4)."""
MAX_REDUCERS = 16
MAX_PARTS = 1 << 20
"""Parts of the largest model the protocol admits: 34 G values."""
MAX_LEGS = 3
MAX_STEPS = 1 << 24
MAX_TOKENS = 1 << 48
MAX_VIEW = 1 << 48
MAX_STATEMENT = 8 * 1024
"""Bytes of a commit or ready that travels inside a roster."""

MAX_REVISIONS = 2
"""Corrections of a roster or freeze within one view."""

FACES = 2
"""Statements of one signer for one slot that are kept, where both count: two prove that it signed twice."""

_VIEW = integer(0, MAX_VIEW)
_REV = integer(0, MAX_REVISIONS)
_PEERS = list_of(identity, MAX_REDUCERS)


class Record:
    """Something with named fields on the wire: subclasses are frozen dataclasses."""

    checks: ClassVar[Mapping[str, Check[Any]]]

    def to_wire(self) -> dict[str, Value]:
        """The fields as msgpack values."""
        values = {name: getattr(self, name) for name in self.checks}
        return {name: value if type(value) in _SCALARS else _plain(value) for name, value in values.items()}

    @classmethod
    def from_wire(cls, value: object) -> Self:
        """Parse decoded fields strictly; raises ValueError."""
        return cls(**record(value, cls.checks))


class Body(Record):
    """A record that is signed: one class for each kind of message."""

    kind: ClassVar[str]

    def slot(self) -> bytes:
        """The slot's bytes; two different statements of one signer, kind, cell and slot are a proof."""
        raise AssertionError("every kind defines its slot")


def _plain(value: object) -> Value:
    if isinstance(value, tuple):
        return [_plain(item) if isinstance(item, tuple | Record) else item for item in value]
    if isinstance(value, Record):
        return value.to_wire()
    return cast("Value", value)


_SCALARS = frozenset((bool, int, float, str, bytes))


def _view_slot(view: int) -> bytes:
    return view.to_bytes(8, "big")


@dataclass(frozen=True, slots=True)
class Leg(Record):
    """Training since one base: ``steps`` optimizer steps over ``tokens`` tokens, begun at seal ``base``."""

    base: Hash
    steps: int
    tokens: int

    checks = {"base": hash32, "steps": integer(0, MAX_STEPS), "tokens": integer(0, MAX_TOKENS)}


@dataclass(frozen=True, slots=True)
class Commit(Body):
    """contributor → flood: the Merkle root over this peer's encoded parts for the round after ``parent``.

    ``up`` is the uplink in kB/s (0 = unknown), ``direct`` whether others can dial this peer.
    """

    parent: Hash
    root: Hash
    legs: tuple[Leg, ...]
    up: int
    direct: bool

    kind = "commit"
    checks = {
        "parent": hash32,
        "root": hash32,
        "legs": list_of(Leg.from_wire, MAX_LEGS),
        "up": integer(0, 1 << 32),
        "direct": boolean,
    }

    def slot(self) -> bytes:
        """One commit for each parent."""
        return self.parent


@dataclass(frozen=True, slots=True)
class Ready(Body):
    """voter → flood: ready for ``view`` on top of certified seal ``head``, having seen these commits.

    ``head_view`` is the view of that seal. ``kept``: what this voter's last roster for the same parent was about
    (``Cast.base``) and that roster's view, empty and 0 without one; ``unserved``: reducers that owe it something.
    """

    view: int
    head: Hash
    head_view: int
    commits: tuple[Hash, ...]
    kept: bytes
    kept_view: int
    unserved: tuple[PeerId, ...]

    kind = "ready"
    checks = {
        "view": _VIEW,
        "head": hash32,
        "head_view": _VIEW,
        "commits": list_of(hash32, 2 * MAX_CONTRIBUTORS),
        "kept": data(32),
        "kept_view": _VIEW,
        "unserved": _PEERS,
    }

    def slot(self) -> bytes:
        """One ready for each view."""
        return _view_slot(self.view)


@dataclass(frozen=True, slots=True)
class Roster(Body):
    """coordinator → flood: who contributes; carries the commits and a quorum of readys as signed bytes.

    ``rev`` counts corrections within a view, ``out`` the reducers it does without. Without commits it announces a
    void seal; with ``shrink`` one that goes on without the voters whose ready is not attached (5.10).
    """

    view: int
    rev: int
    parent: Hash
    commits: tuple[bytes, ...]
    readys: tuple[bytes, ...]
    out: tuple[PeerId, ...]
    shrink: bool

    kind = "roster"
    checks = {
        "view": _VIEW,
        "parent": hash32,
        "commits": list_of(data(MAX_STATEMENT), 2 * MAX_CONTRIBUTORS),
        "readys": list_of(data(MAX_STATEMENT), 2 * MAX_CONTRIBUTORS),
        "rev": _REV,
        "out": _PEERS,
        "shrink": boolean,
    }

    def slot(self) -> bytes:
        """One roster for each view and revision."""
        return _view_slot(self.view) + bytes([self.rev])


@dataclass(frozen=True, slots=True)
class Gram(Body):
    """reducer → flood: the Gram matrix over the parts it owns.

    ``gram`` is the upper triangle, row-major doubles; ``have`` one bit per (contributor, own part);
    ``root`` the Merkle root of its per-part Grams.
    """

    roster: Hash
    have: bytes
    gram: tuple[float, ...]
    root: Hash

    kind = "gram"
    checks = {
        "roster": hash32,
        "have": data(MAX_CONTRIBUTORS * MAX_PARTS // 8),
        "gram": list_of(real, MAX_CONTRIBUTORS * (MAX_CONTRIBUTORS + 1) // 2),
        "root": hash32,
    }

    def slot(self) -> bytes:
        """One Gram for each roster."""
        return self.roster


@dataclass(frozen=True, slots=True)
class Freeze(Body):
    """coordinator → flood: the Grams that count, by statement hash, in order of their reducers' ids.

    ``out``: reducers that gave a Gram and no result, in the order in which their parts went to others.
    """

    view: int
    rev: int
    roster: Hash
    grams: tuple[Hash, ...]
    out: tuple[PeerId, ...]

    kind = "freeze"
    checks = {
        "view": _VIEW,
        "rev": _REV,
        "roster": hash32,
        "grams": list_of(hash32, MAX_REDUCERS),
        "out": _PEERS,
    }

    def slot(self) -> bytes:
        """One freeze for each view and revision."""
        return _view_slot(self.view) + bytes([self.rev])


@dataclass(frozen=True, slots=True)
class Result(Body):
    """reducer → flood: the Merkle root over its encoded result parts, in index order.

    The parts are those that came to it when the last of ``out`` was put out, or its first ones.
    """

    freeze: Hash
    out: tuple[PeerId, ...]
    root: Hash

    kind = "result"
    checks = {"freeze": hash32, "out": _PEERS, "root": hash32}

    def slot(self) -> bytes:
        """One result for each freeze and share."""
        return digest(b"share", self.freeze, *(each.encode() for each in self.out))


@dataclass(frozen=True, slots=True)
class Contribution(Record):
    """A contributor's line in a seal: its commit, what it trained, what arrived, what it weighed."""

    peer: PeerId
    commit: Hash
    tokens: int
    parts: int
    weight: float

    checks = {
        "peer": identity,
        "commit": hash32,
        "tokens": integer(0, MAX_LEGS * MAX_TOKENS),
        "parts": integer(0, MAX_PARTS),
        "weight": real,
    }


@dataclass(frozen=True, slots=True)
class ResultRoot(Record):
    """A reducer's result root in a seal, for the parts that came to it with the first ``stage`` of the seal's out."""

    peer: PeerId
    stage: int
    root: Hash

    checks = {"peer": identity, "stage": integer(0, MAX_REDUCERS), "root": hash32}


@dataclass(frozen=True, slots=True)
class Seal(Body):
    """coordinator → flood: the outcome of a round; every field is recomputed by every voter (5.9).

    Its hash names the round's outcome for ever; it holds no signatures and not its proposer. A void seal has no
    contributions and its parent's state; a shrink seal is a void one that names members ``lost``.
    """

    view: int
    parent: Hash
    round: int
    roster: Hash
    freeze: bytes
    out: tuple[PeerId, ...]
    grams: tuple[Hash, ...]
    contributions: tuple[Contribution, ...]
    results: tuple[ResultRoot, ...]
    lost: tuple[PeerId, ...]
    table: Hash
    state: Hash

    kind = "seal"
    checks = {
        "view": _VIEW,
        "parent": hash32,
        "round": integer(1, MAX_VIEW),
        "roster": hash32,
        "freeze": data(32),
        "out": _PEERS,
        "grams": list_of(hash32, MAX_REDUCERS),
        "contributions": list_of(Contribution.from_wire, 2 * MAX_CONTRIBUTORS),
        "results": list_of(ResultRoot.from_wire, MAX_REDUCERS * MAX_REDUCERS),
        "lost": list_of(identity, MAX_VOTERS),
        "table": hash32,
        "state": hash32,
    }

    @cached_property
    def packed(self) -> bytes:
        """Its canonical bytes, which are hashed again and again."""
        return pack(self.to_wire())

    @property
    def void(self) -> bool:
        """Whether no round was made: the state is the parent's."""
        return not self.contributions

    def slot(self) -> bytes:
        """One proposal for each view."""
        return _view_slot(self.view)


@dataclass(frozen=True, slots=True)
class Vote(Body):
    """voter → flood: this seal, in this view; given once, with all result bytes in hand."""

    view: int
    seal: Hash

    kind = "vote"
    checks = {"view": _VIEW, "seal": hash32}

    def slot(self) -> bytes:
        """One vote for each view."""
        return _view_slot(self.view)


BODIES: Mapping[str, type[Body]] = {
    body.kind: body for body in (Commit, Ready, Roster, Gram, Freeze, Result, Seal, Vote)
}
