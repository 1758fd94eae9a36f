"""Directory nodes over real p2pd: peers that know one seed find each other."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import msgpack
import psutil
import pytest
from hivemind.dht.routing import DHTID

from dht import validator as validator_module
from dht.directory import Directory, DirectoryTiming
from dht.records import PeerRecord, encode_record, expiration_of, key_of
from dht.seeds import Seed, Seeds, SeedTiming
from peer.identity import Identity
from protocols.errors import ConfigError, LocalError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    OpenNode = Callable[..., AbstractAsyncContextManager[Any]]

RUN = bytes(range(32))
LOOK_S = 0.25
"""Between two looks: who asks more than four times a second is refused, and after a hundred refusals punished."""
QUICK = DirectoryTiming(retry_s=0.2, seeds=SeedTiming(first_retry_s=0.1, last_retry_s=0.5, recheck_s=0.5))


@contextlib.asynccontextmanager
async def _directory(node: Any, seeds: list[str], clock: Callable[[], float] = time.time) -> AsyncIterator[Directory]:
    directory = Directory(node.transport, RUN, node.identity.sign, timing=QUICK, clock=clock)
    await directory.start(seeds)
    try:
        yield directory
    finally:
        await directory.close()


def _record(node: Any) -> PeerRecord:
    addresses = tuple(node.transport.addresses())
    return PeerRecord(RUN, node.transport.peer, addresses, ("trainer",), "0.1.0", head_round=3, sequence=0, expires=0)


async def _tried(directory: Directory) -> list[Seed]:
    """The seeds, once each was tried."""
    async with asyncio.timeout(20):
        while any(seed.state == "trying" and seed.error is None for seed in directory.seeds()):
            await directory.peers()
            await asyncio.sleep(LOOK_S)
    return directory.seeds()


async def _find(directory: Directory, wanted: set[str], newer: int = 0) -> dict[str, PeerRecord]:
    """The records, once those of all ``wanted`` are here and of a higher sequence than ``newer``."""
    async with asyncio.timeout(20):
        while True:
            found = {record.peer: record for record in await directory.peers()}
            if set(found) >= wanted and all(found[each].sequence > newer for each in wanted):
                return found
            await asyncio.sleep(LOOK_S)


def test_peers_find_each_other_through_one_seed_and_connect(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            seed, one, two = [await stack.enter_async_context(open_node(number)) for number in (1, 2, 3)]
            await stack.enter_async_context(_directory(seed, []))
            dead = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.from_seed(bytes(32)).peer}"
            address = seed.transport.addresses()[0]
            first = await stack.enter_async_context(_directory(one, [address, dead]))
            second = await stack.enter_async_context(_directory(two, [address]))
            first.announce(_record(one))
            second.announce(_record(two))
            everyone = {one.transport.peer, two.transport.peer}
            for directory in (first, second):
                found = await _find(directory, everyone)
                assert found[one.transport.peer].addresses == tuple(one.transport.addresses())
                assert abs(found[one.transport.peer].sequence / 1000 - time.time()) < 60
            await one.transport.connect(two.transport.peer, found[two.transport.peer].addresses)

            good, bad = await _tried(first)
            assert (good.address, good.state, good.error, good.retry_s) == (address, "ok", None, None)
            assert bad.address == dead and bad.state in {"failed", "trying"}
            assert bad.error is not None and "refused" in bad.error

            with pytest.raises(LocalError, match="only its own record"):
                first.announce(_record(two))

    asyncio.run(scenario())


def test_of_a_flood_of_new_records_few_are_looked_at_each_time(
    open_node: OpenNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A donor holds more records than are checked in one answer: those known already leave room for others."""
    monkeypatch.setattr(validator_module, "SIGNATURES", 3)

    async def scenario() -> None:
        async with open_node(1) as seed, open_node(2) as one, _directory(seed, []) as there:
            expires = int(time.time()) + 100
            for number in range(40, 47):
                key = Identity.from_seed(bytes([number]) * 32)
                record = PeerRecord(RUN, key.peer, (), (), "0.1.0", 0, 1, expires)
                value = msgpack.packb(encode_record(record, key.sign))
                where, until = DHTID.generate(source=key_of(RUN)), expiration_of(record)
                there._node._node.protocol.storage.store(where, value, until, subkey=key.peer)
            here = Directory(one.transport, RUN, one.identity.sign, timing=QUICK)
            await here.start(seed.transport.addresses(), client=True)  # whoever serves is told records, too
            try:
                async with asyncio.timeout(20):
                    counts = [len(await here.records())]
                    while counts[-1] < 7:
                        await asyncio.sleep(LOOK_S)
                        counts.append(len(await here.records()))
                assert [each for each in dict.fromkeys(counts) if each] == [3, 6, 7]
            finally:
                await here.close()

    asyncio.run(scenario())


def test_record_comes_back_after_a_restart_of_p2pd(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as seed, open_node(2) as one, _directory(seed, []) as there:
            async with _directory(one, seed.transport.addresses()) as here:
                here.announce(_record(one))
                before = (await _find(there, {one.transport.peer}))[one.transport.peer]
                os.kill(one.p2pd.pid, signal.SIGKILL)
                async with asyncio.timeout(15):
                    await one.restarted.wait()
                    await here.rebind()
                    await _find(there, {one.transport.peer}, newer=before.sequence)

    asyncio.run(scenario())


def test_a_node_that_only_asked_serves_others_once_it_is_begun_anew(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as seed, open_node(2) as one, open_node(3) as two, _directory(seed, []):
            here = Directory(one.transport, RUN, one.identity.sign, timing=QUICK)
            await here.start(seed.transport.addresses(), client=True)
            try:
                async with _directory(two, one.transport.addresses()[:1]) as there:
                    (state,) = await _tried(there)
                    assert state.error is not None and "serves no directory" in state.error
                    here.client = False
                    await asyncio.gather(here.rebind(), here.rebind())
                    there.announce(_record(two))
                    await _find(here, {two.transport.peer})
            finally:
                await here.close()

    asyncio.run(scenario())


def test_wrong_clock_is_named_with_its_offset(open_node: OpenNode) -> None:
    async def scenario() -> None:
        async with open_node(1) as seed, open_node(2) as late, _directory(seed, []):
            addresses = seed.transport.addresses()[:1]
            async with _directory(late, addresses, lambda: time.time() - 10) as directory:
                (state,) = await _tried(directory)
                assert state.state in {"failed", "trying"} and state.error is not None
                figure = re.search(r"its clock is ([0-9.]+) s ahead of ours \(3 s allowed\)", state.error)
                assert figure and abs(float(figure[1]) - 10) < 0.5, f"half of what the answer took: {state.error}"

    asyncio.run(scenario())


@pytest.mark.parametrize("after", [0.05, 0.6])
def test_a_search_that_is_under_way_when_the_node_ends_complains_of_nothing(open_node: OpenNode, after: float) -> None:
    async def scenario() -> None:
        said: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
        async with open_node(1) as seed, open_node(2) as one, _directory(seed, []):
            async with _directory(one, seed.transport.addresses()[:1]) as there:
                await _tried(there)
                frozen = psutil.Process(seed.p2pd.pid)
                frozen.suspend()
                looking = asyncio.create_task(there.peers())
                await asyncio.sleep(after)
            frozen.resume()
            await looking
            for _ in range(3):
                await asyncio.sleep(0)
                gc.collect()
        assert said == []

    asyncio.run(scenario())


@pytest.mark.parametrize("address", ["", "seed.example.org", "/ip4/127.0.0.1/tcp/1", "/ip4/127.0.0.1/tcp/1/p2p/Qm"])
def test_malformed_seed_is_a_configuration_error(open_node: OpenNode, address: str) -> None:
    async def scenario() -> None:
        async def attempt(*_: object) -> None:
            raise AssertionError("never tried")

        with pytest.raises(ConfigError, match="seed|peer id"):
            Seeds([address], attempt, timing=SeedTiming())

    asyncio.run(scenario())
