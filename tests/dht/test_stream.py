"""FrameStream over a socket pair: no p2pd needed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, cast

import pytest

from dht.handshake import Hello, decode_hello, difference, encode_hello
from dht.stream import Counter, FrameStream, Timing
from protocols.errors import RemoteError, TransportError
from protocols.frames import Header, encode_header
from protocols.ids import PeerId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

RUN = bytes(range(32))
PEER = PeerId("12D3KooWPeer")
FAST = Timing(handshake_s=0.1, ping_s=0.02, silent_s=0.1, send_s=0.2)


@contextlib.asynccontextmanager
async def _pair(timing: Timing = FAST) -> AsyncIterator[tuple[FrameStream, FrameStream, asyncio.StreamWriter]]:
    """Two joined streams, and the raw writer of the second."""
    ours, theirs = socket.socketpair()
    first = await asyncio.open_connection(sock=ours)
    second = await asyncio.open_connection(sock=theirs)
    streams = [FrameStream(PEER, ends, run=RUN, timing=timing, counter=Counter()) for ends in (first, second)]
    try:
        yield streams[0], streams[1], second[1]
    finally:
        for stream in streams:
            stream.abort("end of test")


@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (b"\xff\xff\xff\x7f", "header of 2147483647 bytes, limit 1024"),
        (encode_header(Header("parts", RUN, 1 << 40)), "parts frame of 1099511627776 bytes, limit 1310720"),
        (encode_header(Header("parts", RUN, -1)), "parts frame of -1 bytes"),
        (encode_header(Header("loan", RUN, 1)), "unknown frame kind 'loan'"),
        (encode_header(Header("parts", b"y" * 32, 1)), "belongs to another run"),
        (encode_header(Header("hello", RUN, 1)), "a hello in the middle of the stream"),
        (encode_hello(Hello(RUN, "again")), "header has missing or unknown fields"),
        (b"\x05\0\0\0hello", "header is not msgpack"),
    ],
)
def test_bad_frames_are_refused_before_their_payload(sent: bytes, complaint: str) -> None:
    async def scenario() -> None:
        async with _pair() as (stream, _, writer):
            writer.write(sent)  # nothing follows: a complaint at all means that no payload was waited for
            with pytest.raises(RemoteError, match=f"{PEER}: {complaint}"):
                async with asyncio.timeout(2):
                    await stream.receive()

    asyncio.run(scenario())


def test_frames_of_concurrent_senders_do_not_mix() -> None:
    async def scenario() -> None:
        async with _pair(Timing()) as (stream, other, _):
            frames = [bytes([number]) * (300_000 + number) for number in range(8)]
            sending = asyncio.gather(*(stream.send("parts", [f[:7], memoryview(f)[7:]]) for f in frames))
            got = [await other.receive() for _ in frames]
            await sending
            assert got == [("parts", frame) for frame in frames]

    asyncio.run(scenario())


def test_silent_peer_is_given_up_and_a_beating_one_kept() -> None:
    async def scenario() -> None:
        async with _pair() as (stream, other, _), stream.beating():
            with pytest.raises(TransportError, match="silent for 0 s"):
                await stream.receive()
            with pytest.raises(TransportError, match="silent"):
                await stream.send("ping", [])
            with pytest.raises(TransportError, match="closed by the other side"):
                await other.receive()
        async with _pair() as (stream, other, _), stream.beating(), other.beating():
            waiting = asyncio.create_task(stream.receive()), asyncio.create_task(other.receive())
            done, _ = await asyncio.wait(waiting, timeout=4 * FAST.silent_s)
            assert not done
            await other.send("statement", [b"at last"])
            assert await waiting[0] == ("statement", b"at last")
            waiting[1].cancel()

    asyncio.run(scenario())


def test_peer_that_does_not_read_is_given_up() -> None:
    async def scenario() -> None:
        async with _pair() as (stream, _, writer):
            cast("asyncio.Transport", writer.transport).pause_reading()
            with pytest.raises(TransportError, match="took no frame"):
                for _ in range(64):
                    await stream.send("parts", [bytes(1 << 20)])

    asyncio.run(scenario())


def test_goodbye_lets_the_last_frame_through() -> None:
    async def scenario() -> None:
        async with _pair() as (stream, other, _):
            await stream.send("statement", [b"last"])
            await stream.say_goodbye()
            with pytest.raises(TransportError, match="closing"):
                await stream.send("statement", [b"too late"])
            assert await other.receive() == ("statement", b"last")
            with pytest.raises(TransportError, match="said goodbye"):
                await other.receive()

    asyncio.run(scenario())


def test_missing_and_oversized_hello() -> None:
    async def scenario() -> None:
        async with _pair() as (stream, _, writer):
            with pytest.raises(TransportError, match="sent no hello in time"):
                await stream.greet(Hello(RUN, "test"))
            writer.write((2000).to_bytes(4, "little"))
            with pytest.raises(RemoteError, match="hello of 2000 bytes, limit 1024"):
                await stream.listen()

    asyncio.run(scenario())


def test_hello_round_trip_and_difference() -> None:
    ours, theirs = Hello(RUN, "1.0"), Hello(b"z" * 32, "2.0", protocol=2, refusal="no")
    for hello in (ours, theirs):
        assert decode_hello(encode_hello(hello)[4:], peer=PEER) == hello
    assert difference(ours, Hello(RUN, "another software")) == ""
    assert difference(ours, theirs) == "speaks protocol 2 (software 2.0), this daemon 1 (software 1.0)"
    assert difference(ours, Hello(b"z" * 32, "1.0")).startswith("belongs to run 7a7a7a7a7a7a7a7a, this daemon")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x80",
        encode_hello(Hello(RUN[:31], "x"))[4:],
        encode_hello(Hello(RUN, "a\nb"))[4:],
        encode_hello(Hello(RUN, "x", protocol=True))[4:],
        encode_hello(Hello(RUN, "x"))[4:] + b"\0",
    ],
)
def test_malformed_hello_is_refused(raw: bytes) -> None:
    with pytest.raises(RemoteError, match=f"{PEER}: hello "):
        decode_hello(raw, peer=PEER)
