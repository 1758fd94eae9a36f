"""FC07: the same key on two machines. The second waits in words, takes over, and nothing is signed twice."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.peer.live import address, home_of, journal, murmur, sealed, small_run, until
from tests.peer.short_lease import LIFETIME_S

if TYPE_CHECKING:
    from pathlib import Path

    from peer.identity import Identity
    from tests.peer.live import Live

pytestmark = [pytest.mark.real, pytest.mark.timeout(280)]

PROGRAM = (sys.executable, "-m", "tests.peer.short_lease")


def counted(home: Path, key: Identity, after: int) -> bool:
    """Whether a round above ``after`` took the peer's update."""
    return any(entry["weights"].get(key.peer) for number, entry in sealed(home).items() if number > after)


def waits(live: Live) -> bool:
    """Whether it says that its key is in use."""
    return bool(live.status().get("reason", {}).get("code") == "key_in_use")


def test_second_machine_waits_in_words_takes_over_and_signs_nothing_twice(tmp_path: Path) -> None:
    run, keys = small_run(tmp_path, founders=4, seconds=1)
    homes = [home_of(tmp_path, key, f"home-{index}") for index, key in enumerate(keys)]
    key, first, second = keys[3], homes[3], home_of(tmp_path, keys[3], "copy")
    options = ("up", "--threads=1", "--listen=127.0.0.1", f"--run={run}")
    with contextlib.ExitStack() as stack:

        def start(home: Path, *more: str) -> Live:
            return stack.enter_context(murmur(home, *options, *more, program=PROGRAM))

        others = [start(homes[0])]
        joins = f"--join={address(others[0])}"
        others += [start(home, joins) for home in homes[1:3]]
        one = start(first, joins)
        until(lambda: counted(homes[0], key, 0), 90, "the first machine's work counts")

        two = start(second, joins)
        until(lambda: waits(two), 30, "the second says why it waits")
        text = two.status()["reason"]["text"]
        assert "this key is running on another machine (since 20" in text and "stop that one, or wait" in text
        assert two.status()["state"] == "seeking"
        before = max(sealed(homes[0]))
        until(lambda: max(sealed(homes[0])) >= before + 3, 60, "rounds go on beside the one that waits")
        assert counted(first, key, before), "and the first takes part in them"
        assert waits(two), "longer than a lease"
        assert not list(second.glob("runs/*/journal")) or not journal(second), "it has signed nothing"

        assert one.asked(signal.SIGTERM, 20) == 0
        one = start(first, joins)
        before = max(sealed(homes[0]))
        until(lambda: two.status().get("state") == "training", 30, "the second takes over at once")
        until(lambda: waits(one), 30, "and the first waits now")
        until(lambda: counted(homes[0], key, before), 90, "the second machine's work counts")

        two.process.kill()
        killed = time.monotonic()
        until(lambda: one.status().get("state") == "training", LIFETIME_S + 15, "the first takes over after the lease")
        assert time.monotonic() - killed > 2, "not before"
        before = max(sealed(homes[0]))
        until(lambda: counted(homes[0], key, before), 90, "its work counts again")
        assert one.asked(signal.SIGTERM, 20) == 0
        for live in others:
            assert live.asked(signal.SIGTERM, 20) == 0
    signed = journal(first), journal(second)
    shared = signed[0].keys() & signed[1].keys()
    assert not [slot for slot in shared if signed[0][slot] != signed[1][slot]], "nothing is signed twice"
    assert signed[1], "the second has signed something"
