"""The trainer process from the daemon's side: it trains, it is replaced, it never outlives its daemon."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from peer import corpus
from peer.data import Corpus, Shard
from peer.learner import Learner
from peer.models import initial_vector
from peer.slots import Slots
from peer.training import DataConfig, TrainConfig, Window
from peer.worker import TrainerLost, Worker
from protocols.errors import ConfigError, EnvironmentFault, LocalError

ROOT = Path(__file__).parents[2]
CONFIG = TrainConfig(DataConfig(corpus.SHARDS), size="nano", context=32)
START = initial_vector("nano", 32, 0)
WINDOW = Window(bytes(32), "a", steps=12)
ENDLESS = replace(WINDOW, steps=10**9)

PARENT = """
import asyncio, sys
from peer import corpus
from peer.training import DataConfig, TrainConfig, Window
from peer.models import initial_vector
from peer.worker import Worker

async def main():
    worker = Worker(TrainConfig(DataConfig(corpus.SHARDS), size="nano", context=32), threads=1)
    await worker.start()
    assert "torch" not in sys.modules
    print(worker.pid, flush=True)
    await worker.train(initial_vector("nano", 32, 0), Window(bytes(32), "a", steps=10**9))

asyncio.run(main())
"""


def ends_within(pid: int, seconds: float) -> bool:
    """Whether the process, ours or not, ends in time."""
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watch], [], [], seconds)[0])
    finally:
        os.close(watch)


async def first_progress(worker: Worker, window: Window) -> asyncio.Task[object]:
    """A window in flight, of which the first steps are known to be done."""
    seen = asyncio.Event()
    worker._progress = lambda step, loss: seen.set()
    task: asyncio.Task[object] = asyncio.create_task(worker.train(START, window))
    await asyncio.wait_for(seen.wait(), 60)
    return task


@pytest.mark.real
def test_a_window_has_the_bits_of_the_same_window_anywhere_on_this_machine() -> None:
    async def train() -> np.ndarray:
        worker = Worker(CONFIG, threads=1)
        await worker.start()
        try:
            result = await worker.train(START, WINDOW)
            assert (result.steps, result.tokens) == (12, 12 * 16 * 32)
            assert 3.0 < result.last_loss < result.loss < 5.6
            assert not result.end.flags.writeable
            first = result.end.copy()
            await worker.train(first, replace(WINDOW, parent=b"\1" * 32))
            again = await worker.train(START, WINDOW)
            assert np.array_equal(first, again.end)
            loss = await worker.evaluate(first)
            mine = Learner(CONFIG, Corpus(corpus.shakespeare(), CONFIG.data, context=32))
            assert loss == pytest.approx(mine.evaluate(first), abs=1e-5)
            return first
        finally:
            await worker.stop()

    assert np.array_equal(asyncio.run(train()), asyncio.run(train()))


@pytest.mark.real
def test_a_dead_trainer_is_replaced_and_the_window_can_be_asked_for_again() -> None:
    async def scenario() -> None:
        worker = Worker(CONFIG, threads=1)
        await worker.start()
        try:
            task = await first_progress(worker, ENDLESS)
            dead = worker.pid
            assert dead is not None
            os.kill(dead, signal.SIGKILL)
            with pytest.raises(TrainerLost, match="died"):
                await asyncio.wait_for(task, 10)
            assert (await worker.train(START, WINDOW)).steps == 12
            assert worker.restarts == 1
            assert worker.pid not in (None, dead)
            assert worker.rss is not None
            assert worker.rss > 50 << 20
        finally:
            await worker.stop()
        assert worker.pid is None

    asyncio.run(scenario())


@pytest.mark.real
def test_an_abandoned_window_makes_room_for_the_next_and_stop_does_not_wait_for_one() -> None:
    async def scenario() -> None:
        worker = Worker(CONFIG, threads=1)
        await worker.start()
        pid = worker.pid
        try:
            task = await first_progress(worker, ENDLESS)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await worker.train(START, WINDOW)).steps == 12
            with pytest.raises(LocalError, match="shape"):
                await worker.evaluate(START[:-1])
            assert worker.pid == pid
            task = await first_progress(worker, ENDLESS)
        finally:
            await asyncio.wait_for(worker.stop(), 3)
        with pytest.raises(LocalError):
            await task
        assert pid is not None
        assert ends_within(pid, 0)
        with pytest.raises(LocalError, match="not running"):
            await worker.evaluate(START)

    asyncio.run(scenario())


@pytest.mark.real
def test_a_silent_trainer_is_killed_while_it_works_and_when_it_should_stop() -> None:
    async def scenario() -> None:
        worker = Worker(CONFIG, threads=1, stall_s=1.0)
        await worker.start()
        try:
            task = await first_progress(worker, ENDLESS)
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGSTOP)
            with pytest.raises(TrainerLost, match="said nothing"):
                await asyncio.wait_for(task, 10)
            assert (await worker.train(START, WINDOW)).steps == 12
            pid = worker.pid
            os.kill(pid, signal.SIGSTOP)
        finally:
            await asyncio.wait_for(worker.stop(), 4)
        assert ends_within(pid, 0)

    asyncio.run(scenario())


def test_a_trainer_without_its_data_says_so_in_words(tmp_path: Path) -> None:
    entries = (Shard.of("one.txt", b"one" * 1000).entry,)
    (tmp_path / "one.txt").write_bytes(b"two" * 1000)

    async def start(data: DataConfig) -> None:
        worker = Worker(replace(CONFIG, data=data))
        try:
            await worker.start()
        finally:
            assert worker.pid is None

    with pytest.raises(EnvironmentFault, match=r"another text for the shard one\.txt") as fault:
        asyncio.run(start(DataConfig(entries, name="mine", folder=str(tmp_path))))
    assert "put the run's own text back" in fault.value.remedy
    (tmp_path / "one.txt").write_bytes(b"one" * 10)
    small = (Shard.of("one.txt", b"one" * 10).entry,)
    with pytest.raises(ConfigError, match="too small"):
        asyncio.run(start(DataConfig(small, name="mine", folder=str(tmp_path))))


def test_a_trainer_that_cannot_start_is_an_environment_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(EnvironmentFault, match="No such file"):
        asyncio.run(Worker(CONFIG).start())


@pytest.mark.real
def test_the_trainer_ends_when_its_daemon_is_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        trainer = int(parent.stdout.readline())
        parent.kill()
    assert ends_within(trainer, 5)


def test_the_end_of_the_channel_alone_ends_the_trainer() -> None:
    ours, theirs = socket.socketpair()
    give, take = socket.socketpair()
    fds = (theirs.fileno(), take.fileno())
    given = ["--channel", str(fds[0]), "--slots", str(fds[1]), "--threads", "1", "--parent", str(os.getpid())]
    command = [sys.executable, "-m", "peer.trainer", *given]
    with subprocess.Popen(command, pass_fds=fds, cwd=ROOT) as trainer:
        for each in (theirs, take, give, ours):
            each.close()
        assert trainer.wait(30) == 0


def test_a_trainer_can_be_started_before_it_is_known_what_it_trains() -> None:
    async def scenario() -> None:
        worker = Worker(threads=1)
        worker.prepare()
        worker.prepare()
        try:
            await worker.start(CONFIG)
            assert (await worker.train(START, WINDOW)).steps == 12
            assert worker.restarts == 0
        finally:
            await worker.stop()
        idle = Worker(threads=1)
        idle.prepare()
        async with asyncio.timeout(10):
            await idle.stop()
        assert idle.pid is None

    asyncio.run(scenario())


def test_slots_are_shared_and_outlive_their_file() -> None:
    slots = Slots.create(1000)
    other = Slots(os.dup(slots.fd), 1000)
    slots.start[:] = 1.5
    other.end[:] = 2.5
    slots.close()
    other.close()
    slots.close()
    assert np.all(other.start == np.float32(1.5))
    assert np.all(slots.end == np.float32(2.5))


def test_memory_that_is_not_there_is_an_environment_fault() -> None:
    with pytest.raises(EnvironmentFault, match="no room"):
        Slots.create(1 << 45)
