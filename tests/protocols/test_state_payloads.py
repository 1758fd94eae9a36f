"""Frames of a state transfer: what fits exactly is taken, anything else names the sender."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.errors import RemoteError
from protocols.frames import PAYLOAD_LIMITS
from protocols.ids import Hash
from protocols.state_payloads import MAX_PLACE, LeaveState, StateChunk, StateQueue, WantState

SENDER = "whoever sent it"
hashes = st.binary(min_size=32, max_size=32).map(Hash)


@given(hashes, st.none() | st.integers(0, MAX_PLACE))
def test_places_and_farewells_come_back_as_they_were(seal: Hash, position: int | None) -> None:
    place, leave = StateQueue(seal, position), LeaveState(seal)
    assert StateQueue.decode(place.encode(), sender=SENDER) == place
    assert LeaveState.decode(leave.encode(), sender=SENDER) == leave
    assert len(place.encode()) <= PAYLOAD_LIMITS["state-queue"]
    assert len(leave.encode()) <= PAYLOAD_LIMITS["leave-state"]


@given(st.binary(max_size=80))
def test_nonsense_names_its_sender(raw: bytes) -> None:
    for kind in (WantState, LeaveState, StateQueue, StateChunk):
        try:
            again = kind.decode(raw, sender=SENDER).encode()
        except RemoteError as error:
            assert error.peer == SENDER
        else:
            assert (b"".join(again) if isinstance(again, list) else again) == raw


def test_places_that_no_queue_has_are_refused() -> None:
    for number in (MAX_PLACE + 1, 0xFFFE):
        with pytest.raises(RemoteError, match="malformed state-queue"):
            StateQueue.decode(bytes(32) + number.to_bytes(2, "little"), sender=SENDER)
