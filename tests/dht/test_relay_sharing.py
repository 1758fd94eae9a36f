"""A relay's bandwidth: shared alike by circuits that have something to send, never above its rates, never left."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.relay_sharing import BURST_S, Sharing

KB = 1000


def jain(values: list[float]) -> float:
    """Jain's index: 1 where all are equal, 1/n where one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def serve(sharing: Sharing, sizes: dict[int, int], seconds: float, *, streams: int = 2) -> dict[int, int]:
    """What each circuit sent in so long, when each of its streams asks again as soon as it was granted."""
    sent = dict.fromkeys(sizes, 0)
    tickets = {}
    for flow, size in sizes.items():
        sharing.enter(flow)
        for _ in range(streams):
            tickets[sharing.ask(flow, size)] = flow
    now = 0.0
    while now < seconds:
        for ticket in sharing.granted(now):
            flow = tickets.pop(ticket)
            sent[flow] += sizes[flow]
            tickets[sharing.ask(flow, sizes[flow])] = flow
        wait = sharing.wait(now)
        assert wait is not None
        now += max(wait, 1e-6)
    return sent


@given(st.lists(st.integers(1500, 65_000), min_size=2, max_size=64))
@settings(deadline=None, max_examples=30)
def test_saturated_circuits_get_alike_whatever_the_size_of_their_pieces(sizes: list[int]) -> None:
    seconds = 2.0
    rate = 20 * max(sizes) * len(sizes) / seconds
    sent = serve(Sharing(rate, None), dict(enumerate(sizes)), seconds)
    assert jain([float(count) for count in sent.values()]) >= 0.98
    assert 0.9 * rate * seconds <= sum(sent.values()) <= rate * (seconds + BURST_S) + max(sizes)


@given(st.integers(1, 20), st.integers(1000, 64_000), st.floats(1e4, 1e7))
@settings(deadline=None, max_examples=30)
def test_no_circuit_is_faster_than_its_own_rate(flows: int, size: int, rate: float) -> None:
    seconds = 50 * size / rate
    sent = serve(Sharing(None, rate), dict.fromkeys(range(flows), size), seconds)
    for count in sent.values():
        assert 0.9 * rate * seconds <= count <= rate * (seconds + BURST_S) + 2 * size


def test_what_slow_circuits_leave_the_others_get() -> None:
    """64 KB/s for all; one circuit asks for 4 KB a second only: the other gets the rest."""
    sharing = Sharing(64.0 * KB, None)
    sharing.enter(1)
    sharing.enter(2)
    fast, slow, now = 0, 0, 0.0
    mine, its = sharing.ask(1, KB), sharing.ask(2, KB)
    asked = 1
    while now < 20:
        for ticket in sharing.granted(now):
            if ticket == mine:
                fast += KB
                mine = sharing.ask(1, KB)
            elif ticket == its:
                slow += KB
                its = 0
        if not its and asked < now * 4:
            its, asked = sharing.ask(2, KB), asked + 1
        now += 0.005
    assert slow == pytest.approx(80 * KB, rel=0.05)
    assert fast == pytest.approx(64 * 20 * KB - slow, rel=0.05)


def test_who_was_quiet_has_saved_nothing_up_and_who_sent_much_is_not_shut_out() -> None:
    sharing = Sharing(100.0 * KB, None)
    first = serve(sharing, {1: KB}, 10.0)
    sharing.enter(2)
    tickets = {sharing.ask(1, KB): 1, sharing.ask(2, KB): 2}
    sent = {1: 0, 2: 0}
    now = 10.0
    while now < 11:
        for ticket in sharing.granted(now):
            flow = tickets.pop(ticket, None)
            if flow is not None:
                sent[flow] += KB
                tickets[sharing.ask(flow, KB)] = flow
        now += 0.001
    assert first[1] > 900 * KB
    assert abs(sent[1] - sent[2]) <= 10 * KB and sum(sent.values()) > 90 * KB


def test_without_rates_everything_goes_at_once_and_who_left_gets_nothing() -> None:
    sharing = Sharing(None, None)
    sharing.enter(1)
    tickets = [sharing.ask(1, 10) for _ in range(5)]
    assert sharing.granted(0.0) == tickets
    assert sharing.wait(0.0) is None
    late = sharing.ask(1, 10)
    sharing.leave(1)
    assert late not in sharing.granted(1.0)
    assert sharing.wait(1.0) is None
