"""Blobs over real p2pd: services beside the rounds, and a provider that is killed in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from blake3 import blake3

from dht import limits
from dht.links import Refused
from peer.blob_exchange import BlobExchange
from peer.blobs import BlobStore
from peer.identity import Identity
from protocols.errors import RemoteError, TransportError
from protocols.manifest import ShardEntry, render, run_id, sign
from protocols.manifest_defaults import Choices, default_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from dht.stream import FrameStream

    OpenNode = Callable[..., AbstractAsyncContextManager[Any]]

ECHO = "/murmur/1/test"
RAWS = [Random(number).randbytes(5 << 20) for number in (1, 2)]
ENTRIES = tuple(ShardEntry(f"shard-{at}", len(raw), blake3(raw).hexdigest()) for at, raw in enumerate(RAWS))


async def echo(stream: FrameStream) -> None:
    """Answer one frame."""
    kind, payload = await stream.receive()
    if payload == b"lie":
        raise RemoteError(stream.peer, "lies")
    await stream.send(kind, [payload])


def test_a_service_answers_beside_the_rounds_and_after_a_restart(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as one, open_node(2) as two:
            peer, addresses = two.transport.peer, two.transport.addresses()
            with pytest.raises(TransportError, match="protocols not supported"):
                async with one.transport.call(peer, ECHO, addresses):
                    pass
            await two.transport.serve(ECHO, echo)

            async def ask(payload: bytes) -> tuple[str, bytes]:
                async with one.transport.call(peer, ECHO, addresses) as stream:
                    await stream.send("bytes", [payload])
                    answer: tuple[str, bytes] = await stream.receive()
                    return answer

            before = one.transport.traffic().sent
            assert await ask(b"x" * 100_000) == ("bytes", b"x" * 100_000)
            assert 100_000 < one.transport.traffic().sent - before < 101_000
            assert one.transport.neighbours() == two.transport.neighbours() == frozenset(), "it is no neighbour by that"
            os.kill(two.p2pd.pid, signal.SIGKILL)
            await two.restarted.wait()
            assert await ask(b"again") == ("bytes", b"again")
            started = asyncio.get_running_loop().time()
            assert [await ask(b"soon again") for _ in range(3)] == [("bytes", b"soon again")] * 3
            assert asyncio.get_running_loop().time() - started < 1.5, "a call ends without waiting for the other side"
            with pytest.raises(TransportError):
                await ask(b"lie")
            assert two.transport.hang_ups == 1
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_words_on_a_stream_that_we_opened_are_paced(open_node: OpenNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FRAMES_EACH", limits.Rate(10, 2))

    async def talk(stream: FrameStream) -> None:
        for size in (limits.SMALL_FRAME + 1,) * 4 + (1,) * 4:
            await stream.send("bytes", [bytes(size)])
        await stream.receive()

    async def scenario() -> None:
        async with open_node(1) as one, open_node(2) as two:
            await two.transport.serve(ECHO, talk)
            paced = []
            async with one.transport.call(two.transport.peer, ECHO, two.transport.addresses()) as stream:
                for _ in range(8):
                    await stream.receive()
                    paced.append(next(each.refused for each in one.transport.guard.gauges() if each.name == "frames"))
            assert paced[3] == 0 and paced[7] > 0

    asyncio.run(scenario())


def test_a_service_is_for_one_run(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as one, open_node(2, run=b"x" * 32) as two:
            await two.transport.serve(ECHO, echo)
            with pytest.raises(Refused, match="belongs to run 7878"):
                async with one.transport.call(two.transport.peer, ECHO, two.transport.addresses()):
                    pass

    asyncio.run(scenario())


@pytest.mark.real
def test_what_a_killed_provider_has_sent_is_not_sent_again(open_node: OpenNode, tmp_path: Path) -> None:
    async def scenario() -> None:
        key = Identity.from_seed(bytes([1]) * 32)
        manifest = sign(default_manifest(Choices(), founders=[key.peer], shards=ENTRIES), key.peer, key.sign)
        run = run_id(manifest)
        async with open_node(1, run=run) as ours, open_node(2, run=run) as one, open_node(3, run=run) as two:
            givers = []
            for at, node in enumerate((one, two)):
                store = BlobStore(tmp_path / f"blobs-{at}")
                for raw in RAWS:
                    store.put(raw)
                givers.append(BlobExchange(node.transport, store, run, lambda: render(manifest), dict))
                await givers[-1].start()
            where = {node.transport.peer: node.transport.addresses() for node in (one, two)}
            store = BlobStore(tmp_path / "blobs")
            exchange = BlobExchange(ours.transport, store, run, lambda: None, lambda: where)
            assert await exchange.fetch_manifest() == manifest

            def progress(done: int, total: int) -> None:
                if done > total // 3 and not killed:
                    killed.append(one.p2pd.pid)
                    os.kill(one.p2pd.pid, signal.SIGKILL)

            killed: list[int] = []
            before = ours.transport.traffic().received
            async with asyncio.timeout(30):
                await exchange.fetch(ENTRIES, progress)
            assert killed
            for entry, raw in zip(ENTRIES, RAWS, strict=True):
                path = store.path(entry)
                assert path is not None and path.read_bytes() == raw
            received = ours.transport.traffic().received - before
            assert received < sum(map(len, RAWS)) + 2 * (256 << 10) + 20_000, "at most what was under way comes twice"

    asyncio.run(scenario())
