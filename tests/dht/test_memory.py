"""The in-memory network on its virtual clock: order, losses, broken streams, deaths, partitions, couriers."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.memory import Clock, Frame, MemoryNetwork, Weather
from protocols.errors import LocalError
from protocols.ids import Hash, PeerId
from protocols.messages import Vote
from protocols.statements import Statement

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
CALM = Weather(latency=(0.05, 0.05), jitter=0.0)


class Ears:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.frames: list[tuple[PeerId, PeerId, Any]] = []
        self.streams: list[tuple[PeerId, PeerId, bool]] = []

    def on_frame(self, to: PeerId, sender: PeerId, kind: str, payload: Any) -> None:
        """A frame arrived."""
        self.frames.append((sender, to, payload))

    def on_stream(self, who: PeerId, neighbour: PeerId, open_: bool) -> None:
        """A stream changed."""
        self.streams.append((who, neighbour, open_))


def network(weather: Weather = CALM, seed: int = 0, mesh: str = "abc") -> tuple[MemoryNetwork, Ears]:
    """Peers that are all neighbours, their streams open."""
    ears = Ears()
    made = MemoryNetwork(Clock(), weather, Random(seed), ears)
    for peer in mesh:
        made.add(PeerId(peer))
    for one, other in [(x, y) for x in mesh for y in mesh if x < y]:
        made.connect(PeerId(one), PeerId(other))
    drain(made)
    ears.streams.clear()
    return made, ears


def drain(made: MemoryNetwork, seconds: float = 1000.0) -> None:
    """Run everything that is due within so many seconds."""
    end = made.clock.now + seconds
    made.clock.at(end, lambda: None)
    while made.clock.now < end:
        made.clock.step()


def test_events_run_by_time_and_then_in_order() -> None:
    clock, seen = Clock(), []
    for time, name in ((2.0, "c"), (1.0, "a"), (1.0, "b"), (-5.0, "0")):
        clock.at(time, lambda name=name: seen.append((clock.now, name)))
    while clock.step():
        pass
    assert seen == [(0.0, "0"), (1.0, "a"), (1.0, "b"), (2.0, "c")]


@given(st.lists(st.sampled_from([(A, B), (B, A), (A, C)]), max_size=30), st.integers(0, 99))
def test_frames_of_a_stream_keep_their_order_and_none_is_lost(pairs: list[tuple[PeerId, PeerId]], seed: int) -> None:
    made, ears = network(Weather(), seed)
    for index, (sender, to) in enumerate(pairs):
        made.send(sender, to, "statement", index, 100)
    drain(made)
    assert sorted(payload for _, _, payload in ears.frames) == list(range(len(pairs)))
    for pair in set(pairs):
        mine = [payload for sender, to, payload in ears.frames if (sender, to) == pair]
        assert mine == sorted(mine)


def test_a_flood_reaches_every_neighbour_once() -> None:
    made, ears = network()
    said = Statement(A, Vote(1, Hash(bytes(32))), b"raw", b"signature")
    made.flood(A, said, 10)
    made.send(B, C, "statement", said, 10)
    drain(made)
    made.flood(B, said, 10)
    drain(made)
    assert sorted(to for _, to, _ in ears.frames) == [B, C]
    for peer in (A, C):
        made.forget(peer)
    made.flood(B, said, 10)
    for peer in (A, C):
        made.forget(peer)
    made.flood(B, said, 10)
    drain(made)
    assert sorted(to for _, to, _ in ears.frames) == [A, B, C, C]


def test_a_third_is_lost_half_of_it_with_its_stream() -> None:
    made, ears = network(Weather(loss=0.3, reconnect=(0.1, 0.3)), 1)
    for index in range(6000):
        made.clock.at(made.clock.now + index * 0.01, made.send, A, B, "statement", index, 10)
    drain(made)
    assert made.offered == 6000 and len(ears.frames) == 6000 - made.told - made.silent
    assert made.told / 6000 == pytest.approx(0.15, abs=0.02)
    assert made.silent / 6000 == pytest.approx(0.15, abs=0.02)
    heard = [(who, open_) for who, _, open_ in ears.streams]
    assert heard.count((A, False)) == heard.count((B, False)) == heard.count((A, True)) > 30
    assert [payload for _, _, payload in ears.frames] == sorted(payload for _, _, payload in ears.frames)


@pytest.mark.parametrize("silent", [True, False])
def test_a_death_is_told_at_once_or_when_nobody_answers(silent: bool) -> None:
    made, ears = network()
    made.send(B, A, "statement", 1, 10)
    made.remove(A, silent=silent)
    made.send(B, A, "statement", 2, 10)
    drain(made, 29.0)
    assert ears.frames == [] and (ears.streams == []) == silent
    drain(made, 2.0)
    assert sorted(ears.streams) == [(B, A, False), (C, A, False)]
    assert made.neighbours(B) == [C]
    made.add(A)
    made.connect(A, B)
    made.send(B, A, "statement", 3, 10)
    drain(made)
    assert ears.frames == [(B, A, 3)] and (A, B, True) in ears.streams


def test_a_partition_is_silent_then_closes_streams_and_heals() -> None:
    made, ears = network()
    made.part({C})
    made.send(A, C, "statement", 1, 10)
    made.send(A, B, "statement", 2, 10)
    drain(made, 10.0)
    assert [payload for _, _, payload in ears.frames] == [2] and ears.streams == []
    drain(made, 30.0)
    assert sorted(ears.streams) == [(A, C, False), (B, C, False), (C, A, False), (C, B, False)]
    made.heal()
    drain(made, 10.0)
    assert sorted(each for each in ears.streams if each[2]) == [
        (A, C, True), (B, C, True), (C, A, True), (C, B, True)
    ]  # fmt: skip


def test_others_than_neighbours_are_reached_and_a_slow_uplink_takes_its_time() -> None:
    made, ears = network(mesh="ab")
    made.add(C)
    made.slow(A, 0.001)
    made.send(A, C, "parts", "slow", 5000)
    made.send(C, A, "parts", "quick", 5000)
    made.send(A, PeerId("nobody"), "parts", "lost", 5000)
    drain(made, 1.0)
    assert [payload for _, _, payload in ears.frames] == ["quick"]
    drain(made, 2.0)
    assert [payload for _, _, payload in ears.frames] == ["quick", "slow"]


def test_a_courier_chooses_the_order_and_what_it_withholds() -> None:
    made, ears = network()
    made.courier = lambda frame: None if frame.payload == 1 else 5.0 - frame.payload
    for payload in (1, 2, 3):
        made.send(A, B, "statement", payload, 10)
    drain(made, 10.0)
    assert [payload for _, _, payload in ears.frames] == [3, 2]
    assert made.withheld == [Frame(A, B, "statement", 1)]
    made.release(made.withheld[0])
    assert [payload for _, _, payload in ears.frames] == [3, 2, 1] and not made.withheld


def test_what_no_stream_takes_is_refused() -> None:
    made, _ = network()
    for kind, size in (("ping", 1), ("parts", 2 << 20), ("loan", 0)):
        with pytest.raises(LocalError, match=f"{kind} frame of {size} bytes"):
            made.send(A, B, kind, b"", size)
