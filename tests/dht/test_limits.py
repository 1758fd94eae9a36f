"""Rates, penalties and the guard, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht import limits as lim
from dht.guard import Guard
from dht.limits import Bucket, Buckets, Gauge, Penalties, Rate, range_of
from protocols.ids import PeerId

MEMBER, NEWCOMER = PeerId("member"), PeerId("newcomer")
WHERE = "/ip4/203.0.113.7/tcp/4001"


@dataclass
class Clock:
    """Seconds, moved by hand."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 20)), max_size=60), st.floats(0.5, 50), st.floats(1, 100))
def test_a_bucket_never_gives_more_than_its_burst_and_rate(
    asks: list[tuple[float, float]], per_s: float, burst: float
) -> None:
    now, given_out = 0.0, 0.0
    bucket = Bucket(Rate(per_s, burst), now)
    for pause, amount in asks:
        now += pause
        if bucket.take(now, amount):
            given_out += amount
        assert given_out <= burst + per_s * now + 1e-6


def test_a_bucket_tells_how_long_a_debt_lasts_and_ignores_a_clock_set_back() -> None:
    bucket = Bucket(Rate(10, 5), 0.0)
    assert bucket.owe(0.0, 5) == 0.0
    assert bucket.owe(0.0, 20) == pytest.approx(2.0)
    assert not bucket.take(1.9, 0.5) and bucket.take(2.1, 0.9)
    assert not bucket.take(1.0, 1.0), "time that goes back refills nothing"


def test_of_many_users_whoever_was_quiet_longest_is_forgotten() -> None:
    buckets: Buckets[int] = Buckets(Rate(1, 1), most=3)
    assert all(buckets.take(user, 0.0) for user in (1, 2, 3))
    assert not buckets.take(1, 0.0), "and is now the latest"
    assert buckets.take(4, 0.0) and len(buckets) == 3
    assert not buckets.take(1, 0.0) and not buckets.take(3, 0.0)
    assert buckets.take(2, 0.0), "forgotten"


def test_penalties_double_to_an_hour_and_are_forgiven_slowly() -> None:
    penalties: Penalties[str] = Penalties()
    now, lengths = 0.0, []
    for _ in range(9):
        lengths.append(penalties.punish("liar", now))
        assert penalties.left("liar", now + lengths[-1] - 1) == pytest.approx(1.0)
        now += lengths[-1]
        assert penalties.left("liar", now) == 0.0
    assert lengths == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    now += 3 * lim.FORGIVEN_S
    assert penalties.punish("liar", now) == 30 * 2 ** (8 - 4), "an hour each: one while refused, four since"
    assert penalties.left("honest", now) == 0.0


def test_of_many_offenders_the_one_that_is_free_first_is_forgotten() -> None:
    penalties: Penalties[int] = Penalties(most=2)
    penalties.punish(1, 0.0)
    penalties.punish(2, 10.0)
    penalties.punish(3, 11.0)
    assert len(penalties) == 2 and not penalties.left(1, 12.0) and penalties.left(2, 12.0) and penalties.left(3, 12.0)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (WHERE, "203.0.113.0/24"),
        ("/ip6/2001:db8:1:2:3::4/tcp/1", "2001:db8:1:2::/64"),
        ("/ip6/::ffff:203.0.113.9/tcp/1", "203.0.113.0/24"),
        ("/ip4/127.0.0.1/tcp/1", None),
        ("/ip4/203.0.113.7/tcp/1/p2p/12D3/p2p-circuit", None),
        ("/dns4/example.org/tcp/1", None),
        ("", None),
    ],
)
def test_peers_of_one_address_range_share_a_number(address: str, expected: str | None) -> None:
    assert range_of(address) == expected


def test_a_newcomer_and_members_get_in_beside_one_that_floods() -> None:
    clock = Clock()
    guard = Guard(lambda: frozenset({MEMBER}), clock=clock)
    flooder = PeerId("flooder")
    for _ in range(100):  # ten seconds, a thousand knocks each
        clock.now += 0.1
        for _ in range(100):
            guard.greets(flooder, lambda: WHERE)
    assert guard.is_penalised(flooder)
    assert guard.greets(NEWCOMER, lambda: "/ip4/198.51.100.1/tcp/1") and guard.greets(MEMBER)
    assert guard.greets(PeerId("neighbour"), lambda: "/ip4/203.0.113.200/tcp/1"), "of the same range, too"


def test_free_keys_of_one_range_leave_room_for_others_and_keep_no_member_out() -> None:
    clock = Clock()
    guard = Guard(lambda: frozenset({MEMBER}), clock=clock)
    came = 0
    for number in range(5000):
        clock.now += 0.01
        came += guard.greets(PeerId(f"key {number}"), lambda: WHERE)
    assert came <= lim.HANDSHAKES_RANGE.burst + 50 * lim.HANDSHAKES_RANGE.per_s
    assert guard.greets(NEWCOMER, lambda: "/ip4/198.51.100.1/tcp/1") and guard.greets(MEMBER, lambda: WHERE)
    for number in range(5000):  # without an address (through relays) all strangers may run out, members not
        guard.greets(PeerId(f"relayed {number}"))
    assert not guard.greets(NEWCOMER) and guard.greets(MEMBER)


def test_offenders_are_cut_off_when_they_come_back_but_once_a_second_and_members_never() -> None:
    clock, cut = Clock(), list[PeerId]()
    guard = Guard(lambda: frozenset({MEMBER}), hang_up=cut.append, clock=clock)
    guard.punish(PeerId("liar"), "lied")
    assert not cut, "its last words may be read, and ours to it"
    for _ in range(50):
        assert not guard.greets(PeerId("liar")) and not guard.answers(PeerId("liar"), 10, 512)
        clock.now += 0.1
    assert 5 <= len(cut) <= 6
    guard.punish(MEMBER, "lied")
    assert guard.greets(MEMBER) and MEMBER not in cut
    clock.now += lim.PENALTY_S
    assert guard.greets(PeerId("liar")), "it may try again"


def test_long_directory_requests_cost_more_and_too_long_ones_are_refused() -> None:
    clock = Clock()
    guard = Guard(lambda: frozenset({MEMBER}), clock=clock)
    assert guard.answers(NEWCOMER, 16_500, lim.STORE_BYTES) and guard.answers(NEWCOMER, 16_500, lim.STORE_BYTES)
    assert not guard.answers(NEWCOMER, 16_500, lim.STORE_BYTES), "two records of the largest kind are a burst"
    assert all(guard.answers(MEMBER, 16_500, lim.STORE_BYTES) for _ in range(200)), "members store two hundred"
    assert not guard.answers(MEMBER, lim.FIND_BYTES + 1, lim.FIND_BYTES)
    refused = {gauge.name: gauge.refused for gauge in guard.gauges() if gauge.refused}
    assert refused == {"requests_peer": 1, "request_bytes": 1}


def test_who_sends_too_many_frames_is_read_more_slowly_and_slows_nobody_else() -> None:
    clock = Clock()
    guard = Guard(lambda: frozenset({MEMBER}), clock=clock, sleep=clock.sleep)

    async def scenario() -> list[float]:
        for _ in range(int(lim.FRAMES_EACH.burst)):
            await guard.pace(PeerId("flooder"), 100)
        times = [clock()]
        for peer in (MEMBER, NEWCOMER, PeerId("flooder")):
            await guard.pace(peer, 100)
            times.append(clock())
        return [after - before for before, after in zip(times, times[1:], strict=False)]

    assert asyncio.run(scenario()) == pytest.approx([0.0, 0.0, 1 / lim.FRAMES_EACH.per_s])


def test_what_was_asked_for_comes_fast_but_words_on_the_same_stream_are_paced() -> None:
    clock = Clock()
    guard = Guard(frozenset, clock=clock, sleep=clock.sleep)

    async def scenario() -> list[float]:
        times = [clock()]
        for size in (lim.SMALL_FRAME + 1, 0):
            for _ in range(int(lim.FRAMES_EACH.burst) + 5):
                await guard.pace_answers(PeerId("donor"), size)
            times.append(clock())
        return [after - before for before, after in zip(times, times[1:], strict=False)]

    assert asyncio.run(scenario()) == pytest.approx([0.0, 5 / lim.FRAMES_EACH.per_s])


def test_a_gauge_counts_what_it_turns_away() -> None:
    gauge = Gauge("seats", 2, "guests")
    assert [gauge.enter(), gauge.enter(), gauge.enter()] == [True, True, False]
    gauge.leave()
    assert gauge.enter() and (gauge.in_use, gauge.refused) == (2, 1)


def test_every_limit_is_a_number() -> None:
    rates = [value for value in vars(lim).values() if isinstance(value, Rate)]
    assert len(rates) >= 15 and all(0 < each.per_s < math.inf and each.burst >= 1 for each in rates)
