"""What a relay grants: never more than its limits, whoever asks in whatever order, and everything is given back."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dht.relay_limits import BUFFERS, WINDOW, WINDOW_MOST, Admission, End, Refusal, RelayLimits, address_key
from protocols.errors import ConfigError

SMALL = RelayLimits(
    reservation_s=10,
    reservations=4,
    reservations_ip=2,
    circuits=5,
    circuits_peer=2,
    circuits_ip=3,
    connections=6,
    connections_ip=3,
    requests_ip=1e6,
)
PEERS = [f"peer{number}" for number in range(6)]
IPS = ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
WHO = st.builds(End, st.sampled_from(PEERS), st.sampled_from(IPS), st.booleans() | st.just(False))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), WHO, WHO),
        st.tuples(st.just("open"), WHO, WHO),
        st.tuples(st.just("close"), WHO, WHO),
        st.tuples(st.just("leave"), WHO, WHO),
        st.tuples(st.just("wait"), WHO, WHO),
    ),
    max_size=60,
)


@given(STEPS)
@settings(deadline=None)
def test_no_order_of_requests_gets_more_than_the_limits_and_none_below_them_is_refused(
    steps: list[tuple[str, End, End]],
) -> None:
    admission, now = Admission(SMALL), 0.0
    reserved: dict[str, tuple[str, float]] = {}
    circuits: dict[int, tuple[End, End]] = {}
    for what, one, two in steps:
        if what == "wait":
            now += 4.0
            reserved = {peer: held for peer, held in reserved.items() if held[1] > now}
        elif what == "leave":
            admission.leave(one.peer)
            reserved.pop(one.peer, None)
        elif what == "close" and circuits:
            number = next(iter(circuits))
            admission.close(number)
            admission.close(number)  # a second time changes nothing
            del circuits[number]
        elif what == "reserve":
            answer = admission.reserve(one, now)
            others = [ip for peer, (ip, _) in reserved.items() if peer != one.peer]
            fits = not one.relayed and len(others) < 4 and others.count(one.ip) < 2
            assert isinstance(answer, float | int) == fits, answer
            if fits:
                reserved[one.peer] = (one.ip, now + 10)
        elif what == "open":
            answer = admission.open(one, two, now)
            peers = Counter(peer for ends in circuits.values() for peer in {end.peer for end in ends})
            ips = Counter(ip for ends in circuits.values() for ip in {end.ip for end in ends})
            fits = (
                not (one.relayed or two.relayed)
                and two.peer in reserved
                and one.peer != two.peer
                and len(circuits) < 5
                and all(peers[end.peer] < 2 and ips[end.ip] < 3 for end in (one, two))
            )
            assert (not isinstance(answer, Refusal)) == fits, answer
            if not isinstance(answer, Refusal):
                circuits[answer] = (one, two)
        assert admission.reservations(now) == len(reserved)
        assert admission.circuits == len(circuits)
    for number in circuits:
        admission.close(number)
    assert admission.circuits == 0 and not admission._by_peer and not admission._by_ip


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(IPS)), max_size=60))
def test_connections_are_counted_in_total_and_by_address(steps: list[tuple[bool, str]]) -> None:
    admission, open_now = Admission(SMALL), Counter[str]()
    for opens, ip in steps:
        if opens:
            answer = admission.connect(ip)
            assert (answer is None) == (open_now.total() < 6 and open_now[ip] < 3)
            open_now[ip] += answer is None
        elif open_now[ip]:
            admission.disconnect(ip)
            open_now[ip] -= 1
        assert admission.connections == open_now.total()


def test_each_refusal_is_told_apart_and_counted() -> None:
    admission = Admission(SMALL)
    here, there = (IPS[0], IPS[1])
    assert isinstance(admission.reserve(End("a", here), 0.0), float)
    assert isinstance(admission.reserve(End("b", here), 0.0), float)
    assert admission.reserve(End("c", here), 0.0) == Refusal.RESERVATIONS_IP
    assert isinstance(admission.reserve(End("b", here), 1.0), float)  # renewing is no second one
    assert admission.reserve(End("c", there, relayed=True), 1.0) == Refusal.RELAYED
    assert admission.open(End("c", there, relayed=True), End("a", here), 1.0) == Refusal.RELAYED
    assert admission.open(End("c", there), End("d", there), 1.0) == Refusal.NO_RESERVATION
    assert [admission.open(End("c", there), End("a", here), 1.0) for _ in range(3)] == [1, 2, Refusal.CIRCUITS_PEER]
    assert admission.open(End("d", there), End("b", here), 1.0) == 3
    assert admission.open(End("e", IPS[2]), End("b", here), 1.0) == Refusal.CIRCUITS_IP
    assert admission.open(End("c", there), End("a", here), 10.0) == Refusal.NO_RESERVATION  # a's has run out, b's not
    assert admission.reservations(10.9) == 1 and admission.reservations(11.0) == 0
    assert admission.refused == {
        Refusal.RESERVATIONS_IP: 1,
        Refusal.RELAYED: 2,
        Refusal.NO_RESERVATION: 2,
        Refusal.CIRCUITS_PEER: 1,
        Refusal.CIRCUITS_IP: 1,
    }


def test_only_the_allowed_reserve_and_others_lose_what_they_have() -> None:
    admission = Admission(RelayLimits())
    for peer in "ab":
        admission.reserve(End(peer, IPS[0]), 0.0)
    admission.allow(frozenset("a"))
    assert admission.reservations(0.0) == 1
    assert admission.reserve(End("b", IPS[0]), 0.0) == Refusal.NOT_ALLOWED
    assert admission.open(End("b", IPS[0]), End("a", IPS[0]), 0.0) == 1  # whom the allowed are reached by is open
    admission.allow(None)
    assert isinstance(admission.reserve(End("b", IPS[0]), 0.0), float)


def test_one_address_cannot_ask_without_end() -> None:
    admission = Admission(dataclasses.replace(SMALL, requests_ip=1.0))
    answers = [admission.reserve(End("a", IPS[0]), 0.0) for _ in range(25)]
    assert answers.count(Refusal.RATE) == 5 and answers[-1] == Refusal.RATE
    assert isinstance(admission.reserve(End("b", IPS[1]), 0.0), float)
    assert isinstance(admission.reserve(End("a", IPS[0]), 2.0), float)


def test_who_dials_without_end_keeps_nobody_at_its_address_from_reserving() -> None:
    admission = Admission(dataclasses.replace(SMALL, requests_ip=1.0))
    for _ in range(25):
        dialled = admission.open(End("b", IPS[0]), End("c", IPS[1]), 0.0)
    assert dialled == Refusal.RATE
    assert isinstance(admission.reserve(End("a", IPS[0]), 0.0), float)


@pytest.mark.parametrize("circuits", [0, 1, 16, 64, 512])
def test_windows_shrink_with_the_circuits_so_that_all_fit(circuits: int) -> None:
    admission = Admission(dataclasses.replace(RelayLimits(), circuits_peer=1000, circuits_ip=1000, requests_ip=1e6))
    admission.reserve(End("a", IPS[0]), 0.0)
    for _ in range(circuits):
        admission.open(End("b", IPS[1]), End("a", IPS[0]), 0.0)
    window = admission.window()
    assert WINDOW <= window <= WINDOW_MOST
    assert window == WINDOW or 2 * window * max(1, circuits) <= BUFFERS // 4


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_an_ipv6_subscriber_is_its_64(address: str, key: str) -> None:
    assert address_key(address) == key


def test_limits_from_json() -> None:
    limits = RelayLimits.parse({"circuits": 3, "total_rate": None, "circuit_s": 1.5})
    assert limits == dataclasses.replace(RelayLimits(), circuits=3, total_rate=None, circuit_s=1.5)
    assert RelayLimits.parse(dataclasses.asdict(limits)) == limits


@pytest.mark.parametrize(
    "value",
    [[], None, {"circuit": 3}, {"circuits": None}, {"circuits": "3"}, {"circuits": True}, {"circuits": -1}]
    + [{"total_rate": 0}, {"total_rate": float("inf")}, {"circuit_s": float("nan")}, {"requests_ip": 0}],
)
def test_limits_that_are_none_are_told(value: object) -> None:
    with pytest.raises(ConfigError):
        RelayLimits.parse(value)
