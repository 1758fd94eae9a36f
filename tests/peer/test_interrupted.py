"""A paused and resumed trainer goes on bit for bit: against windows that nothing interrupts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peer import corpus, trainer
from peer.data import Corpus
from peer.interrupted import NO_WINDOW, Interrupted, origin_of, read, write
from peer.learner import Learner
from peer.models import initial_vector
from peer.slots import Slots
from peer.trainer import Trainer
from peer.training import DataConfig, InnerConfig, TrainConfig, Window
from peer.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CONFIG = TrainConfig(DataConfig(corpus.SHARDS), size="nano", context=32, seed=3)
START = initial_vector("nano", 32, 3)
WINDOW = Window(bytes(32), "a", steps=6)


@cache
def data() -> Corpus:
    return Corpus(corpus.shakespeare(), CONFIG.data, context=32)


def learner(inner: InnerConfig) -> Learner:
    return Learner(replace(CONFIG, inner=inner), data())


def windows(steps: list[int]) -> list[Window]:
    return [Window(bytes([i]) * 32, "a", steps=each) for i, each in enumerate(steps)]


def straight(inner: InnerConfig, steps: list[int]) -> tuple[np.ndarray, list[float]]:
    """Windows one after the other, each from the end of the one before; the losses of all."""
    one, vector, losses = learner(inner), START, []
    for window in windows(steps):
        end = np.empty_like(START)
        result = one.train(vector, window, end=end)
        assert result is not None
        losses += [result.loss, result.last_loss]
        vector = end
    return vector, losses


def until(cuts: set[int], done: int, window: Window) -> Callable[[int, float], bool]:
    """Goes on but after a step in ``cuts``; the window's last ends it anyway."""
    return lambda step, _: done + step not in cuts or step == window.steps


def paused(inner: InnerConfig, steps: list[int], cuts: set[int], path: Path) -> tuple[np.ndarray, list[float]]:
    """The same, with a new learner after each of the steps in ``cuts``, counted over all windows."""
    one, vector, losses, done = learner(inner), START, [], 0
    for window in windows(steps):
        end, kept, result = np.empty_like(START), None, None
        while result is None:
            result = one.train(vector, window, end=end, on_step=until(cuts, done, window), interrupted=kept)
            if result is None:
                cuts = cuts - {done + len(one._losses)}
                state = one.interrupt(origin_of(window, vector))
                assert state is not None
                write(path, state)
                one, kept = learner(inner), read(path, CONFIG.parameters)
                assert kept is not None
                assert kept.origin == origin_of(window, vector)
        done += window.steps or 0
        losses += [result.loss, result.last_loss]
        vector = end
        if done in cuts and (state := one.interrupt(None)) is not None:  # between two windows
            write(path, state)
            again = read(path, CONFIG.parameters)
            one = learner(inner)
            assert again is not None
            one.take_up(again)
    return vector, losses


INNERS = st.builds(
    InnerConfig,
    optimizer=st.sampled_from(["adamw", "sgd"]),
    reset=st.booleans(),
    clip=st.sampled_from([0.0, 1.0]),
    warmup=st.sampled_from([0, 3]),
    batch=st.just(4),
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(INNERS, st.lists(st.integers(1, 4), min_size=1, max_size=3), st.sets(st.integers(1, 12), max_size=4))
def test_paused_training_has_the_bits_and_losses_of_unpaused_training(
    tmp_path: Path, inner: InnerConfig, steps: list[int], cuts: set[int]
) -> None:
    want, losses = straight(inner, steps)
    got, same = paused(inner, steps, cuts, tmp_path / "window")
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))
    assert same == losses


def state(**changes: object) -> Interrupted:
    given: dict[str, object] = {"origin": NO_WINDOW, "age": 2, "seconds": 1.5, "losses": (3.0, 2.5)}
    vectors = {"parameters": np.arange(5, dtype=np.float32), "exp_avg": np.full(5, -0.0, np.float32)}
    return Interrupted(**{**given, "vectors": vectors, **changes})  # type: ignore[arg-type]


def test_what_a_pause_leaves_is_read_as_it_was_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "window"
    assert read(path, 5) is None
    write(path, state())
    got = read(path, 5)
    assert got is not None
    assert (got.origin, got.age, got.seconds, got.losses) == (NO_WINDOW, 2, 1.5, (3.0, 2.5))
    assert {name: each.tobytes() for name, each in got.vectors.items()} == {
        name: each.tobytes() for name, each in state().vectors.items()
    }
    assert read(path, 6) is None
    raw = path.read_bytes()
    for spoilt in (raw[:-1], raw[:40], b"", raw[:-3] + b"\0\0\1", b"\xff" * 60):
        path.write_bytes(spoilt)
        assert read(path, 5) is None
    write(path, state(age=1))  # fewer steps of the optimizer than of the window
    assert read(path, 5) is None


def test_a_window_is_known_by_all_that_its_steps_follow_from() -> None:
    other = START.copy()
    other[0] = -other[0]
    origins = {
        origin_of(window, start)
        for start in (START, other)
        for window in (
            WINDOW,
            replace(WINDOW, parent=b"\1" * 32),
            replace(WINDOW, peer="b"),
            replace(WINDOW, steps=7),
            replace(WINDOW, first_step=1),
            Window(bytes(32), "a", seconds=6.0),
        )
    }
    assert len(origins) == 12


class Killed(Exception):
    """A trainer ends in the middle of its window."""


class Ear:
    """A channel that says nothing; a real one ends the process with its other end."""

    loaded = ending = False

    def send(self, kind: str, **fields: object) -> None:
        """Nobody listens."""


@contextlib.contextmanager
def trainer_of(path: Path) -> Iterator[tuple[Trainer, Slots]]:
    """A trainer in this process, set up, and the slots that it shares."""
    give, take = socket.socketpair()
    slots = Slots.create(CONFIG.parameters)
    slots.start[:] = START
    with give, take:
        socket.send_fds(give, [b"slots"], [slots.fd])
        made = Trainer(cast("Any", Ear()), take)
        made._set_up({"kind": "setup", "config": CONFIG.to_plain(), "kept": str(path)}, "cpu")
        yield made, slots
    slots.close()
    made._slots.close()


def test_where_steps_are_slow_a_killed_trainer_leaves_its_window_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "SLOW_S", 0.0)
    monkeypatch.setattr(trainer, "KEEP_S", 0.0)
    path, seen = tmp_path / "window", list[int]()

    def on_step(step: int, _loss: float) -> bool:
        seen.append(step)
        if len(seen) == 4:
            raise Killed
        return True

    with trainer_of(path) as (first, _), pytest.raises(Killed):
        first._train(WINDOW, on_step)
    kept = read(path, CONFIG.parameters)
    assert kept is not None
    assert len(kept.losses) == 4
    with trainer_of(path) as (second, slots):
        second._train(WINDOW, on_step)
        assert seen == [1, 2, 3, 4, 5, 6]
        assert np.array_equal(slots.end, straight(CONFIG.inner, [6])[0])
    assert not path.exists()


@pytest.mark.real
@pytest.mark.timeout(180)
def test_a_paused_process_is_gone_within_two_seconds_and_its_window_goes_on(tmp_path: Path) -> None:
    window = replace(WINDOW, steps=800)

    async def scenario(pauses: int) -> tuple[np.ndarray, float]:
        seen = asyncio.Event()
        steps: list[int] = []

        def progress(step: int, _loss: float) -> None:
            steps.append(step)
            seen.set()

        worker = Worker(CONFIG, threads=1, progress=progress)
        await worker.start(kept=tmp_path / f"window-{pauses}")
        try:
            task = asyncio.create_task(worker.train(START, window))
            for _ in range(pauses):
                seen.clear()
                await asyncio.wait_for(seen.wait(), 60)
                before, pid, began = steps[-1], worker.pid, time.monotonic()
                await worker.pause()
                assert time.monotonic() - began < 2
                assert worker.pid is None
                assert pid is not None
                with pytest.raises(ProcessLookupError):
                    os.kill(pid, 0)
                assert not task.done()
                await worker.pause()  # does no harm
                worker.resume()
                seen.clear()
                await asyncio.wait_for(seen.wait(), 60)
                assert steps[-1] > before  # it did not begin anew
            result = await asyncio.wait_for(task, 60)
            assert worker.restarts == 0
            return result.end.copy(), result.loss
        finally:
            await worker.stop()

    want, loss = asyncio.run(scenario(0))
    got, same = asyncio.run(scenario(2))
    assert np.array_equal(got, want)
    assert same == loss
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real
@pytest.mark.timeout(180)
def test_a_pause_before_anything_is_loaded_and_one_before_the_start() -> None:
    async def scenario() -> None:
        worker = Worker(threads=1)
        worker.prepare()
        await asyncio.sleep(0)
        await worker.pause()
        assert worker.pid is None
        await worker.start(CONFIG)  # returns although no trainer may run
        task = asyncio.create_task(worker.evaluate(START))
        await asyncio.sleep(0)
        assert worker.pid is None
        worker.resume()
        assert 5.0 < await asyncio.wait_for(task, 60) < 6.5
        await worker.stop()
        paused = Worker(CONFIG, threads=1)
        await paused.pause()
        await paused.start()
        async with asyncio.timeout(5):
            await paused.stop()

    asyncio.run(scenario())
