"""The in-memory network: order, limits, and handlers that refuse."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dht.memory import MemoryNetwork
from protocols.errors import LocalError, RemoteError, TransportError
from protocols.ids import PeerId

A, B, C = PeerId("a"), PeerId("b"), PeerId("c")
POSTS = st.lists(st.tuples(st.sampled_from([A, B, C]), st.sampled_from([A, B, C])), max_size=40)


def _drain(network: MemoryNetwork) -> list[tuple[PeerId, PeerId, bytes]]:
    taken = []
    while (frame := network.pop()) is not None:
        taken.append((frame.sender, frame.to, frame.payload))
    return taken


@given(POSTS)
def test_without_a_generator_first_in_first_out(pairs: list[tuple[PeerId, PeerId]]) -> None:
    network = MemoryNetwork()
    posted = [(sender, to, bytes([index])) for index, (sender, to) in enumerate(pairs)]
    for sender, to, payload in posted:
        network.post(sender, to, "statement", payload)
    assert len(network) == len(posted)
    assert _drain(network) == posted


@given(POSTS, st.integers(0, 2**32))
def test_drawn_order_is_reproducible_and_keeps_each_pair_in_order(
    pairs: list[tuple[PeerId, PeerId]], seed: int
) -> None:
    orders = []
    for _ in range(2):
        network = MemoryNetwork(Random(seed))
        for index, (sender, to) in enumerate(pairs):
            network.post(sender, to, "statement", bytes([index]))
        orders.append(_drain(network))
    assert orders[0] == orders[1]
    assert sorted(payload for _, _, payload in orders[0]) == [bytes([index]) for index in range(len(pairs))]
    for pair in set(pairs):
        mine = [payload for sender, to, payload in orders[0] if (sender, to) == pair]
        assert mine == sorted(mine)


def test_drawn_order_differs_from_posting() -> None:
    network = MemoryNetwork(Random(1))
    posted = [(A, B, b"1"), (B, C, b"2"), (C, A, b"3"), (B, A, b"4")]
    for sender, to, payload in posted:
        network.post(sender, to, "statement", payload)
    assert _drain(network) != posted


def test_transport_delivers_and_collects_refusals() -> None:
    async def scenario() -> None:
        network, got = MemoryNetwork(), []

        async def answer(sender: PeerId, kind: str, payload: bytes) -> None:
            got.append((sender, kind, payload))
            if payload == b"ping-pong":
                await transport_b.send(sender, "results", [b"p", memoryview(b"ong")])

        async def strict(sender: PeerId, kind: str, payload: bytes) -> None:
            got.append((sender, kind, payload))
            raise RemoteError(sender, "not today")

        transport_a, transport_b = network.attach(A, strict), network.attach(B, answer)
        assert transport_a.peer == A and transport_a.neighbours() == {B}
        await transport_a.send(B, "parts", [b"ping", b"-pong"])
        assert await network.run() == 2 and not await network.deliver_next()
        assert got == [(A, "parts", b"ping-pong"), (B, "results", b"pong")]
        assert [str(error) for error in network.refused] == ["b: not today"]

        await transport_a.send(B, "ping", [])
        network.detach(B)
        assert await network.run() == 1 and len(got) == 2
        with pytest.raises(TransportError, match="b: no stream"):
            await transport_a.send(B, "ping", [])

    asyncio.run(scenario())


def test_what_no_stream_takes_is_refused() -> None:
    network = MemoryNetwork()
    for kind, size in (("ping", 1), ("parts", 2 << 20), ("loan", 0)):
        with pytest.raises(LocalError, match=f"{kind} frame of {size} bytes"):
            network.post(A, B, kind, bytes(size))


def test_endless_chatter_is_an_error() -> None:
    async def scenario() -> None:
        network = MemoryNetwork()

        async def echo(sender: PeerId, kind: str, payload: bytes) -> None:
            network.post(B, A, kind, payload)

        network.attach(A, echo)
        network.post(B, A, "ping", b"")
        with pytest.raises(LocalError, match="still not idle after 10 frames"):
            await network.run(limit=10)

    asyncio.run(scenario())
