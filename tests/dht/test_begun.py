"""hivemind's own searches, ended at a bad moment: nothing of them is left to the interpreter."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest
from hivemind.dht import traverse
from hivemind.dht.routing import DHTID

from dht.begun import Begun, Watched


async def _search(answers: float) -> None:
    """Two workers ask some nodes; each answers after so many seconds with a failure."""

    async def neighbours(*_: object) -> Any:
        await asyncio.sleep(answers)
        raise ConnectionError("p2pd is gone")

    nodes = [DHTID.generate() for _ in range(4)]
    await traverse.traverse_dht([DHTID.generate()], nodes, 2, 2, 1, neighbours)


def _complaints(answers: float, *, owned: bool) -> list[str]:
    said: list[str] = []

    async def scenario() -> None:
        loop, begun = asyncio.get_running_loop(), Begun()
        loop.set_exception_handler(lambda _, context: said.append(context["message"]))
        with begun.inside(), contextlib.suppress(TimeoutError, AssertionError):
            async with asyncio.timeout(0.1):
                await _search(answers)
        if owned:
            await begun.end()
            assert len(asyncio.all_tasks()) == 1, "nothing of it is left"
        for _ in range(3):
            await asyncio.sleep(0)
            gc.collect()

    asyncio.run(scenario())
    return said


@pytest.mark.parametrize("answers", [0.01, 60.0], ids=["one that fails", "one that is given up"])
def test_a_search_leaves_no_task_to_the_interpreter(answers: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traverse, "asyncio", Watched())
    assert _complaints(answers, owned=True) == []


def test_by_itself_hivemind_leaves_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should this fail, ``dht.begun`` is not needed any more."""
    monkeypatch.setattr(traverse, "asyncio", asyncio)
    assert any("destroyed but it is pending" in each for each in _complaints(0.01, owned=False))
