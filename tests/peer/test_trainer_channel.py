"""Messages between daemon and trainer: exact kinds, fields and types, or an error."""

from __future__ import annotations

import msgpack
import pytest

from peer import channel
from protocols.errors import LocalError

PROGRESS = {"kind": "progress", "id": 1, "step": 2, "loss": 3.5}


def test_a_message_survives_the_channel() -> None:
    raw = channel.encode("progress", id=1, step=2, loss=3.5)
    assert channel.size_of(raw[: channel.PREFIX]) == len(raw) - channel.PREFIX
    assert channel.decode(raw[channel.PREFIX :]) == PROGRESS


@pytest.mark.parametrize(
    "message",
    [
        {**PROGRESS, "kind": "progres"},
        {**PROGRESS, "kind": 3},
        {**PROGRESS, "extra": 1},
        {"kind": "progress", "id": 1, "step": 2},
        {**PROGRESS, "step": 2.0},
        {**PROGRESS, "step": True},
        [1, 2],
        None,
    ],
)
def test_anything_else_is_refused_on_both_ends(message: object) -> None:
    with pytest.raises(LocalError):
        channel.decode(msgpack.packb(message))
    if isinstance(message, dict) and isinstance(message["kind"], str):
        with pytest.raises(LocalError):
            channel.encode(**message)


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"\x81", channel.encode("stop")])
def test_bytes_that_are_no_message_are_refused(raw: bytes) -> None:
    with pytest.raises(LocalError):
        channel.decode(raw)


def test_a_size_above_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(LocalError, match="limit"):
        channel.size_of(b"\xff\xff\xff\xff")
    with pytest.raises(LocalError, match="limit"):
        channel.encode("error", id=None, error="LocalError", text="x" * channel.LIMIT, remedy="")
