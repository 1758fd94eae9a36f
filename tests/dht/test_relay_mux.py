"""The relay's side of a connection, spoken to frame by frame: honest peers are served, others end in their bounds."""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

trio = pytest.importorskip("trio", reason="the extra 'lighthouse' is not installed")
pytest.importorskip("trio.testing")

from dht.relay_limits import WINDOW, WINDOW_MOST  # noqa: E402
from dht.relay_mux import CONTROL_BYTES, SEND_S, SILENT_S, STREAMS, Mux  # noqa: E402
from dht.relay_select import TRIES, negotiate, prefixed, read_message, select  # noqa: E402
from dht.relay_stream import CHUNK, QUIET_BYTES, Pool, Reset, Stream  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DATA, WINDOW_UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
HEADER = struct.Struct("!BBHII")


def frame(kind: int, flags: int, stream: int, value: int = 0, body: bytes = b"") -> bytes:
    """A frame as the specification has it; ``value`` is the length where there is a body."""
    return HEADER.pack(0, kind, flags, stream, len(body) or value) + body


class Wire:
    """An encrypted connection in memory: what the peer sends is fed, what the relay sends is kept."""

    def __init__(self) -> None:
        self.feed, self._source = trio.open_memory_channel(1000)
        self.sent = bytearray()
        self.full = False
        """Whether the peer takes nothing more."""
        self.changed = trio.Event()

    async def read(self, n: int | None = None) -> bytes:
        try:
            return await self._source.receive()  # type: ignore[no-any-return]
        except trio.EndOfChannel:
            return b""

    async def write(self, data: bytes) -> None:
        if self.full:
            await trio.sleep_forever()
        self.sent += data
        self.changed.set()

    async def close(self) -> None:
        self.feed.close()

    def frames(self) -> list[tuple[int, int, int, int, bytes]]:
        """Kind, flags, stream, value and body of everything sent."""
        found, rest = [], bytes(self.sent)
        while rest:
            _, kind, flags, stream, value = HEADER.unpack_from(rest)
            size = value if kind == DATA else 0
            found.append((kind, flags, stream, value, rest[12 : 12 + size]))
            rest = rest[12 + size :]
        return found

    async def until(self, *wanted: tuple[int, int, int]) -> None:
        """Wait for frames of this kind, these flags and stream."""
        with trio.fail_after(60):
            while not {each[:3] for each in self.frames()} >= set(wanted):
                self.changed = trio.Event()
                await self.changed.wait()


def served(
    talk: Callable[[Wire, Mux], Awaitable[None]], accept: Callable[[Stream], Awaitable[None]], pool: Pool | None = None
) -> Mux:
    """Let ``talk`` be the peer of a relay that serves streams with ``accept``; time passes as soon as all wait."""
    muxes = []

    async def main() -> None:
        wire = Wire()
        mux = Mux(wire, accept, pool or Pool(), "192.0.2.1")
        muxes.append(mux)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mux.run)
            await talk(wire, mux)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))
    return muxes[0]


async def echo(stream: Stream) -> None:
    """Everything back, and its end."""
    stream.become_circuit(lambda: WINDOW)
    while data := await stream.read(CHUNK):
        await stream.write(data)
    await stream.finish()


async def idle(_: Stream) -> None:
    """Reads nothing."""
    await trio.sleep_forever()


@given(st.binary(min_size=1, max_size=5000), st.data())
@settings(deadline=None, max_examples=25)
def test_bytes_come_back_however_they_are_cut_into_frames_and_pieces(blob: bytes, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.sets(st.integers(1, len(blob)), max_size=8)) | {len(blob)})
    frames = frame(WINDOW_UPDATE, SYN, 1)
    for start, stop in zip([0, *cuts], cuts, strict=False):
        frames += frame(DATA, 0, 1, body=blob[start:stop])
    frames += frame(WINDOW_UPDATE, FIN, 1)
    ends = sorted(draw.draw(st.sets(st.integers(1, len(frames)), max_size=12)) | {len(frames)})

    async def talk(wire: Wire, mux: Mux) -> None:
        for start, stop in zip([0, *ends], ends, strict=False):
            await wire.feed.send(frames[start:stop])
        await wire.until((WINDOW_UPDATE, ACK, 1), (WINDOW_UPDATE, FIN, 1))
        assert b"".join(body for kind, _, _, _, body in wire.frames() if kind == DATA) == blob
        assert not mux._streams and mux.pool.idle

    served(talk, echo)


def test_what_is_sent_waits_for_the_peers_window() -> None:
    async def pour(stream: Stream) -> None:
        await stream.write(bytes(3 * WINDOW))

    async def talk(wire: Wire, _: Mux) -> None:
        def sent() -> int:
            return sum(len(body) for _, _, _, _, body in wire.frames())

        await wire.feed.send(frame(WINDOW_UPDATE, SYN, 1))
        await trio.sleep(SILENT_S / 2)
        assert sent() == WINDOW
        await wire.feed.send(frame(WINDOW_UPDATE, 0, 1, 1000))
        await trio.sleep(1)
        assert sent() == WINDOW + 1000
        assert all(len(body) <= CHUNK for _, _, _, _, body in wire.frames())

    served(talk, pour)


def test_more_is_granted_only_as_it_is_read_and_windows_grow_and_shrink_as_told() -> None:
    steps = [trio.Event() for _ in range(3)]
    most = [WINDOW_MOST]
    pool = Pool()

    async def slow(stream: Stream) -> None:
        stream.become_circuit(lambda: most[0])
        for step in steps:
            await step.wait()
            for _ in range(16):
                await stream.read(WINDOW)
        await trio.sleep_forever()

    async def talk(wire: Wire, mux: Mux) -> None:
        sent = 0

        def open_now() -> int:
            """What the peer may send."""
            return WINDOW + sum(value for kind, _, _, value, _ in wire.frames() if kind == WINDOW_UPDATE) - sent

        async def send_all() -> None:
            nonlocal sent
            await trio.sleep(0.1)
            while (size := open_now()) > 0:
                sent += size
                await wire.feed.send(frame(DATA, 0, 1, body=bytes(size)))
                await trio.sleep(0.1)

        await wire.feed.send(frame(WINDOW_UPDATE, SYN, 1))
        await send_all()
        assert sent == WINDOW  # nothing was read, nothing more is granted
        steps[0].set()
        await send_all()
        assert sent > 8 * WINDOW and mux._streams[1]._window == WINDOW_MOST
        waiting = sum(pool._waiting.used.values())
        assert WINDOW_MOST // 2 <= waiting <= WINDOW_MOST
        assert sum(pool._lent.used.values()) == WINDOW_MOST - WINDOW
        most[0] = WINDOW
        steps[1].set()
        await send_all()
        assert mux._streams[1]._window == WINDOW
        assert sum(pool._waiting.used.values()) <= WINDOW and not pool._lent.used

    served(talk, slow, pool)
    assert pool.idle


def test_windows_grow_only_while_there_is_memory_for_it() -> None:
    pool = Pool(16 * WINDOW)  # a quarter is for windows, half of that for one address

    async def circuit(stream: Stream) -> None:
        stream.become_circuit(lambda: WINDOW_MOST)
        while await stream.read(WINDOW):
            pass

    async def talk(wire: Wire, mux: Mux) -> None:
        for number in range(1, 9, 2):
            await wire.feed.send(frame(WINDOW_UPDATE, SYN, number))
            await trio.sleep(0.1)
            for _ in range(6):
                await wire.feed.send(frame(DATA, 0, number, body=bytes(WINDOW // 2)))
                await trio.sleep(0.1)
        assert sorted(stream._window // WINDOW for stream in mux._streams.values()) == [1, 1, 2, 2]
        assert sum(pool._lent.used.values()) == 2 * WINDOW

    served(talk, circuit, pool)
    assert pool.idle


@pytest.mark.parametrize(
    "frames",
    [
        frame(WINDOW_UPDATE, SYN, 2),  # a number of ours
        frame(WINDOW_UPDATE, SYN, 3) + frame(WINDOW_UPDATE, SYN, 1),  # numbers rise
        frame(GO_AWAY, 0, 0),
        frame(7, 0, 1),
        b"\x01" + frame(PING, 0, 0)[1:],  # another version
        frame(WINDOW_UPDATE, SYN, 1) + HEADER.pack(0, DATA, 0, 1, WINDOW + 1),  # told before any of it came
    ],
)
def test_who_breaks_the_protocol_is_hung_up_on(frames: bytes) -> None:
    async def talk(wire: Wire, mux: Mux) -> None:
        await wire.feed.send(frames)
        await trio.sleep(1)
        assert mux.closed

    served(talk, idle)


def test_unread_bytes_streams_and_answers_are_bounded() -> None:
    async def talk(wire: Wire, mux: Mux) -> None:
        await wire.feed.send(frame(WINDOW_UPDATE, SYN, 1) + frame(DATA, 0, 1, body=bytes(QUIET_BYTES + 1)))
        await wire.until((WINDOW_UPDATE, RST, 1))
        last = 3 + 2 * STREAMS
        await wire.feed.send(b"".join(frame(WINDOW_UPDATE, SYN, number) for number in range(3, last + 1, 2)))
        await wire.until((WINDOW_UPDATE, RST, last))
        refused = Counter(stream for _, flags, stream, _, _ in wire.frames() if flags & RST)
        assert refused == {1: 1, last: 1} and not mux.closed
        wire.full = True
        await wire.feed.send(frame(PING, SYN, 0) * (CONTROL_BYTES // 12 + 10))
        await trio.sleep(SEND_S / 2)
        assert mux.closed

    assert served(talk, idle).pool.idle


def test_circuits_share_the_memory_and_an_address_has_half_of_it() -> None:
    pool = Pool(100_000)

    async def circuit(stream: Stream) -> None:
        stream.become_circuit(lambda: WINDOW)
        await trio.sleep_forever()

    async def talk(wire: Wire, mux: Mux) -> None:
        await wire.feed.send(frame(WINDOW_UPDATE, SYN, 1))
        await wire.until((WINDOW_UPDATE, ACK, 1))
        await trio.sleep(1)
        await wire.feed.send(frame(DATA, 0, 1, body=bytes(50_000)))
        await trio.sleep(1)
        assert not mux.closed and pool._waiting._left == 50_000
        assert pool.take("192.0.2.2", 50_000) and not pool.take("192.0.2.2", 1)
        pool.give("192.0.2.2", 50_000)
        await wire.feed.send(frame(DATA, 0, 1, body=b"x"))
        await wire.until((WINDOW_UPDATE, RST, 1))
        assert not mux.closed and pool.idle

    served(talk, circuit, pool)
    assert pool.idle


def test_a_reset_or_a_lost_connection_reaches_readers_and_writers() -> None:
    heard: list[str] = []

    async def note(stream: Stream) -> None:
        try:
            await stream.read(1)
        except Reset:
            heard.append("cut")
            raise

    async def talk(wire: Wire, mux: Mux) -> None:
        await wire.feed.send(frame(WINDOW_UPDATE, SYN, 1) + frame(WINDOW_UPDATE, SYN, 3))
        await trio.sleep(1)
        await wire.feed.send(frame(WINDOW_UPDATE, RST, 1))
        await trio.sleep(1)
        assert heard == ["cut"]
        stream = await mux.open()
        wire.feed.close()
        with pytest.raises(Reset):
            await stream.read(1)
        with pytest.raises(Reset):
            await stream.write(b"x")
        assert mux.closed

    served(talk, note)


def test_a_silent_peer_is_pinged_and_then_given_up() -> None:
    async def talk(wire: Wire, mux: Mux) -> None:
        for _ in range(4):
            await trio.sleep(SILENT_S / 2)
            assert not mux.closed
            assert wire.frames()[-1][:2] == (PING, SYN)
            await wire.feed.send(frame(PING, ACK, 0))
        await trio.sleep(2 * SILENT_S)
        assert mux.closed

    served(talk, idle)


def test_a_peer_that_takes_nothing_is_given_up_even_where_the_writer_is_cancelled() -> None:
    async def pour(stream: Stream) -> None:
        with trio.move_on_after(1):
            await stream.write(b"x")

    async def talk(wire: Wire, mux: Mux) -> None:
        await wire.feed.send(frame(WINDOW_UPDATE, SYN, 1))
        wire.full = True
        await trio.sleep(SEND_S - 1)
        assert not mux.closed
        await trio.sleep(2)
        assert mux.closed

    served(talk, pour)


class Lines:
    """What a peer says while a protocol is agreed on."""

    def __init__(self, said: bytes) -> None:
        self._said, self.answered = said, b""

    async def read_exactly(self, size: int) -> bytes:
        piece, self._said = self._said[:size], self._said[size:]
        if len(piece) < size:
            raise Reset
        return piece

    async def write(self, data: bytes) -> None:
        self.answered += data


def lines(*names: str) -> bytes:
    """As multistream-select has them."""
    return b"".join(bytes([len(name) + 1]) + name.encode() + b"\n" for name in names)


def test_the_first_known_protocol_is_agreed_on() -> None:
    ends = Lines(lines("/multistream/1.0.0", "/none", "ls", "/b", "/a"))
    assert trio.run(negotiate, ends, ("/a", "/b")) == "/b"
    assert ends.answered == lines("/multistream/1.0.0", "na", "na", "/b")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        lines("/multistream/0.9.0", "/a"),
        lines("/multistream/1.0.0"),
        lines("/multistream/1.0.0", *["/none"] * TRIES, "/a"),
        b"\xff\xff\xff\xff\xff\x7f",
        b"\x85\x02" + b"x" * 261,
    ],
)
def test_who_agrees_on_nothing_is_given_up(said: bytes) -> None:
    with pytest.raises(Reset):
        trio.run(negotiate, Lines(said), ("/a",))


def test_a_protocol_of_ours_is_proposed_and_may_be_refused() -> None:
    ends = Lines(lines("/multistream/1.0.0", "/a"))
    trio.run(select, ends, "/a")
    assert ends.answered == lines("/multistream/1.0.0", "/a")
    with pytest.raises(Reset):
        trio.run(select, Lines(lines("/multistream/1.0.0", "na")), "/a")


@given(st.binary(max_size=400))
def test_messages_have_their_length_before_them_and_long_ones_are_not_read(message: bytes) -> None:
    assert trio.run(read_message, Lines(prefixed(message)), 400) == message
    with pytest.raises(Reset):
        trio.run(read_message, Lines(prefixed(message + b"x")), len(message))
