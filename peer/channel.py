"""Messages between the daemon and its trainer: ``u32 LE length · msgpack map``, a strict set of kinds.

Both ends are ours, but a torn or mixed-up message must be an error at once and never a wrong number.
"""

from __future__ import annotations

from types import MappingProxyType, NoneType
from typing import Any, cast

import msgpack

from protocols.canonical import decode_bounded
from protocols.errors import LocalError

LIMIT = 4 << 20
"""Bytes of a message; the largest is the configuration with its list of shards."""

ITEMS = 1 << 12
"""Of a list in a message; the longest is that of shards."""

PREFIX = 4

_Fields = dict[str, tuple[type, ...]]

KINDS: MappingProxyType[str, _Fields] = MappingProxyType(
    {
        # daemon → trainer
        "setup": {"config": (dict,), "kept": (str, NoneType)},
        "train": {
            "id": (int,),
            "parent": (bytes,),
            "peer": (str,),
            "steps": (int, NoneType),
            "seconds": (float, int, NoneType),
            "first_step": (int,),
        },
        "evaluate": {"id": (int,)},
        "cancel": {"id": (int,)},
        "stop": {},
        "pause": {},
        # trainer → daemon
        "ready": {"parameters": (int,), "device": (str,)},
        "progress": {"id": (int,), "step": (int,), "loss": (float,)},
        "done": {
            "id": (int,),
            "steps": (int,),
            "tokens": (int,),
            "loss": (float,),
            "last_loss": (float,),
            "seconds": (float,),
        },
        "loss": {"id": (int,), "loss": (float,)},
        "cancelled": {"id": (int,)},
        "error": {"id": (int, NoneType), "error": (str,), "text": (str,), "remedy": (str,)},
    }
)
"""Every kind with its fields and their types. ``id`` ties replies to requests.

``kept``: a path for what a ``pause`` leaves, and a later trainer takes up; None: nothing is kept.
"""

Message = dict[str, Any]


def encode(kind: str, **fields: object) -> bytes:
    """One message with its length prefix; raises LocalError for one that the other end would refuse."""
    message = {"kind": kind, **fields}
    _check(message)
    raw: bytes = msgpack.packb(message)
    return length_prefix(len(raw)) + raw


def length_prefix(size: int) -> bytes:
    """The u32 in front of a message; raises LocalError above the limit."""
    if size > LIMIT:
        raise LocalError(f"a message of {size} bytes between daemon and trainer, limit {LIMIT}")
    return size.to_bytes(PREFIX, "little")


def size_of(prefix: bytes) -> int:
    """Bytes that follow this prefix; raises LocalError above the limit."""
    size = int.from_bytes(prefix, "little")
    length_prefix(size)
    return size


def decode(raw: bytes) -> Message:
    """The message in ``raw`` (without prefix); raises LocalError unless kind, fields and types are exact."""
    try:
        message = decode_bounded(raw, items=ITEMS, total=16 * ITEMS)
    except ValueError as error:
        raise LocalError("not a message between daemon and trainer") from error
    _check(message)
    return cast("Message", message)


def _check(message: object) -> None:
    kind = message.get("kind") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(kind, str) or kind not in KINDS:
        raise LocalError(f"unknown kind of message between daemon and trainer: {kind!r:.80}")
    types = KINDS[kind]
    if set(message) != {"kind", *types}:
        raise LocalError(f"message {kind} between daemon and trainer has missing or unknown fields")
    for name, allowed in types.items():
        if type(message[name]) not in allowed:
            raise LocalError(f"message {kind} between daemon and trainer: {name} is {message[name]!r:.80}")
