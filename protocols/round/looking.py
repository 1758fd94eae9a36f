"""A first look at parts and results: hash, check, measure. Needs no state of the round, so any thread may take it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import tensors
from ..compression import get_codec
from ..ids import digest
from ..payloads import Look, Piece, Pieces

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ports import Buffer
    from .effects import Setting

LOOKED_AT = ("parts", "results")
"""Kinds of frames whose bytes are looked at."""


def look_at_part(data: Buffer, index: int, setting: Setting) -> Look:
    """A look at part ``index`` of an update."""
    return _look_at(data, values_of(index, setting), get_codec(setting.update_codec).norm2)


def look_at_result(data: Buffer, index: int, setting: Setting) -> Look:
    """A look at part ``index`` of a result."""
    return _look_at(data, values_of(index, setting), get_codec(setting.result_codec).bound)


def _look_at(data: Buffer, count: int, measure: Callable[[Buffer, int], float]) -> Look:
    try:
        return Look(digest(data), measure(data, count))
    except ValueError as error:
        return Look(digest(data), 0.0, str(error))


def values_of(index: int, setting: Setting) -> int:
    """How many values part ``index`` has."""
    start, stop = tensors.part_bounds(index, setting.values, setting.part)
    return stop - start


def looked_at(kind: str, frame: Pieces, setting: Setting) -> Pieces:
    """The frame with a look at each of its pieces."""
    take = look_at_part if kind == "parts" else look_at_result
    pieces = [
        Piece(each.index, each.data, each.path, each.norm2, take(each.data, each.index, setting))
        for each in frame.pieces
    ]
    return Pieces(frame.core, frame.maker, tuple(pieces))
