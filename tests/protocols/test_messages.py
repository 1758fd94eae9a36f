"""Slots, limits and sizes of the messages: one slot for what may be said once, and room for what must be carried."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from protocols import messages
from protocols.canonical import pack, unpack
from protocols.frames import PAYLOAD_LIMITS
from protocols.ids import Hash
from protocols.messages import (
    BODIES,
    Body,
    Commit,
    Contribution,
    Freeze,
    Gram,
    Leg,
    Ready,
    Result,
    ResultRoot,
    Roster,
    Seal,
    Vote,
)
from protocols.statements import MAX_RAW, Scope, Statement
from tests.protocols.tables import peers

P, Q = peers(2)
H, OTHER = Hash(b"h" * 32), Hash(b"o" * 32)
EXAMPLES: dict[str, Body] = {
    "commit": Commit(H, H, (Leg(H, 25, 1000),), 7, direct=True),
    "ready": Ready(3, H, 2, (H,), bytes(H), 2, (P,)),
    "roster": Roster(3, 1, H, (b"commit",), (b"ready",), (P,), shrink=False),
    "gram": Gram(H, b"\xc0", (1.0, 0.5, 2.0), H),
    "freeze": Freeze(3, 1, H, (H,), (P,)),
    "result": Result(H, (P,), H),
    "seal": Seal(
        3, H, 2, H, bytes(H), (P,), (H,), (Contribution(P, H, 1000, 4, 0.25),), (ResultRoot(P, 1, H),), (Q,), H, H
    ),
    "vote": Vote(3, H),
}
SLOTS: dict[str, set[str]] = {
    "commit": {"parent"},
    "ready": {"view"},
    "roster": {"view", "rev"},
    "gram": {"roster"},
    "freeze": {"view", "rev"},
    "result": {"freeze", "out"},
    "seal": {"view"},
    "vote": {"view"},
}
"""The fields that make up each slot (5.2): a second statement that differs in any other field is two faces."""


def another(value: Any) -> Any:
    """A different value that fits the same field."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value - 1
    if isinstance(value, bytes):
        return bytes(OTHER)
    return ()


def test_every_kind_has_an_example_and_a_slot() -> None:
    assert set(BODIES) == set(EXAMPLES) == set(SLOTS)
    assert all(BODIES[kind] is type(body) for kind, body in EXAMPLES.items())


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_slot_is_made_of_these_fields_and_no_other(kind: str) -> None:
    body = EXAMPLES[kind]
    for field in fields(body):  # type: ignore[arg-type]
        changed = replace(body, **{field.name: another(getattr(body, field.name))})  # type: ignore[type-var]
        assert changed != body
        assert (changed.slot() != body.slot()) == (field.name in SLOTS[kind]), field.name


def test_a_share_is_named_by_who_was_put_out_in_which_order() -> None:
    slots = {Result(H, out, H).slot() for out in ((), (P,), (Q,), (P, Q), (Q, P))}
    assert len(slots) == 5
    assert all(len(slot) <= 64 for slot in slots)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_fields_come_back_from_the_wire_and_every_one_is_checked(kind: str) -> None:
    body = EXAMPLES[kind]
    wire = unpack(pack(body.to_wire()))
    assert type(body).from_wire(wire) == body
    assert isinstance(wire, dict)
    assert set(wire) == set(type(body).checks)
    for name in wire:
        for wrong in (None, "text", -1, 1.0e400, [None]):
            with pytest.raises(ValueError, match=name):
                type(body).from_wire({**wire, name: wrong})


BOUNDS: list[tuple[str, str, Any, Any]] = [
    ("ready", "kept", b"", b"x" * 33),
    ("ready", "unserved", [P] * 16, [P] * 17),
    ("ready", "commits", [bytes(H)] * 128, [bytes(H)] * 129),
    ("ready", "kept_view", 1 << 48, (1 << 48) + 1),
    ("roster", "rev", 2, 3),
    ("roster", "out", [P] * 16, [P] * 17),
    ("roster", "readys", [b"x" * 8192] * 128, [b"x" * 8193]),
    ("freeze", "rev", 2, 3),
    ("freeze", "out", [P] * 16, [P] * 17),
    ("result", "out", [], [P] * 17),
    ("seal", "freeze", b"", b"x" * 33),
    ("seal", "round", 1, 0),
    ("seal", "lost", [P] * 96, [P] * 97),
    ("seal", "results", [ResultRoot(P, 16, H).to_wire()] * 256, [ResultRoot(P, 17, H).to_wire()]),
]


@pytest.mark.parametrize(("kind", "name", "good", "bad"), BOUNDS, ids=[f"{kind}.{name}" for kind, name, _, _ in BOUNDS])
def test_limits_hold_to_the_last_item(kind: str, name: str, good: Any, bad: Any) -> None:
    wire = EXAMPLES[kind].to_wire()
    BODIES[kind].from_wire({**wire, name: good})
    with pytest.raises(ValueError, match=name):
        BODIES[kind].from_wire({**wire, name: bad})


def test_only_a_seal_without_contributions_is_void() -> None:
    seal = EXAMPLES["seal"]
    assert isinstance(seal, Seal)
    assert not seal.void
    assert replace(seal, contributions=()).void


SCOPE = Scope(b"r" * 32, "c" * 64)


def encoded(body: Body) -> bytes:
    return Statement(P, body, SCOPE.signed_bytes(body), b"s" * 64).encode()


def largest() -> tuple[bytes, bytes]:
    """The largest commit and ready that anybody can sign."""
    leg = Leg(H, messages.MAX_STEPS, messages.MAX_TOKENS)
    commit = Commit(H, H, (leg,) * messages.MAX_LEGS, 1 << 32, direct=True)
    ready = Ready(messages.MAX_VIEW, H, messages.MAX_VIEW, (H,) * 128, bytes(H), messages.MAX_VIEW, (P,) * 16)
    return encoded(commit), encoded(ready)


def test_what_anybody_can_sign_fits_into_a_roster() -> None:
    """Else one peer could sign something valid that makes the coordinator's roster malformed."""
    assert max(map(len, largest())) <= messages.MAX_STATEMENT


def test_a_roster_of_a_quorum_of_the_largest_swarm_fits_into_a_statement() -> None:
    """96 voters: 65 readys are more than two thirds of them, however large these are made."""
    commit, ready = largest()
    roster = Roster(messages.MAX_VIEW, 2, H, (commit,) * 128, (ready,) * 65, (P,) * 16, shrink=False)
    assert len(SCOPE.signed_bytes(roster)) <= MAX_RAW
    assert len(encoded(roster)) <= PAYLOAD_LIMITS["statement"]


def test_a_seal_of_the_largest_swarm_fits_into_a_statement() -> None:
    line = Contribution(P, H, messages.MAX_LEGS * messages.MAX_TOKENS, messages.MAX_PARTS, 1.0)
    seal = Seal(
        messages.MAX_VIEW, H, messages.MAX_VIEW, H, bytes(H), (P,) * 16, (H,) * 16,
        (line,) * 128, (ResultRoot(P, 16, H),) * 256, (P,) * 96, H, H,
    )  # fmt: skip
    assert len(encoded(seal)) <= PAYLOAD_LIMITS["statement"]
    assert len(SCOPE.signed_bytes(seal)) <= MAX_RAW
