"""Serving blobs: only what the run names, so much at once, in order, and nothing that a stranger can hold for long."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from blake3 import blake3

from dht.limits import PATIENCE
from peer.blob_exchange import BlobExchange
from peer.blob_serving import PIECE, Limits, Queue
from peer.blobs import BlobStore
from peer.outbox import HOLD_S, Outbox
from protocols.blobs import BUSY, HERE, NONE, TURN, WAIT, AskBlob, Reply, decode_manifest
from protocols.errors import RemoteError, TransportError
from protocols.ids import Hash
from protocols.manifest import ShardEntry
from tests.peer.blob_wire import PEERS, End, Wire, manifest_of, text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from dht.stream import FrameStream
    from protocols.ids import PeerId

RAW = Random(1).randbytes(2 << 20)
ENTRY = ShardEntry("shard", len(RAW), blake3(RAW).hexdigest())
HASH = Hash(bytes.fromhex(ENTRY.hash))
UNNAMED = b"what the run does not name"
MANIFEST = manifest_of([ENTRY])
DONOR, ONE, TWO, THREE = PEERS[:4]
LIMITS = Limits(tell_s=0.02)


class Served:
    """A donor, and streams to it."""

    def __init__(self, folder: Path, stack: contextlib.AsyncExitStack, limits: Limits, **options: Any) -> None:
        self.wire, self._stack = Wire(MANIFEST), stack
        self.store = BlobStore(folder)
        self.store.put(RAW)
        self.text: str | None = text_of(MANIFEST)
        self.exchange = BlobExchange(
            End(self.wire, DONOR), self.store, self.wire.run, lambda: self.text, dict, limits=limits, **options
        )

    async def stream(self, caller: PeerId = ONE) -> FrameStream:
        """A stream of ``caller`` to the donor."""
        return await self._stack.enter_async_context(End(self.wire, caller).call(DONOR, ""))


@contextlib.asynccontextmanager
async def served(folder: Path, limits: Limits = LIMITS, **options: Any) -> AsyncIterator[Served]:
    """A donor that serves until the end of the block."""
    async with asyncio.timeout(20), contextlib.AsyncExitStack() as stack:
        donor = Served(folder, stack, limits, **options)
        await donor.exchange.start()
        stack.push_async_callback(donor.wire.close)
        yield donor


async def ask(stream: FrameStream, ask: AskBlob) -> None:
    await stream.send("ask-blob", [ask.encode()])


async def reply(stream: FrameStream) -> Reply:
    kind, payload = await stream.receive()
    assert kind == "blob"
    return Reply.decode(payload, sender=DONOR)


async def read(stream: FrameStream, size: int) -> bytes:
    """So many bytes of a blob."""
    got = bytearray()
    while len(got) < size:
        kind, payload = await stream.receive()
        assert kind == "bytes"
        got += payload
    assert len(got) == size
    return bytes(got)


def test_ranges_are_served_to_the_byte(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as donor:
            stream = await donor.stream()
            for offset, length in ((0, len(RAW)), (5, 10), (len(RAW) - 1, 1000), (300_000, 700_000)):
                await ask(stream, AskBlob(HASH, offset, length))
                assert await reply(stream) == Reply(HERE, size=len(RAW))
                expected = RAW[offset : offset + length]
                assert await read(stream, len(expected)) == expected
            await ask(stream, AskBlob(HASH, len(RAW)))
            with pytest.raises(TransportError):
                await stream.receive()
            assert [str(error) for error in donor.wire.hang_ups] == [
                f"{ONE}: asks for byte {len(RAW)} of a blob of {len(RAW)}"
            ]

    asyncio.run(scenario())


def test_only_what_the_run_names_is_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as donor:
            donor.store.put(UNNAMED)
            stream = await donor.stream()
            await ask(stream, AskBlob(Hash(blake3(UNNAMED).digest())))
            assert await reply(stream) == Reply(NONE)
            assert donor.exchange.refused == 1
            await ask(stream, AskBlob(Hash(donor.wire.run)))
            kind, payload = await stream.receive()
            assert (kind, decode_manifest(payload, donor.wire.run, sender=DONOR)) == ("manifest", MANIFEST)
            (donor.store.folder / ENTRY.hash).unlink()
            await ask(stream, AskBlob(HASH))
            assert await reply(stream) == Reply(NONE)

    asyncio.run(scenario())


def test_who_goes_on_asking_for_what_the_run_does_not_name_is_hung_up_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as donor:
            stream, other, answers = await donor.stream(ONE), await donor.stream(TWO), 0
            with contextlib.suppress(TransportError):
                while answers < 10 * PATIENCE.burst:
                    await ask(stream, AskBlob(Hash(blake3(UNNAMED).digest())))
                    assert await reply(stream) == Reply(NONE)
                    answers += 1
            assert PATIENCE.burst <= answers < 2 * PATIENCE.burst
            assert [error.peer for error in donor.wire.hang_ups] == [ONE]
            await ask(other, AskBlob(HASH, 0, 1))
            assert (await reply(other)).word == HERE

    asyncio.run(scenario())


def test_before_the_manifest_is_known_nothing_is_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as donor:
            donor.text = None
            stream = await donor.stream()
            for digest in (HASH, Hash(donor.wire.run)):
                await ask(stream, AskBlob(digest))
                assert await reply(stream) == Reply(NONE)
            donor.text = text_of(MANIFEST)
            await ask(stream, AskBlob(HASH, 0, 1))
            assert (await reply(stream)).word == HERE

    asyncio.run(scenario())


def test_a_frame_that_is_no_request_is_hung_up_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path) as donor:
            stream = await donor.stream()
            await stream.send("statement", [b"x"])
            with pytest.raises(TransportError):
                await stream.receive()
            assert isinstance(donor.wire.hang_ups[0], RemoteError)

    asyncio.run(scenario())


def test_a_silent_caller_is_let_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path, replace(LIMITS, idle_s=0.05)) as donor:
            stream = await donor.stream()
            with pytest.raises(TransportError, match="said goodbye"):
                await stream.receive()

    asyncio.run(scenario())


def test_a_caller_that_does_not_read_frees_its_place(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path, replace(LIMITS, at_once=1, send_s=0.2)) as donor:
            lazy, other = await donor.stream(ONE), await donor.stream(TWO)
            for _ in range(8):  # more than the sockets between them hold
                await ask(lazy, AskBlob(HASH))
            lazy._reader._transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.wait({asyncio.create_task(ask(other, AskBlob(HASH)))})
            while (said := await reply(other)).word == WAIT:
                assert said.position == 1
            assert await read(other, len(RAW)) == RAW

    asyncio.run(scenario())


def test_the_queue_tells_places_and_gives_turns(tmp_path: Path) -> None:
    """One at a time and no turn longer than a piece: two who ask get their bytes alternately."""

    async def scenario() -> None:
        async with served(tmp_path, replace(LIMITS, at_once=1, turn_s=0.0)) as donor:
            turns: list[PeerId] = []

            async def fetch(caller: PeerId) -> bytes:
                stream, got = await donor.stream(caller), bytearray()
                await ask(stream, AskBlob(HASH))
                while len(got) < len(RAW):
                    kind, payload = await stream.receive()
                    if kind == "bytes":
                        got += payload
                        continue
                    said = Reply.decode(payload, sender=DONOR)
                    assert said.word in {WAIT, HERE, TURN}
                    assert said.word != WAIT or said.position in {1, 2}
                    if said.word == HERE:
                        turns.append(caller)
                    if said.word == TURN:
                        await ask(stream, AskBlob(HASH, len(got)))
                return bytes(got)

            assert await asyncio.gather(*map(fetch, (ONE, TWO, THREE))) == [RAW] * 3
            assert len(turns) > 6 and all(len(set(turns[at : at + 2])) == 2 for at in range(0, 6, 2))
            assert donor.exchange.serving == (0, 0)

    asyncio.run(scenario())


def test_a_full_queue_is_busy(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with served(tmp_path, replace(LIMITS, at_once=0, waiting=2, waiting_each=1)) as donor:
            streams = [await donor.stream(peer) for peer in (ONE, ONE, TWO, THREE)]
            for stream in streams:
                await ask(stream, AskBlob(HASH))
            first, again, second, third = [await reply(stream) for stream in streams]
            assert (first, second) == (Reply(WAIT, position=1), Reply(WAIT, position=2))
            assert again.word == BUSY, "one peer waits once"
            assert third == Reply(BUSY, position=2)
            assert donor.exchange.refused == 2
            assert donor.exchange.serving == (0, 2)

    asyncio.run(scenario())


async def _nothing(_: int) -> None:
    return


def test_one_peer_and_strangers_together_have_a_share() -> None:
    async def scenario() -> None:
        member = PEERS[7]
        queue = Queue(Limits(at_once=4, strangers=3, each=2), lambda: {member})
        async with contextlib.AsyncExitStack() as stack:

            async def come(peer: PeerId) -> bool:
                return await stack.enter_async_context(queue.turn(peer, _nothing))

            assert await come(ONE) and await come(ONE)
            third = asyncio.create_task(come(ONE))
            await asyncio.sleep(0)
            assert not third.done(), "two of one peer"
            assert await come(TWO), "who waits for its own share keeps nobody else waiting"
            stranger = asyncio.create_task(come(THREE))
            await asyncio.sleep(0)
            assert not stranger.done(), "three of strangers"
            assert await come(member)
            assert (queue.serving, len(queue)) == (4, 2)
            third.cancel()
            stranger.cancel()
            await asyncio.gather(third, stranger, return_exceptions=True)
            assert (queue.serving, len(queue)) == (4, 0)
        assert queue.serving == 0

    asyncio.run(scenario())


def test_a_place_that_was_given_to_somebody_who_left_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        queue = Queue(Limits(at_once=1), set)
        async with queue.turn(ONE, _nothing):

            async def come(peer: PeerId) -> None:
                async with queue.turn(peer, _nothing):
                    pass

            waiting = [asyncio.create_task(come(peer)) for peer in (TWO, THREE)]
            await asyncio.sleep(0)
            assert len(queue) == 2
        waiting[0].cancel()  # its turn has just come, and it has not noticed
        await asyncio.gather(*waiting, return_exceptions=True)
        assert waiting[0].cancelled() and waiting[1].exception() is None
        assert (queue.serving, len(queue)) == (0, 0)

    asyncio.run(scenario())


def test_blobs_stand_back_while_bytes_of_a_round_wait(tmp_path: Path) -> None:
    """The outbox of the rounds has something to send to a neighbour that does not take it: blobs trickle."""

    class Clogged:
        peer = DONOR

        def __init__(self) -> None:
            self.open = asyncio.Event()

        def neighbours(self) -> frozenset[PeerId]:
            return frozenset({TWO})

        def reopen(self, peer: PeerId, reason: str) -> None:
            raise AssertionError(f"{peer}: {reason}")

        async def send(self, to: PeerId, kind: str, payload: object) -> None:
            await self.open.wait()

    async def scenario() -> None:
        async with served(tmp_path) as donor:
            line, clock = Clogged(), asyncio.get_running_loop().time
            outbox = Outbox(line)
            donor.exchange.yield_to(outbox.calm)
            outbox.connect(frozenset({TWO}))
            outbox.post(TWO, "parts", [b"bytes of a round"])
            streams = [await donor.stream(peer) for peer in (ONE, THREE)]
            began = clock()
            for stream in streams:
                await ask(stream, AskBlob(HASH))
                assert (await reply(stream)).word == HERE
            first = await streams[0].receive()
            assert len(first[1]) == PIECE and clock() - began > 0.9 * HOLD_S
            await streams[1].receive()
            assert clock() - began > 1.9 * HOLD_S, "a piece at a time, of all requests together"
            line.open.set()
            began = clock()
            assert await read(streams[0], len(RAW) - PIECE) == RAW[PIECE:]
            assert clock() - began < 2 * HOLD_S
            await outbox.close()

    asyncio.run(scenario())
