"""Payloads received straight into place, by asyncio's own loop and by uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from typing import TYPE_CHECKING

import numpy as np
import pytest
import uvloop

from dht.straight import receive_into
from dht.stream import CHUNK, Counter, FrameStream, Timing
from protocols.errors import TransportError
from protocols.frames import Header, encode_header
from protocols.ids import PeerId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    Run = Callable[[Coroutine[None, None, None]], None]

RUN, PEER = b"r" * 32, PeerId("12D3KooWPeer")
loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@contextlib.asynccontextmanager
async def _pair() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.StreamWriter]]:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    _, other = await asyncio.open_connection(sock=theirs)
    try:
        yield reader, writer, other
    finally:
        writer.transport.abort()
        other.transport.abort()


@loops
@pytest.mark.parametrize("seed", range(4))
def test_bytes_are_those_sent_however_they_come_and_nothing_behind_them_is_taken(run: Run, seed: int) -> None:
    draw = random.Random(seed)
    sizes = [draw.choice([1, 7, 4096, 300_000, 1_500_000]) for _ in range(8)]
    data = draw.randbytes(2 * sum(sizes))

    async def send(writer: asyncio.StreamWriter) -> None:
        at = 0
        while at < len(data):
            step = draw.choice([1, 100, 65_536, 700_000])
            writer.write(data[at : at + step])
            at += step
            if draw.random() < 0.5:
                await writer.drain()
                await asyncio.sleep(0)

    async def scenario() -> None:
        async with _pair() as (reader, writer, other):
            sending = asyncio.create_task(send(other))
            at, told = 0, 0

            def came(count: int) -> None:
                nonlocal told
                told += count

            for size in sizes:
                room = bytearray(size)
                await receive_into(reader, writer, memoryview(room), came)
                assert room == data[at : at + size]
                assert await reader.readexactly(size) == data[at + size : at + 2 * size]
                at += 2 * size
            assert told == sum(sizes)
            await sending

    run(scenario())


@loops
@pytest.mark.parametrize("abrupt", [False, True])
def test_a_stream_that_ends_in_the_middle_says_so(run: Run, abrupt: bool) -> None:  # noqa: FBT001
    async def scenario() -> None:
        async with _pair() as (reader, writer, other):
            other.write(b"x" * 500_000)
            filling = asyncio.create_task(_fill(reader, writer))
            await other.drain()
            if abrupt:
                other.transport.abort()
            else:
                other.close()
            with pytest.raises((asyncio.IncompleteReadError, OSError)):
                await filling

    run(scenario())


async def _fill(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await receive_into(reader, writer, memoryview(bytearray(1_000_000)), lambda _: None)


@loops
def test_one_can_write_while_a_payload_comes(run: Run) -> None:
    """Back-pressure on what is sent works although another protocol reads."""

    async def scenario() -> None:
        async with _pair() as (reader, writer, other):
            filling = asyncio.create_task(_fill(reader, writer))
            other.write(b"y" * 999_999)
            await other.drain()
            writer.write(b"z" * 5_000_000)
            writing = asyncio.create_task(writer.drain())
            other.write(b"y")
            await filling
            assert not writing.done(), "nobody has read it"
            await writing_read(other, 5_000_000)
            await writing

    async def writing_read(other: asyncio.StreamWriter, size: int) -> None:
        reader = other.transport.get_protocol()._stream_reader  # type: ignore[attr-defined]
        await reader.readexactly(size)

    run(scenario())


@contextlib.asynccontextmanager
async def _streams(timing: Timing) -> AsyncIterator[tuple[FrameStream, FrameStream, asyncio.StreamWriter]]:
    """Two that are joined, and the writer of the first."""
    ends = [await asyncio.open_connection(sock=each) for each in socket.socketpair()]
    first, second = (FrameStream(PEER, each, run=RUN, timing=timing, counter=Counter()) for each in ends)
    try:
        yield first, second, ends[0][1]
    finally:
        first.abort("end")
        second.abort("end")


@loops
def test_large_frames_of_a_round_are_memoryviews_of_what_was_sent(run: Run) -> None:
    draw = random.Random(1)
    sizes = (9, CHUNK + 9, 1 << 20)
    payloads = [(5 + size % 7).to_bytes(4, "little") + draw.randbytes(size - 4) for size in sizes]
    frames = [(kind, payload) for kind in ("parts", "state", "results") for payload in payloads]

    async def scenario() -> None:
        async with _streams(Timing()) as (first, second, _):

            async def send() -> None:
                for kind, payload in frames:
                    await first.send(kind, [payload[:5], memoryview(payload)[5:]])

            sending = asyncio.create_task(send())
            for kind, payload in frames:
                found = await second.receive()
                assert (found[0], bytes(found[1])) == (kind, payload)
                straight = kind != "state" and len(payload) > CHUNK
                assert isinstance(found[1], memoryview) == straight
                if straight:  # what is behind the head can be read as numbers
                    behind = np.frombuffer(found[1], dtype=np.uint8)[4 + payload[0] :]
                    assert behind.__array_interface__["data"][0] % 16 == 0
            await sending
            assert second.counter.received == first.counter.sent

    run(scenario())


@loops
@pytest.mark.parametrize("drops", [False, True])
def test_a_peer_that_falls_silent_in_a_payload_or_drips_is_let_go_of(run: Run, drops: bool) -> None:  # noqa: FBT001
    async def drip(writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"z")
            await asyncio.sleep(0.01)

    async def scenario() -> None:
        async with _streams(Timing(ping_s=0.02, silent_s=0.2)) as (_, second, writer):
            header = encode_header(Header("parts", RUN, 1 << 20))
            writer.write(header + bytes(700_000))
            dripping = asyncio.create_task(drip(writer)) if drops else None
            async with second.beating():
                with pytest.raises(TransportError, match="silent for"):
                    await second.receive()
            if dripping is not None:
                dripping.cancel()

    run(scenario())
