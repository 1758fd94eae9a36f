"""One decoder of the table: what it reads, what it may raise, and how much it may set aside."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.errors import MurmurError

if TYPE_CHECKING:
    from collections.abc import Callable

KIB = 1 << 10


@dataclass(frozen=True)
class Decoder:
    """``decode`` takes bytes, at most ``limit`` of them, and raises nothing but ``errors``.

    What it sets aside is bounded by ``spare`` + ``factor`` · bytes given: the limit on what a peer can make us hold.
    """

    name: str
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    examples: tuple[bytes, ...]
    limit: int
    factor: int = 4
    spare: int = 384 * KIB

    def take(self, raw: bytes) -> bool:
        """Whether the bytes are accepted; what is not declared is raised."""
        try:
            self.decode(raw)
        except self.errors as error:
            if isinstance(error, MurmurError):
                assert len(str(error)) < 2000 and str(error).isprintable(), (
                    f"no line for a person: {str(error)[:200]!r}"
                )
            return False
        return True

    def peak(self, raw: bytes) -> int:
        """Bytes set aside at the same time while these are decoded."""
        tracemalloc.start()
        try:
            self.take(raw)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def allowed(self, raw: bytes) -> int:
        """The most that ``peak`` may be."""
        return self.spare + self.factor * len(raw)
