"""hivemind's client, attached and cut off at any instant: nothing of it is left open or running."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from typing import TYPE_CHECKING

import pytest

from dht.attachment import Attachment
from dht.p2pd import P2pd, P2pdConfig
from peer.identity import Identity

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def config(tmp_path: Path) -> P2pdConfig:
    """Of a p2pd with a home and a key."""
    Identity.from_seed(bytes(32)).save(tmp_path / "key")
    return P2pdConfig(tmp_path, tmp_path / "key", host="127.0.0.1")


async def _nobody(*_: object) -> None:
    raise AssertionError("nobody opens a stream")


async def _attach(control: str) -> None:
    attachment = await Attachment.open(control)
    try:
        await attachment.p2p.add_binary_stream_handler("/murmur/1/test", _nobody)
    finally:
        await attachment.close()


def _tasks() -> int:
    """Tasks beside this one and p2pd's. A connection left open complains when collected, which fails the test run."""
    gc.collect()
    return len([each for each in asyncio.all_tasks() if not each.get_name().startswith("p2pd")]) - 1


def test_cancelled_after_any_number_of_turns_of_the_loop(config: P2pdConfig) -> None:
    async def scenario() -> None:
        async with P2pd(config) as p2pd:
            held = await Attachment.open(p2pd.control)  # p2pd ends when nobody is attached
            before = _tasks()
            for turns in range(40):
                attaching = asyncio.create_task(_attach(p2pd.control))
                for _ in range(turns):
                    await asyncio.sleep(0)
                attaching.cancel()
                await asyncio.gather(attaching, return_exceptions=True)
                assert _tasks() == before
            await p2pd.retire()
            await held.close()
        assert not _tasks()

    asyncio.run(scenario())


def test_p2pd_killed_at_any_moment_of_it(config: P2pdConfig) -> None:
    async def scenario() -> None:
        for turns in range(0, 30, 3):
            async with P2pd(config) as p2pd:
                await p2pd.retire()
                attaching = asyncio.create_task(_attach(p2pd.control))
                for _ in range(turns):
                    await asyncio.sleep(0)
                assert p2pd.pid is not None
                os.kill(p2pd.pid, signal.SIGKILL)
                with contextlib.suppress(OSError, asyncio.IncompleteReadError, RuntimeError):
                    async with asyncio.timeout(10):
                        await attaching
            assert not _tasks()

    asyncio.run(scenario())
