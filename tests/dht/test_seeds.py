"""Seeds: attempts that fail in unexpected ways, how often a dead one is tried, and knocking before dialling."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket

import pytest

from dht.knock import endpoint, knock
from dht.seeds import ClockDiffers, Seeds, SeedTiming
from peer.identity import Identity
from protocols.errors import TransportError

PEERS = [Identity.from_seed(bytes([number]) * 32).peer for number in (1, 2)]
QUIC, OTHER = (f"/ip4/127.0.0.1/udp/1/quic-v1/p2p/{each}" for each in PEERS)
"""Nobody can knock there: the attempt itself decides."""


def test_defect_in_an_attempt_shows_in_the_state_and_it_is_tried_again() -> None:
    async def scenario() -> None:
        tried, again = [], asyncio.Event()

        async def attempt(_: str, address: str) -> None:
            tried.append(address)
            if address == QUIC:
                if tried.count(QUIC) == 2:
                    again.set()
                raise KeyError

        seeds = Seeds([QUIC, OTHER], attempt, timing=SeedTiming(first_retry_s=0.01))
        async with asyncio.timeout(5):
            await again.wait()
        bad, good = seeds.states()
        assert bad.error == "KeyError()" and good.state == "ok"
        await seeds.close()

    asyncio.run(scenario())


def _pauses(*, answered: bool) -> list[float]:
    """The pauses, unspread, before the first ten attempts at a dead seed, beside one that answers or does not."""

    class Middle(random.Random):
        def random(self) -> float:
            return 0.5

    pauses: list[float] = []

    async def scenario() -> None:
        done = asyncio.Event()

        async def attempt(peer: str, address: str) -> None:
            if address == OTHER and answered:
                return
            if address == QUIC:
                if len(pauses) == 10:
                    done.set()
                asyncio.get_running_loop().call_soon(seeds.retry)
                pauses.append(0.0)
            raise TransportError(peer, "down")

        timing = SeedTiming(first_retry_s=1.0, last_retry_s=5.0, calm_retry_s=60.0)
        seeds = Seeds([OTHER, QUIC], attempt, timing=timing, draw=Middle())
        shown: list[float] = []
        async with asyncio.timeout(5):
            while not done.is_set():
                pause = seeds.states()[1].retry_s
                if pause is not None and len(shown) < len(pauses):
                    shown.append(pause)
                await asyncio.sleep(0)
        await seeds.close()
        pauses[:] = shown

    asyncio.run(scenario())
    return pauses


def test_while_nobody_answers_a_dead_seed_is_tried_every_5_s_else_ever_less() -> None:
    assert _pauses(answered=False)[:6] == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert _pauses(answered=True)[:8] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_a_clock_that_differs_is_told_with_its_figure() -> None:
    async def scenario() -> None:
        tried: list[str] = []
        twice = asyncio.Event()

        async def attempt(peer: str, _: str) -> None:
            tried.append(peer)
            if len(tried) == 2:
                twice.set()
            raise ClockDiffers(peer, -7.25, 3.0)

        seeds = Seeds([QUIC], attempt, timing=SeedTiming(first_retry_s=0.01))
        async with asyncio.timeout(5):
            await twice.wait()
        (state,) = seeds.states()
        assert state.offset_s == -7.25
        assert state.error == "its clock is 7.2 s behind ours (3 s allowed): set the clock"
        await seeds.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/ip4/203.0.113.7/tcp/4001/p2p/X", ("203.0.113.7", 4001, socket.AF_INET)),
        ("/ip6/2001:db8::1/tcp/4001", ("2001:db8::1", 4001, socket.AF_INET6)),
        ("/dns4/seed.example.org/tcp/4001/p2p/X", ("seed.example.org", 4001, socket.AF_INET)),
        ("/ip4/203.0.113.7/tcp/4001/p2p/R/p2p-circuit/p2p/X", ("203.0.113.7", 4001, socket.AF_INET)),
        ("/ip4/203.0.113.7/udp/4001/quic-v1/p2p/X", None),
        ("/ip4/203.0.113.7/tcp/x/p2p/X", None),
        ("", None),
    ],
)
def test_where_to_knock(address: str, expected: tuple[str, int, socket.AddressFamily] | None) -> None:
    assert endpoint(address) == expected


def test_knocking_tells_open_refused_and_silent() -> None:
    async def scenario() -> None:
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1))
            address = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{PEERS[0]}"
            await knock(PEERS[0], address)
            for _ in range(4):  # its queue of connections is full then, and it answers nothing any more
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(server.getsockname())
            with pytest.raises(TransportError, match="no answer within 0 s"):
                await knock(PEERS[0], address, within=0.3)
        with pytest.raises(TransportError, match="connection refused"):
            await knock(PEERS[0], address)
        with pytest.raises(TransportError):
            await knock(PEERS[0], f"/ip4/127.0.0.1/tcp/99999/p2p/{PEERS[0]}")
        await knock(PEERS[0], QUIC)

    asyncio.run(scenario())
