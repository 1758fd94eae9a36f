"""The signed description of a run: TOML text in, frozen values out, and back (contracts.md).

``run_id`` = BLAKE3 of the canonical msgpack of everything but ``[signature]``. Rates and shares are
decimal or fraction *strings* in canonical form, so that no float's formatting can split a run in two.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import tomli_w
from blake3 import blake3

from .canonical import pack
from .errors import ConfigError
from .ids import PROTOCOL, Hash, PeerId
from .signing import verify as holds

if TYPE_CHECKING:
    from .canonical import Value
    from .statements import Sign

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Run:
    """``rounds`` 0 = open end; ``seed`` 0 … 2⁶³ − 1."""

    name: str
    seed: int
    protocol: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Model:
    """A built-in architecture, its named size, and its context in tokens."""

    kind: str
    size: str
    context: int


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard: its id, its size in bytes, BLAKE3 in lower-case hex."""

    id: str
    bytes: int
    hash: str


@dataclass(frozen=True, slots=True)
class Data:
    """``held_out`` = share of every shard that is never trained on. ``deal`` = who trains on what.

    ``round``: any peer on any shard, drawn anew for each round; ``fixed``: a peer keeps its shards.
    """

    name: str
    shards: tuple[ShardEntry, ...]
    held_out: str
    deal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window of training: either ``steps`` or ``seconds``. ``deadline``: seconds from the parent's certificate
    after which a peer commits what it has, and the longest that an exchange may take."""

    steps: int | None = None
    seconds: int | None = None
    deadline: int


@dataclass(frozen=True, slots=True)
class Inner:
    """The optimizer inside a window. ``clip`` "0" = none; ``warmup`` steps; ``reset``: zero moments each window;
    ``batch`` = sequences a step."""

    optimizer: str
    lr: str
    betas: tuple[str, str]
    weight_decay: str
    clip: str
    warmup: int
    reset: bool
    batch: int


@dataclass(frozen=True, slots=True)
class Outer:
    """Nesterov SGD on the combined update."""

    lr: str
    momentum: str


@dataclass(frozen=True, slots=True)
class Codec:
    """How updates and results are encoded. ``error_feedback`` = share of the codec's residual that stays drift."""

    update: str
    result: str
    block: int
    error_feedback: str


@dataclass(frozen=True, slots=True)
class Rule:
    """How rows are combined. ``tolerated`` = share of the weight that may lie; ``fallback`` has one value so far."""

    name: str
    fallback: str
    tolerated: str


@dataclass(frozen=True, slots=True)
class Members:
    """``founders`` stand from seal 0. ``open``: newcomers may enter; they stand with their first sealed commit
    beyond ``probation``. ``allow``: a private run, in which only founders and these keys take part; None: no list."""

    founders: tuple[PeerId, ...]
    open: bool
    probation: int
    allow: tuple[PeerId, ...] | None = None

    def admits(self, peer: PeerId) -> bool:
        """Whether a peer may be told anything of the run. Every member of any table is a founder, or was let in."""
        return self.allow is None or peer in self.founders or peer in self.allow


@dataclass(frozen=True, slots=True)
class Cells:
    """Names of the run's cells."""

    list: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run goes on from: seal ``seal`` of ``round`` of another run, whose state is a blob.

    The blob of ``bytes`` bytes and BLAKE3 ``hash`` holds parameters, then outer momentum, as little-endian float32:
    what the old seal's state root names. All hashes in lower-case hex.
    """

    run: str
    round: int
    seal: str
    bytes: int
    hash: str


@dataclass(frozen=True, slots=True)
class Signature:
    """Who signed, and the 64 bytes in lower-case hex."""

    peer: PeerId
    signature: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One run. Two peers with the same ``run_id`` agree in every value here."""

    run: Run
    model: Model
    data: Data
    round: Window
    inner: Inner
    outer: Outer
    codec: Codec
    rule: Rule
    members: Members
    cells: Cells
    start: Start | None = None
    signature: Signature | None = None


def run_id(manifest: Manifest) -> Hash:
    """The run's name on the wire, 32 bytes."""
    return Hash(blake3(pack(to_plain(replace(manifest, signature=None)))).digest())


def signed_bytes(manifest: Manifest) -> bytes:
    """What a founder signs: the domain, that it is a manifest, and the run id."""
    return pack({"domain": f"murmur/{PROTOCOL}", "kind": "manifest", "run": run_id(manifest)})


def sign(manifest: Manifest, peer: PeerId, sign_with: Sign) -> Manifest:
    """The manifest with the signature of ``peer``; raises ConfigError unless it is a founder."""
    if peer not in manifest.members.founders:
        raise ConfigError(
            f"{peer} is not among the manifest's founders", remedy="add it to [members] founders, or sign with theirs"
        )
    return replace(manifest, signature=Signature(peer, sign_with(signed_bytes(manifest)).hex()))


def verify(manifest: Manifest) -> PeerId:
    """The founder who signed; raises ConfigError for a manifest that no founder signed."""
    signature = manifest.signature
    if signature is None:
        raise ConfigError("the manifest is not signed", remedy="a founder signs it with `murmur run sign FILE`")
    if signature.peer not in manifest.members.founders:
        raise ConfigError(
            f"the manifest is signed by {signature.peer}, who is not a founder", remedy="a founder has to sign it"
        )
    if not holds(signature.peer, signed_bytes(manifest), bytes.fromhex(signature.signature)):
        raise ConfigError(
            "the manifest's signature does not fit: it was changed after signing",
            remedy="fetch the original, or let a founder sign it with `murmur run sign FILE`",
        )
    return signature.peer


def render(manifest: Manifest) -> str:
    """TOML text in the order of the contract; parsing it gives the same manifest."""
    return tomli_w.dumps(to_plain(manifest))


def to_plain(manifest: Manifest) -> dict[str, Value]:
    """Plain maps and lists; what is None is left out."""
    return {"schema": SCHEMA, **_section(manifest)}


def _section(value: object) -> dict[str, Value]:
    entries = ((field.name, getattr(value, field.name)) for field in fields(value))  # type: ignore[arg-type]
    return {name: _plain(entry) for name, entry in entries if entry is not None}


def _plain(value: object) -> Value:
    if isinstance(value, str | int):
        return value
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return _section(value)
