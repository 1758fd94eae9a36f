"""Codecs: how a part's float32 values become bytes, and back (protocol.md 5.7).

Encoding is a function of the values alone: only elementwise IEEE operations, maxima and
casts, each rounded by itself, so threads, vector units and alignment cannot change a bit.
What a codec rounds away is not lost: of an update it stays in the peer's drift (``drift``).
"""

from __future__ import annotations

from ..errors import ConfigError
from .blocks import BLOCK_VALUES, Int4, Int8
from .codec import Codec
from .floats import Bfloat16, Float32

__all__ = ["BLOCK_VALUES", "CODECS", "RESULT_CODECS", "Codec", "get_codec"]

_CODECS: dict[str, Codec] = {codec.name: codec for codec in (Float32(), Bfloat16(), Int8(), Int4())}

CODECS = tuple(_CODECS)
"""Names of the codecs this version can encode and decode, the finest first."""

RESULT_CODECS = tuple(name for name in CODECS if name != "int4")
"""Those fine enough for results: nobody keeps what is rounded away there."""


def get_codec(name: str) -> Codec:
    """The codec called ``name``; raises ConfigError, whose remedy names the known ones."""
    codec = _CODECS.get(name)
    if codec is None:
        raise ConfigError(f"unknown codec {name!r}", remedy=f"choose one of {', '.join(CODECS)}")
    return codec
