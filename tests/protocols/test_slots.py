"""Whom a donor serves: two at a time, members first, nobody overtaken, nobody for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocols.ids import Hash, PeerId
from protocols.round.slots import QUEUE, SHIFT_S, SILENT_S, SLOTS, Desk

SEAL = Hash(b"s" * 32)


def named(*numbers: int) -> list[PeerId]:
    return [PeerId(f"p{number:03d}") for number in numbers]


def ask(desk: Desk, *peers: PeerId, now: float = 0.0, member: bool = False) -> list[bool]:
    return [desk.ask(peer, SEAL, now, member=member) for peer in peers]


def places(desk: Desk) -> dict[PeerId, int | None]:
    return {peer: place for peer, _, place in desk.news()}


def test_two_are_served_and_the_others_wait_in_order() -> None:
    desk, (a, b, c, d) = Desk(), named(1, 2, 3, 4)
    assert all(ask(desk, a, b, c, d))
    assert places(desk) == {a: 0, b: 0, c: 1, d: 2}
    assert places(desk) == {}, "told once"
    desk.leave(a, 1.0)
    assert places(desk) == {c: 0, d: 1}
    desk.leave(d, 1.0)
    assert places(desk) == {}


def test_members_come_before_strangers_and_take_a_stranger_s_slot() -> None:
    desk, (a, b, c, m, n, o) = Desk(), named(1, 2, 3, 4, 5, 6)
    ask(desk, a, b, c)
    ask(desk, m, member=True)
    assert set(desk.served) == {b, m}
    assert places(desk) == {b: 0, m: 0, a: 1, c: 2}, "who had to yield is the next"
    ask(desk, n, o, member=True)
    assert set(desk.served) == {m, n}
    assert places(desk) == {n: 0, o: 1, b: 2, a: 3, c: 4}


def test_the_silent_lose_their_place_and_strangers_take_turns() -> None:
    desk, (a, b, c, d) = Desk(), named(1, 2, 3, 4)
    ask(desk, a, b, c, d)
    places(desk)
    ask(desk, b, c, now=SILENT_S)
    desk.expire(SILENT_S + 0.1)
    assert places(desk) == {c: 0}
    assert set(desk.served) == {b, c} and not desk.waiting
    now = SILENT_S + SHIFT_S + 1
    ask(desk, b, c, d, now=now)
    desk.expire(now)
    assert set(desk.served) == {c, d} or set(desk.served) == {b, d}
    ask(desk, b, c, d, now=now + 1)
    desk.leave(next(iter(desk.waiting)), now + 1)
    ask(desk, *desk.served, now=now + 2 * SHIFT_S)
    desk.expire(now + 2 * SHIFT_S)
    assert len(desk.served) == 2, "with nobody waiting a slot is kept"


def test_beyond_the_queue_all_are_refused_but_a_member_takes_the_last_stranger_s_place() -> None:
    desk = Desk()
    peers = named(*range(SLOTS + QUEUE))
    assert all(ask(desk, *peers))
    late, member = named(500, 501)
    assert ask(desk, late) == [False] and desk.refused == 1
    places(desk)
    assert ask(desk, member, member=True) == [True]
    assert desk.refused == 2
    told = places(desk)
    assert told[peers[-1]] is None and told[member] == 0
    assert len(desk) == SLOTS + QUEUE


steps = st.tuples(
    st.sampled_from(["ask", "member", "leave", "expire"]), st.integers(0, 90), st.floats(0.0, 15.0, allow_nan=False)
)


@given(st.lists(steps, max_size=200))
def test_whatever_happens_bounds_hold_and_no_slot_is_idle_while_somebody_waits(
    events: list[tuple[str, int, float]],
) -> None:
    desk, now, told = Desk(), 0.0, dict[PeerId, int | None]()
    for what, number, later in events:
        now += later
        (peer,) = named(number)
        if what in {"ask", "member"}:
            taken = desk.ask(peer, SEAL, now, member=what == "member")
            assert taken == (peer in desk.served or peer in desk.waiting)
        elif what == "leave":
            desk.leave(peer, now)
        else:
            desk.expire(now)
        told |= places(desk)
        assert len(desk.served) <= SLOTS and len(desk.waiting) <= QUEUE
        assert not desk.waiting or len(desk.served) == SLOTS
        assert not desk.served.keys() & desk.waiting.keys()
        assert sorted(place for each in desk.waiting if (place := told[each]) is not None) == [
            *range(1, len(desk.waiting) + 1)
        ]
        assert all(told[each] == 0 for each in desk.served)
        strangers_served = any(not guest.member for guest in desk.served.values())
        assert not (strangers_served and any(guest.member for guest in desk.waiting.values()))
