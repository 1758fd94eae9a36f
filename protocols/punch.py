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
from .shapes import record, text


@dataclass(frozen=True, slots=True)
class Punch:
    """``/ip4|ip6/IP/udp/PORT/quic-v1``, or empty: there is no UDP, or this is the signal."""

    address: str = ""

    def encode(self) -> bytes:
        """The payload."""
        return pack({"address": self.address})

    @classmethod
    def decode(cls, payload: bytes, *, sender: str) -> Punch:
        """Parse an offer of ``sender``; raises RemoteError."""
        try:
            fields = record(unpack(payload, depth=1, items=1), {"address": _udp})
        except ValueError as error:
            raise RemoteError(sender, f"malformed punch: {error}") from error
        return cls(cast("str", fields["address"]))


def _udp(value: object) -> str:
    """An end of QUIC connections out in the world: nobody can be made to send packets into a home."""
    address = text(MAX_CHARS)(value)
    if address:
        ip = seen_ip(seen(address))
        if seen(address) != address or "/udp/" not in address or ip is None or not ip.is_global:
            raise ValueError("is no public end of a QUIC connection")
    return address
