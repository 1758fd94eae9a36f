"""Agreeing on a protocol (multistream-select 1.0), and messages with a length before them, for the relay: bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .relay_stream import Reset

if TYPE_CHECKING:
    from collections.abc import Collection

_HELLO = "/multistream/1.0.0"
_NONE = "na"
LINE = 256
"""Bytes of a protocol's name."""
TRIES = 32
"""Names that a peer may propose before we give up."""


class Both(Protocol):
    """Something to read from and write to."""

    async def read_exactly(self, size: int) -> bytes:
        """So many bytes."""
        ...

    async def write(self, data: bytes) -> None:
        """All of it."""
        ...


async def negotiate(ends: Both, known: Collection[str]) -> str:
    """The first protocol that the peer proposes and that we know; raises Reset."""
    await ends.write(_line(_HELLO))
    if await _read_line(ends) != _HELLO:
        raise Reset
    for _ in range(TRIES):
        name = await _read_line(ends)
        if name in known:
            await ends.write(_line(name))
            return name
        await ends.write(_line(_NONE))
    raise Reset


async def select(ends: Both, protocol: str) -> None:
    """Propose one protocol on a stream of our own; raises Reset when the peer does not know it."""
    await ends.write(_line(_HELLO) + _line(protocol))
    if await _read_line(ends) != _HELLO or await _read_line(ends) != protocol:
        raise Reset


async def read_message(ends: Both, most: int) -> bytes:
    """A message of at most so many bytes; raises Reset when it is longer, before any of it is read."""
    size = shift = 0
    while True:
        (byte,) = await ends.read_exactly(1)
        size |= (byte & 0x7F) << shift
        shift += 7
        if size > most or shift > 28:
            raise Reset
        if not byte & 0x80:
            return await ends.read_exactly(size) if size else b""


async def write_message(ends: Both, message: bytes) -> None:
    """The message with its length before it."""
    await ends.write(prefixed(message))


def prefixed(data: bytes) -> bytes:
    """The bytes with their number before them, as a varint."""
    head, size = bytearray(), len(data)
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + data


async def _read_line(ends: Both) -> str:
    line = await read_message(ends, LINE)
    if not line.endswith(b"\n"):
        raise Reset
    return line[:-1].decode(errors="replace")


def _line(text: str) -> bytes:
    return prefixed(text.encode() + b"\n")
