"""An invitation: one line of text with a run's id, where to find peers of it, and a recent final seal.

``murmur1`` + base32 (RFC 4648, lower case, no padding) of ``u16 BE length · body · check``. The body is canonical
msgpack of ``{"anchor": [round, seal] | nil, "peers": [[key, [address]]], "run": id}``, addresses without their
``/p2p/…`` end; ``check`` is the first 4 bytes of BLAKE3 over the body after a domain tag. It is a hint whom to ask,
and an anchor for the chain (protocol.md 6); whoever hands out invitations chooses both.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, cast

from .canonical import pack, unpack
from .errors import ConfigError, RemoteError
from .ids import HASH_BYTES, Hash, PeerId, digest, peer_id, public_key
from .shapes import hash32, integer, list_of, record, text

if TYPE_CHECKING:
    from .canonical import Value

PREFIX = "murmur"
VERSION = "1"
MAX_CHARS = 2048
"""Characters of an invitation, line breaks and blanks included."""
MAX_ADDRESSES = 4
MAX_ADDRESS_CHARS = 200
MAX_ROUND = 2**53 - 1

_LENGTH_BYTES, _CHECK_BYTES = 2, 4
_REMEDY = "copy the whole line again, or ask for a new one (`murmur invite`)"


@dataclass(frozen=True, slots=True)
class Anchor:
    """A final seal that the inviter vouches for."""

    round: int
    seal: Hash


@dataclass(frozen=True, slots=True)
class Invitation:
    """Raises ValueError when it would not fit into a line: too many addresses, or none that ends in a peer id."""

    run: bytes
    """The run's id, 32 bytes."""
    addresses: tuple[str, ...]
    """Multiaddrs ending in ``/p2p/<peer>``, at most four, the best first."""
    anchor: Anchor | None = None

    def __post_init__(self) -> None:
        if len(self.run) != HASH_BYTES:
            raise ValueError("a run id has 32 bytes")
        if len(self.addresses) > MAX_ADDRESSES or len(set(self.addresses)) != len(self.addresses):
            raise ValueError(f"more than {MAX_ADDRESSES} addresses, or one twice")
        for address in self.addresses:
            split(address)
        if self.anchor is not None and not 0 < self.anchor.round <= MAX_ROUND:
            raise ValueError("an anchor of no round")


def split(address: str) -> tuple[str, PeerId]:
    """``/ip4/…/tcp/…/p2p/ID`` → (``/ip4/…/tcp/…``, ID); raises ValueError."""
    head, separator, peer = address.rpartition("/p2p/")
    if not separator or not head.startswith("/") or not head.isascii() or not head.isprintable() or " " in head:
        raise ValueError(f"{address[:80]!r} is not an address of a peer")
    if len(head) > MAX_ADDRESS_CHARS:
        raise ValueError(f"an address of {len(head)} characters, limit {MAX_ADDRESS_CHARS}")
    try:
        public_key(peer)
    except RemoteError as error:
        raise ValueError(f"{address[:80]!r} does not end in a peer id") from error
    return head, PeerId(peer)


def is_meant(given: str) -> bool:
    """Whether somebody who gave this text meant an invitation, sound or not."""
    line = given.lstrip()[: len(PREFIX) + 1].lower()
    return line.startswith(PREFIX) and line[len(PREFIX) :].isdigit()


def encode(invitation: Invitation) -> str:
    """The line, without a line break."""
    found = [split(address) for address in invitation.addresses]
    peers: list[Value] = [
        [public_key(peer), [head for head, _ in heads]] for peer, heads in groupby(found, key=lambda each: each[1])
    ]
    anchor: Value = [invitation.anchor.round, invitation.anchor.seal] if invitation.anchor else None
    body = pack({"anchor": anchor, "peers": peers, "run": invitation.run})
    raw = len(body).to_bytes(_LENGTH_BYTES, "big") + body + _check(body)
    return f"{PREFIX}{VERSION}{base64.b32encode(raw).decode().rstrip('=').lower()}"


def decode(given: str) -> Invitation:
    """The invitation in ``given``, which may be broken by blanks and line ends. Raises ConfigError."""
    if len(given) > MAX_CHARS:
        raise ConfigError(f"an invitation has at most {MAX_CHARS} characters, not {len(given)}", remedy=_REMEDY)
    line = "".join(given.split()).lower()
    if not line.startswith(PREFIX):
        raise ConfigError(f"not an invitation: those begin with {PREFIX}{VERSION}", remedy=_REMEDY)
    if not line.startswith(PREFIX + VERSION):
        raise ConfigError(
            f"an invitation of another version ({line[:12]}…), this software reads {PREFIX}{VERSION}",
            remedy="update murmur, or ask for an invitation of this version",
        )
    return _parse(_body(line.removeprefix(PREFIX + VERSION)))


def _body(digits: str) -> bytes:
    """Undo the text and its check; raises ConfigError."""
    try:
        raw = base64.b32decode(digits.upper() + "=" * (-len(digits) % 8))
    except ValueError:  # binascii.Error, and for letters beyond ASCII
        raw = b""
        if any(each not in "abcdefghijklmnopqrstuvwxyz234567" for each in digits):
            raise ConfigError(
                "the invitation has characters that none has: letters and the digits 2 to 7 only", remedy=_REMEDY
            ) from None
    size = int.from_bytes(raw[:_LENGTH_BYTES], "big")
    body, check = raw[_LENGTH_BYTES : _LENGTH_BYTES + size], raw[_LENGTH_BYTES + size :]
    if len(raw) < _LENGTH_BYTES + size + _CHECK_BYTES:
        raise ConfigError("the invitation is cut off, or mistyped at its beginning", remedy=_REMEDY)
    if check != _check(body) or base64.b32encode(raw).decode().rstrip("=").lower() != digits:
        raise ConfigError("the invitation's checksum does not fit: a character is wrong or missing", remedy=_REMEDY)
    return body


def _check(body: bytes) -> bytes:
    return digest(b"murmur/1/invitation", body)[:_CHECK_BYTES]


def _parse(body: bytes) -> Invitation:
    """From here on the line is whole: what is wrong was made wrong."""
    try:
        fields = record(unpack(body, depth=4, items=MAX_ADDRESSES), _FIELDS)
        peers = cast("tuple[tuple[str, ...], ...]", fields["peers"])
        addresses = tuple(address for each in peers for address in each)
        return Invitation(cast("bytes", fields["run"]), addresses, cast("Anchor | None", fields["anchor"]))
    except ValueError as error:
        raise ConfigError(f"the invitation makes no sense: {error}", remedy="ask for a new one") from error


def _pair(value: object) -> list[object]:
    if type(value) is not list or len(value) != 2:
        raise ValueError("is not a pair")
    return value


def _anchor(value: object) -> Anchor | None:
    if value is None:
        return None
    number, seal = _pair(value)
    return Anchor(integer(1, MAX_ROUND)(number), hash32(seal))


def _addresses(value: object) -> tuple[str, ...]:
    key, heads = _pair(value)
    peer = peer_id(hash32(key))
    return tuple(f"{head}/p2p/{peer}" for head in list_of(text(MAX_ADDRESS_CHARS), MAX_ADDRESSES)(heads))


_FIELDS = {"anchor": _anchor, "peers": list_of(_addresses, MAX_ADDRESSES), "run": hash32}
