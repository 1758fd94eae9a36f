"""Frames of ``/murmur/1/punch``: two peers behind NATs agree to dial each other over QUIC at one instant.

Each tells where an observer sees its UDP socket, in a ``punch`` frame; a second one from the caller, empty, is the
signal. Each side's packets open its own NAT for the other's (Ford et al., "Peer-to-Peer Communication Across Network
Address Translators", 2005, section 3.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from .canonical import pack, unpack
from .errors import RemoteError
from .reach import MAX_CHARS, seen, seen_ip
from .shapes import integer, record, text

AFTER_MS = 1000


@dataclass(frozen=True, slots=True)
class Punch:
    """``/ip4|ip6/IP/udp/PORT/quic-v1``, or empty: there is no UDP, or this is the signal."""

    address: str = ""
    after_ms: int = 0
    """0 to ``AFTER_MS``. Of the signal: so much later than it comes the other side dials. Of an offer: by so much this
    side has to dial first, because what stands before it refuses what it has not asked for; 0: it need not."""

    def encode(self) -> bytes:
        """The payload."""
        return pack({"address": self.address, "after_ms": self.after_ms})

    @classmethod
    def decode(cls, payload: bytes, *, sender: str) -> Punch:
        """Parse an offer of ``sender``; raises RemoteError."""
        try:
            fields = record(unpack(payload, depth=1, items=2), {"address": _udp, "after_ms": integer(0, AFTER_MS)})
        except ValueError as error:
            raise RemoteError(sender, f"malformed punch: {error}") from error
        return cls(cast("str", fields["address"]), cast("int", fields["after_ms"]))


def _udp(value: object) -> str:
    """An end of QUIC connections out in the world: nobody can be made to send packets into a home."""
    address = text(MAX_CHARS)(value)
    if address:
        ip = seen_ip(seen(address))
        if seen(address) != address or "/udp/" not in address or ip is None or not ip.is_global:
            raise ValueError("is no public end of a QUIC connection")
    return address
