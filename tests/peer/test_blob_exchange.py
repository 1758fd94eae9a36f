"""Fetching blobs from peers of which some lie, stall, die, crawl or have nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from blake3 import blake3

from peer.blob_exchange import BlobExchange
from peer.blob_fetch import Patience
from peer.blob_serving import Limits
from peer.blobs import BlobStore
from protocols.blobs import BUSY, HERE, NONE, TURN, WAIT, Reply, encode_manifest
from protocols.errors import ConfigError
from protocols.manifest import Manifest, ShardEntry
from tests.peer.blob_wire import PEERS, Donor, End, Wire, manifest_of, text_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

    from dht.stream import FrameStream
    from protocols.ids import PeerId

RAWS = [Random(number).randbytes(size) for number, size in enumerate((1_000_000, 1, 70_000, 300_000))]
ENTRIES = tuple(ShardEntry(f"shard-{index}", len(raw), blake3(raw).hexdigest()) for index, raw in enumerate(RAWS))
BLOBS = {entry.hash: raw for entry, raw in zip(ENTRIES, RAWS, strict=True)}
LARGE, RAW = ENTRIES[0], RAWS[0]
MANIFEST = manifest_of(ENTRIES)
ME, ONE, TWO = PEERS[:3]
QUICK = Patience(stall_s=0.3, slow_after_s=0.2, tick_s=0.02, disk_s=0.05)
HALF = 512 << 10


class Bench:
    """A peer that fetches, in a folder, and the others."""

    def __init__(self, folder: Path, patience: Patience = QUICK, manifest: Manifest = MANIFEST) -> None:
        self.wire = Wire(manifest)
        self.store = BlobStore(folder / "blobs")
        self.exchange = BlobExchange(
            End(self.wire, ME), self.store, self.wire.run, lambda: None, self.wire.found, patience=patience
        )

    async def honest(self, peer: PeerId, folder: Path, entries: Sequence[ShardEntry] = ENTRIES) -> BlobExchange:
        """A real peer that has these blobs."""
        store = BlobStore(folder / peer)
        for entry in entries:
            store.put(BLOBS[entry.hash])
        exchange = BlobExchange(End(self.wire, peer), store, self.wire.run, lambda: text_of(MANIFEST), dict)
        await exchange.start()
        return exchange

    def donor(self, peer: PeerId, answer: Callable[..., Awaitable[bool]] | None = None) -> Donor:
        """A peer that answers as ``answer(stream, raw, offset)`` does."""
        donor = Donor(BLOBS)
        if answer is not None:
            donor.answer = answer  # type: ignore[assignment,method-assign]
        self.wire.services[peer] = donor
        return donor

    def has(self, *entries: ShardEntry) -> bool:
        """Whether these are here, byte for byte."""
        paths = [self.store.path(entry) for entry in entries]
        return all(
            path is not None and path.read_bytes() == BLOBS[entry.hash]
            for path, entry in zip(paths, entries, strict=True)
        )


@contextlib.asynccontextmanager
async def bench(folder: Path, **options: Any) -> AsyncIterator[Bench]:
    """A bench, at whose end nothing runs on."""
    before = asyncio.all_tasks()
    made = Bench(folder, **options)
    try:
        async with asyncio.timeout(20):
            yield made
    finally:
        await made.wire.close()
    left = asyncio.all_tasks() - before
    await asyncio.wait(left, timeout=1) if left else None
    assert not [task for task in left if not task.done()]


def test_all_blobs_come_from_several_peers_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as ours:
            for peer in (ONE, TWO):
                await ours.honest(peer, tmp_path)
            told: list[tuple[int, int]] = []
            await ours.exchange.fetch((*ENTRIES, ENTRIES[0]), lambda *figures: told.append(figures))
            assert ours.has(*ENTRIES)
            total = sum(entry.bytes for entry in ENTRIES)
            assert told[-1] == (total, total) and told == sorted(told)
            assert set(ours.wire.calls) == {ONE, TWO}
            ours.wire.calls.clear()
            await ours.exchange.fetch(ENTRIES)
            assert not ours.wire.calls, "what is here is not asked for again"
            assert ours.exchange.state == ""

    asyncio.run(scenario())


async def _wrong(stream: FrameStream, raw: bytes, offset: int) -> bool:
    await Donor.say(stream, Reply(HERE, size=len(raw)))
    await Donor.pour(stream, bytes(len(raw) - offset))
    return True


async def _longer(stream: FrameStream, raw: bytes, offset: int) -> bool:
    await Donor.say(stream, Reply(HERE, size=len(raw)))
    await Donor.pour(stream, raw[offset:] + raw)
    return True


async def _other_size(stream: FrameStream, raw: bytes, _: int) -> bool:
    await Donor.say(stream, Reply(HERE, size=len(raw) + 1))
    return True


async def _gibberish(stream: FrameStream, _: bytes, __: int) -> bool:
    await stream.send("blob", [b"\xff" * 40])
    return True


async def _dribble(stream: FrameStream, raw: bytes, offset: int) -> bool:
    await Donor.say(stream, Reply(HERE, size=len(raw)))
    for each in raw[offset:]:
        await stream.send("bytes", [bytes([each])])
    return True


async def _turns(stream: FrameStream, raw: bytes, _: int) -> bool:
    await Donor.say(stream, Reply(HERE, size=len(raw)))
    await Donor.say(stream, Reply(TURN))
    return True


@pytest.mark.parametrize("lie", [_wrong, _longer, _other_size, _gibberish, _dribble, _turns])
def test_a_liar_is_found_out_and_not_asked_again(tmp_path: Path, lie: Callable[..., Awaitable[bool]]) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as ours:
            liar = ours.donor(ONE, lie)
            fetching = asyncio.create_task(ours.exchange.fetch([LARGE]))
            await until(lambda: "asked again in" in ours.exchange.state, fetching)
            assert not ours.has(LARGE)
            honest = ours.donor(TWO)
            await fetching
            assert ours.has(LARGE)
            assert len(liar.asked) == 1 and ours.wire.calls[ONE] == 1
            assert lie is not _wrong or honest.asked == [(LARGE.hash, 0)]

    asyncio.run(scenario())


async def _half(stream: FrameStream, raw: bytes, offset: int) -> bool:
    await Donor.say(stream, Reply(HERE, size=len(raw)))
    await Donor.pour(stream, raw[offset:HALF])
    return False


async def _stall(stream: FrameStream, raw: bytes, offset: int) -> bool:
    await Donor.say(stream, Reply(HERE, size=len(raw)))
    await Donor.pour(stream, raw[offset:HALF])
    await asyncio.Event().wait()
    return False


async def _crawl(stream: FrameStream, raw: bytes, offset: int) -> bool:
    await Donor.say(stream, Reply(HERE, size=len(raw)))
    await Donor.pour(stream, raw[offset:HALF])
    for start in range(max(offset, HALF), len(raw), 4096):
        await asyncio.sleep(0.05)
        await stream.send("bytes", [raw[start : start + 4096]])
    return True


@pytest.mark.parametrize("end", [_half, _stall, _crawl])
def test_another_goes_on_where_a_provider_left_off(tmp_path: Path, end: Callable[..., Awaitable[bool]]) -> None:
    async def scenario() -> None:
        async with bench(tmp_path, patience=replace(QUICK, slow=100e6)) as ours:
            first = ours.donor(ONE, end)
            fetching = asyncio.create_task(ours.exchange.fetch([LARGE]))
            await until(lambda: bool(first.asked), fetching)
            second = ours.donor(TWO)
            await fetching
            assert ours.has(LARGE)
            offsets = [offset for _, offset in (*first.asked, *second.asked)]
            assert second.asked and min(offset for _, offset in second.asked) >= HALF
            assert offsets == sorted(offsets) and offsets.count(0) == 1, "no byte is asked for twice"

    asyncio.run(scenario())


def test_a_blob_spoilt_by_one_of_two_is_fetched_again_from_one(tmp_path: Path) -> None:
    """The second sent nothing wrong, and nobody can know: it is no liar, and what it sends alone is good."""

    async def spoil(stream: FrameStream, raw: bytes, offset: int) -> bool:
        await Donor.say(stream, Reply(HERE, size=len(raw)))
        await Donor.pour(stream, bytes(HALF - offset))
        return False

    async def scenario() -> None:
        async with bench(tmp_path) as ours:
            spoiler = ours.donor(ONE, spoil)
            fetching = asyncio.create_task(ours.exchange.fetch([LARGE]))
            await until(lambda: bool(spoiler.asked), fetching)
            honest = ours.donor(TWO)
            await fetching
            assert ours.has(LARGE)
            assert [offset for _, offset in honest.asked] == [HALF, 0]

    asyncio.run(scenario())


def test_a_part_of_an_earlier_start_that_is_spoilt_is_nobody_s_lie(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as ours:
            (ours.store.folder / f"{LARGE.hash}.part").write_bytes(bytes(HALF))
            honest = ours.donor(ONE)
            await ours.exchange.fetch([LARGE])
            assert ours.has(LARGE)
            assert [offset for _, offset in honest.asked] == [HALF, 0]

    asyncio.run(scenario())


def test_a_fetch_that_was_cancelled_goes_on_where_it_was(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as ours:
            here = asyncio.Event()
            stalling = ours.donor(ONE, _stall)

            def progress(done: int, _: int) -> None:
                if done == HALF:
                    here.set()

            fetching = asyncio.create_task(ours.exchange.fetch([LARGE], progress))
            await here.wait()
            fetching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetching
            assert ours.exchange.state == "" and stalling.asked == [(LARGE.hash, 0)]
        async with bench(tmp_path) as later:
            honest = later.donor(ONE)
            await later.exchange.fetch([LARGE])
            assert later.has(LARGE) and honest.asked == [(LARGE.hash, HALF)]

    asyncio.run(scenario())


def test_who_has_nothing_or_no_time_is_passed_over_and_asked_later(tmp_path: Path) -> None:
    replies = {ONE: [Reply(NONE)] * 3, TWO: [Reply(BUSY, position=64)]}

    async def scenario() -> None:
        async with bench(tmp_path) as ours:

            def reluctant(peer: PeerId) -> Callable[..., Awaitable[bool]]:
                async def answer(stream: FrameStream, raw: bytes, offset: int) -> bool:
                    if replies[peer]:
                        await Donor.say(stream, replies[peer].pop())
                        return True
                    return await Donor.answer(donors[peer], stream, raw, offset)

                return answer

            donors = {peer: ours.donor(peer, reluctant(peer)) for peer in (ONE, TWO)}
            await ours.exchange.fetch([LARGE])
            assert ours.has(LARGE), "the busy one had time at last"
            assert len(donors[TWO].asked) == 2 and not replies[TWO]
            assert len(donors[ONE].asked) <= 1, "who said that it has not got it is left alone for a while"

    asyncio.run(scenario())


def test_the_state_says_what_is_waited_for(tmp_path: Path) -> None:
    async def queue(stream: FrameStream, raw: bytes, _: int) -> bool:
        await Donor.say(stream, Reply(WAIT, position=7))
        await asyncio.Event().wait()
        return bool(raw)

    async def scenario() -> None:
        async with bench(tmp_path, patience=replace(QUICK, stall_s=5)) as ours:
            fetching = asyncio.create_task(ours.exchange.fetch([LARGE]))
            await until(
                lambda: "0 of 1 files, 0.0 of 1.0 MB; nobody here offers the rest yet" in ours.exchange.state, fetching
            )
            ours.donor(ONE, queue)
            await until(lambda: "place 7 in a queue" in ours.exchange.state, fetching)
            ours.wire.kill(ONE)
            await until(lambda: f"{ONE}: the stream broke" in ours.exchange.state, fetching)
            ours.donor(TWO, _stall)
            await until(lambda: "0.5 of 1.0 MB, from 1 peer" in ours.exchange.state, fetching)
            fetching.cancel()
            await asyncio.wait({fetching})

    asyncio.run(scenario())


def test_a_full_disk_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    failed: list[int] = []

    def full_twice(file: int, data: bytes) -> int:
        if len(failed) < 2:
            failed.append(file)
            raise OSError(28, "No space left on device")
        return write(file, data)

    async def scenario() -> None:
        async with bench(tmp_path) as ours:
            ours.donor(ONE)
            monkeypatch.setattr(os, "write", full_twice)
            fetching = asyncio.create_task(ours.exchange.fetch([LARGE]))
            await until(lambda: "No space left" in ours.exchange.state, fetching)
            await fetching
            assert ours.has(LARGE) and len(failed) == 2

    asyncio.run(scenario())


def test_more_than_the_cap_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with bench(tmp_path) as ours:
            ours.store.cap = LARGE.bytes - 1
            ours.donor(ONE)
            with pytest.raises(ConfigError, match="set aside"):
                await ours.exchange.fetch([LARGE])
            assert not ours.wire.calls

    asyncio.run(scenario())


def test_a_joiner_gives_what_it_has_while_it_fetches(tmp_path: Path) -> None:
    """Two that fetch at the same time from a founder that serves one request at a time: they help each other."""

    async def scenario() -> None:
        async with bench(tmp_path) as ours:
            founder = await ours.honest(ONE, tmp_path)
            founder._server._limits = Limits(at_once=1)
            other = BlobExchange(
                End(ours.wire, TWO),
                BlobStore(tmp_path / "two"),
                ours.wire.run,
                lambda: text_of(MANIFEST),
                ours.wire.found,
                patience=QUICK,
            )
            await other.start()
            await asyncio.gather(ours.exchange.fetch(ENTRIES), other.fetch(ENTRIES))
            assert ours.has(*ENTRIES)
            assert all(other._store.path(entry) for entry in ENTRIES)

    asyncio.run(scenario())


def test_the_manifest_comes_from_whoever_has_the_right_one(tmp_path: Path) -> None:
    another = manifest_of(ENTRIES[:1])

    async def other_run(stream: FrameStream) -> None:
        await stream.receive()
        await stream.send("manifest", encode_manifest(another))
        await stream.receive()

    async def blob_instead(stream: FrameStream) -> None:
        await stream.receive()
        await Donor.say(stream, Reply(HERE, size=5))
        await stream.receive()

    async def scenario() -> None:
        async with bench(tmp_path) as ours:
            ours.wire.services |= {PEERS[3]: other_run, PEERS[4]: blob_instead}
            late = BlobExchange(End(ours.wire, PEERS[5]), ours.store, ours.wire.run, lambda: None, dict)
            await late.start()
            fetching = asyncio.create_task(ours.exchange.fetch_manifest())
            await until(lambda: len(ours.wire.calls) == 3 and "asked again in" in ours.exchange.state, fetching)
            await ours.honest(ONE, tmp_path, entries=[])
            assert await fetching == MANIFEST
            assert ours.exchange.state == ""
            assert all(ours.wire.calls[peer] == 1 for peer in PEERS[3:6])

    asyncio.run(scenario())
