"""Unsigned frames of catching up: the chain of certified seals (protocol.md 6).

Whatever they say is checked: seals by the signatures of their voters, tables by hashes in a seal.
A chain is written as byte strings after their u32 LE length, so that decoding never sets aside more than it was sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from .canonical import pack, unpack
from .errors import RemoteError
from .frames import PAYLOAD_LIMITS
from .ids import HASH_BYTES, Hash
from .messages import MAX_STATEMENT, MAX_VOTERS
from .shapes import boolean, hash32, list_of, record
from .statements import MAX_RAW
from .table import Member, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .statements import Scope, Statement

MAX_LOCATOR = 48
MAX_LINKS = 16
"""Links of one reply: a certificate is up to 96 signatures to check."""
MAX_WORK = 448
"""Of a reply of several links, in signatures: to check them takes 45 ms, and nothing else is done meanwhile."""
ROWS_A_SIGNATURE = 6
"""Rows of a table that take as long as one signature."""
MAX_ROWS = 1 << 12
MAX_PROOF = 2 * MAX_VOTERS
"""Readys that show a seal final: of voters and lost."""
MAX_ANCHOR = 3 << 20
"""Bytes of a seal with its table that are shown together."""
_ROW_BYTES = 512
_SEAL_BYTES = MAX_RAW + 256
_REPLY_BYTES = PAYLOAD_LIMITS["chain"]
_REPLY_HEAD = 64


@dataclass(frozen=True, slots=True)
class AskChain:
    """A request for the seals after the newest one of ``locator`` (seal hashes, newest first) that both know.

    ``show``: the asker knows only the hash of that seal, from an invitation, and wants to see the seal itself.
    """

    locator: tuple[Hash, ...]
    show: bool = False

    def encode(self) -> bytes:
        """The payload."""
        return pack({"locator": list(self.locator), "show": self.show})

    @classmethod
    def decode(cls, payload: bytes, *, sender: str) -> AskChain:
        """Parse a request of ``sender``; raises RemoteError."""
        try:
            fields = record(unpack(payload, depth=2, items=MAX_LOCATOR), _ASK_CHECKS)
        except ValueError as error:
            raise RemoteError(sender, f"malformed ask-chain: {error}") from error
        return cls(cast("tuple[Hash, ...]", fields["locator"]), cast("bool", fields["show"]))


@dataclass(frozen=True, slots=True)
class Link:
    """A certified seal as it travels: proposal, votes, the table after it, and the readys that make it final, if any.

    Decoded statements have good signatures; nothing else is known of a link before ``links.walk``.
    """

    proposal: Statement
    votes: tuple[Statement, ...]
    table: Table
    final: tuple[Statement, ...] = ()

    def encode(self) -> bytes:
        """The link's share of a payload."""
        rows = [pack(self.table.members[each].to_wire()) for each in sorted(self.table.members)]
        votes, final = ([each.encode() for each in some] for some in (self.votes, self.final))
        return _blob(self.proposal.encode()) + _blobs(votes) + _blobs(rows) + _blobs(final)


@dataclass(frozen=True, slots=True)
class ChainReply:
    """``links`` on top of seal ``start`` (None: no seal in common) in order; ``more``: ask again from the last one.

    ``anchor``: the start itself, where the request was to show it, as ``Link.encode`` writes it without votes.
    ``size``: bytes of the payload that it came in.
    """

    start: Hash | None
    links: tuple[Link, ...]
    more: bool = False
    anchor: bytes = b""
    size: int = field(default=0, compare=False)

    @classmethod
    def fitting(cls, start: Hash | None, links: Sequence[Link], anchor: bytes = b"") -> ChainReply:
        """The first of ``links`` as far as a frame holds them."""
        room, left, count = _REPLY_BYTES - _REPLY_HEAD - len(anchor), MAX_WORK, 0
        for link in links[:MAX_LINKS]:
            room -= len(link.encode())
            left -= _work(len(link.votes) + len(link.final), len(link.table.members))
            if room < 0 or (left < 0 and count):
                break
            count += 1
        return cls(start, tuple(links[:count]), count < len(links), anchor)

    def encode(self) -> bytes:
        """The payload."""
        head = _blob(self.start or b"") + bytes([self.more]) + _blob(self.anchor) + _number(len(self.links))
        return head + b"".join(link.encode() for link in self.links)

    @classmethod
    def decode(cls, payload: bytes, scope: Scope, *, sender: str) -> ChainReply:
        """Parse a reply of ``sender`` and check every signature in it; raises RemoteError."""
        try:
            return cls._decode(payload, scope, sender)
        except ValueError as error:
            raise RemoteError(sender, f"malformed chain: {error}") from error

    @classmethod
    def _decode(cls, payload: bytes, scope: Scope, sender: str) -> ChainReply:
        reader = _Reader(payload)
        start, more, anchor = reader.blob(HASH_BYTES), reader.take(1), reader.blob(MAX_ANCHOR)
        if len(start) not in {0, HASH_BYTES} or more not in {b"\x00", b"\x01"}:
            raise ValueError("names no seal to start from")
        links: list[Link] = []
        left = MAX_WORK
        for _ in range(reader.number(MAX_LINKS)):
            links.append(_read_link(reader, scope, sender, left if links else None))
            left -= _work(len(links[-1].votes) + len(links[-1].final), len(links[-1].table.members))
        reader.end()
        if (links or more == b"\x01" or anchor) and not start:
            raise ValueError("links on top of nothing")
        if more == b"\x01" and not links:
            raise ValueError("more links, and none is here")
        if sum(bool(link.final) for link in links) > 1:
            raise ValueError("more than one seal shown final")
        return cls(Hash(start) if start else None, tuple(links), more == b"\x01", anchor, len(payload))


def read_link(encoded: bytes, scope: Scope, *, sender: str) -> Link:
    """Parse ``Link.encode`` and check every signature in it; raises RemoteError naming the sender."""
    try:
        reader = _Reader(encoded)
        link = _read_link(reader, scope, sender)
        reader.end()
    except ValueError as error:
        raise RemoteError(sender, f"malformed seal: {error}") from error
    return link


def _read_link(reader: _Reader, scope: Scope, sender: str, most: int | None = None) -> Link:
    # All is cut out before the first signature is checked: a frame cut short costs nothing.
    proposal, votes = reader.blob(_SEAL_BYTES), reader.blobs(MAX_VOTERS, MAX_STATEMENT)
    rows, final = reader.blobs(MAX_ROWS, _ROW_BYTES), reader.blobs(MAX_PROOF, MAX_STATEMENT)
    if most is not None and _work(len(votes) + len(final), len(rows)) > most:
        raise ValueError("too much to check at once")
    members = [Member.from_wire(unpack(row, depth=1, items=0)) for row in rows]
    if any(one.peer >= two.peer for one, two in zip(members, members[1:], strict=False)):
        raise ValueError("table out of order")
    return Link(
        scope.decode(proposal, sender=sender),
        tuple(scope.decode(each, sender=sender) for each in votes),
        Table({each.peer: each for each in members}),
        tuple(scope.decode(each, sender=sender) for each in final),
    )


def _work(statements: int, rows: int) -> int:
    """What it takes to check a link of so many statements beside its proposal, in signatures."""
    return 1 + statements + rows // ROWS_A_SIGNATURE


class _Reader:
    """Takes a payload apart from the front; raises ValueError where it is not what was asked for."""

    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = memoryview(raw), 0

    def take(self, size: int) -> bytes:
        if size > len(self._raw) - self._at:
            raise ValueError("cut short")
        self._at += size
        return bytes(self._raw[self._at - size : self._at])

    def number(self, limit: int) -> int:
        value = int.from_bytes(self.take(4), "little")
        if value > limit:
            raise ValueError(f"{value} where at most {limit} may be")
        return value

    def blob(self, limit: int) -> bytes:
        return self.take(self.number(limit))

    def blobs(self, count: int, limit: int) -> list[bytes]:
        return [self.blob(limit) for _ in range(self.number(count))]

    def end(self) -> None:
        if self._at != len(self._raw):
            raise ValueError("bytes after its end")


def _number(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _blob(data: bytes) -> bytes:
    return _number(len(data)) + data


def _blobs(some: Iterable[bytes]) -> bytes:
    blobs = [_blob(each) for each in some]
    return _number(len(blobs)) + b"".join(blobs)


_ASK_CHECKS = {"locator": list_of(hash32, MAX_LOCATOR), "show": boolean}
