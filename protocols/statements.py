"""Signed statements: canonical bytes, signature, slot; encoded and decoded strictly.

Signed bytes = canonical msgpack of {"murmur/1", kind, run, cell, slot, fields}, so that no
signature can be replayed for another run, cell, kind or slot (redteam.md 22).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

from .canonical import pack, unpack
from .errors import RemoteError
from .ids import PROTOCOL, Hash, PeerId, digest
from .messages import BODIES, Body
from .shapes import data, identity, record, text
from .signing import verify

DOMAIN = f"murmur/{PROTOCOL}"
SIGNATURE_BYTES = 64
MAX_RAW = 512 * 1024
"""Bytes of the largest statement, a roster of 64 commits and as many readys."""
MAX_ITEMS = 4096
"""Items of the longest list in one, the Gram matrix of 64 rows, and room to spare."""
Sign = Callable[[bytes], bytes]
T = TypeVar("T")


@dataclass(frozen=True)
class Statement:
    """A body, who signed it, and the very bytes that were signed."""

    peer: PeerId
    body: Body
    raw: bytes
    signature: bytes

    @cached_property
    def hash(self) -> Hash:
        """Names this statement: BLAKE3 of signer and signed bytes (signatures can be malleable)."""
        return digest(b"statement", self.peer.encode(), self.raw)

    def encode(self) -> bytes:
        """The bytes that travel."""
        return self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        return pack({"peer": self.peer, "raw": self.raw, "signature": self.signature})


@dataclass(frozen=True, slots=True)
class Scope:
    """The run (its id, 32 bytes) and cell that statements belong to."""

    run: bytes
    cell: str

    def signed_bytes(self, body: Body) -> bytes:
        """What is signed for ``body``."""
        return pack(
            {
                "domain": DOMAIN,
                "kind": body.kind,
                "run": self.run,
                "cell": self.cell,
                "slot": body.slot(),
                "fields": body.to_wire(),
            }
        )

    def state(self, signer: PeerId, body: Body, sign: Sign) -> Statement:
        """Sign a body; only the journal calls this outside tests."""
        raw = self.signed_bytes(body)
        return Statement(signer, body, raw, sign(raw))

    def decode(self, encoded: bytes, *, sender: str) -> Statement:
        """Parse and verify a statement that ``sender`` handed over; raises RemoteError naming the sender."""
        try:
            outer = record(unpack(encoded, depth=1, items=0), _SIGNED)
            signer, raw, signature = cast("tuple[PeerId, bytes, bytes]", tuple(outer.values()))
            body = self._body(raw)
        except ValueError as error:
            raise RemoteError(sender, f"malformed statement: {error}") from error
        if not verify(signer, raw, signature):
            raise RemoteError(sender, f"{body.kind} of {signer} has a wrong signature")
        return Statement(signer, body, raw, signature)

    def shared(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """The value of ``make()``, a pure function of what ``key`` names and of this run.

        Many peers in one process may share it (``peer.virtual``); a peer of its own computes it.
        """
        return make()

    def _body(self, raw: bytes) -> Body:
        fields = record(unpack(raw, items=MAX_ITEMS), _OUTER)
        if fields["domain"] != DOMAIN:
            raise ValueError(f"signed for {fields['domain']!r}, not {DOMAIN!r}")
        if fields["run"] != self.run or fields["cell"] != self.cell:
            raise ValueError("signed for another run or cell")
        kind = BODIES.get(str(fields["kind"]))
        if kind is None:
            raise ValueError(f"unknown kind {fields['kind']!r}")
        body = kind.from_wire(fields["fields"])
        if body.slot() != fields["slot"]:
            raise ValueError(f"{body.kind} names a wrong slot")
        return body


def _any(value: object) -> Any:
    return value


_SIGNED = {"peer": identity, "raw": data(MAX_RAW), "signature": data(SIGNATURE_BYTES)}
_OUTER = {"domain": text(16), "kind": text(16), "run": data(32), "cell": text(64), "slot": data(64), "fields": _any}
