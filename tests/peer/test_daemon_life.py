"""One real daemon alone: it adds up rounds, survives kill -9 at any instant, ends when asked, and stays small."""

from __future__ import annotations

import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.peer.live import Live, gone, home_of, journal, murmur, run_folder, sealed, small_run, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

ALONE = ("up", "--alone", "--threads=1")
UNTIDY = re.compile(r"Traceback|ResourceWarning|never (awaited|retrieved)|destroyed but|ERROR|CRITICAL")


def seals(home: Path) -> list[str]:
    return [entry["seal"] for _, entry in sorted(sealed(home).items())]


def tidy(live: Live) -> None:
    """Nothing was left open, unawaited or unseen at the end."""
    assert live.complaints == ""
    assert not UNTIDY.search(live.log), live.log


def finish(home: Path, run: Path, rounds: int) -> Live:
    """Run ``rounds`` more rounds to a clean end."""
    with murmur(home, *ALONE, f"--run={run}", f"--rounds={rounds}", environment={"PYTHONWARNINGS": "default"}) as live:
        assert live.ends() == 0, live.complaints
    return live


def test_rounds_add_up_over_restarts(tmp_path: Path) -> None:
    run, (key,) = small_run(tmp_path)
    home = home_of(tmp_path, key)
    for total in (2, 4):
        live = finish(home, run, 2)
        tidy(live)
        assert sorted(sealed(home)) == list(range(1, total + 1))
        assert all(entry["final"] for entry in sealed(home).values())
        assert live.printed.splitlines()[-1] == f"stopped at sealed round {total}"
    assert "going on after sealed round 2" in live.printed


DEADLY = """
import os, signal, sys
from peer import daemon
from peer.cli import main
from peer.journal import Journal
from peer.state import StateStore

where, count = sys.argv.pop(1), int(sys.argv.pop(1))

def die_at(method):
    def wrapped(self, *arguments):
        global count
        if where == "before":
            count -= 1
            if count == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        result = method(self, *arguments)
        if where in ("journal", "after"):
            count -= 1
            if count == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return result
    return wrapped

if where == "journal":
    Journal._append = die_at(Journal._append)
else:
    StateStore.save = die_at(StateStore.save)
main()
"""

INSTANTS = [("journal", 1), ("journal", 2), ("journal", 5), ("before", 1), ("after", 1), ("journal", 9)]
"""In this order in one home: right after the n-th statement is on disk; before and after a checkpoint is written."""


def test_killed_at_any_instant_it_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    run, (key,) = small_run(tmp_path)
    home = home_of(tmp_path, key)
    signed: dict[tuple[str, bytes], bytes] = {}
    for where, count in INSTANTS:
        program = (sys.executable, "-c", DEADLY, where, str(count))
        with murmur(home, *ALONE, f"--run={run}", program=program) as live:
            assert live.ends() == -signal.SIGKILL, live.complaints
        now = journal(home)
        assert signed.items() <= now.items(), "what was signed once is never signed otherwise"
        assert len(now) > len(signed) or where != "journal" or count == 1
        signed = now
    live = finish(home, run, 2)
    tidy(live)
    assert signed.items() <= journal(home).items()
    assert "committed other bytes" not in live.log
    # int8 updates leave a drift, so equal seals mean that it survived every restart as well. A kill between
    # checkpoint and log leaves the round out of the log, which is for people only.
    other = home_of(tmp_path, key, "undisturbed")
    last = max(sealed(home))
    finish(other, run, last)
    assert last == 4 and len(sealed(home)) >= 3
    assert set(seals(home)) <= set(seals(other)) and seals(home)[-1] == seals(other)[-1]


def test_a_damaged_newest_checkpoint_costs_one_round_and_is_named(tmp_path: Path) -> None:
    run, (key,) = small_run(tmp_path)
    home = home_of(tmp_path, key)
    finish(home, run, 2)
    before, signed = seals(home), journal(home)
    newest = run_folder(home) / "round-00000002.safetensors"
    damaged = bytearray(newest.read_bytes())
    damaged[-1] ^= 1
    newest.write_bytes(damaged)
    live = finish(home, run, 1)
    assert "checkpoint of round 2 is damaged" in live.complaints
    assert "going on after sealed round 1" in live.printed
    # It was ready on top of the lost seal, and votes in no view below that: round 2 is given up, its drift stays.
    after = sealed(home)
    assert [after[number]["void"] for number in sorted(after)] == [False, True, False]
    assert seals(home)[0] == before[0] and after[2]["state_hash"] == after[1]["state_hash"]
    assert signed.items() <= journal(home).items()


@pytest.mark.parametrize(("moment", "number"), [("starting", signal.SIGTERM), ("training", signal.SIGINT)])
def test_a_signal_ends_it_within_5_s(tmp_path: Path, moment: str, number: signal.Signals) -> None:
    run, (key,) = small_run(tmp_path, steps=100_000 if moment == "training" else 2)
    with murmur(home_of(tmp_path, key), *ALONE, f"--run={run}") as live:
        live.says("identity")  # seconds before training begins
        if moment == "training":
            until(lambda: (live.status().get("round", {}).get("progress") or 0) > 0, 60, "it trains")
        family = live.family()
        assert live.asked(number, 5) == 0
        gone(family, 0.5)
    tidy(live)
    assert (
        live.printed.splitlines()[-1]
        == {
            "starting": "stopped before training began",
            "training": "stopped at sealed round 0",
        }[moment]
    )
    assert not live.home.api.exists()


def test_stop_and_status_while_it_trains(tmp_path: Path) -> None:
    run, (key,) = small_run(tmp_path, steps=100_000)
    home = home_of(tmp_path, key)
    with murmur(home, *ALONE, f"--run={run}") as live:
        until(lambda: (live.status().get("round", {}).get("progress") or 0) > 0, 60, "it trains")
        assert live.status()["state"] == "training"
        with murmur(home.parent / "asking", "status", "--home", str(home)) as asking:
            assert asking.ends() == 0
            assert re.search(r"^state +training", asking.printed, re.M)
        with murmur(home.parent / "asking", "stop", "--home", str(home)) as asking:
            assert asking.ends(10) == 0
            assert asking.printed == "stopped\n"
        assert live.ends(1) == 0
        with murmur(home.parent / "asking", "status", "--home", str(home)) as asking:
            assert asking.ends() == 3
    tidy(live)


def test_a_trainer_that_is_killed_is_replaced_and_the_round_is_the_same(tmp_path: Path) -> None:
    run, (key,) = small_run(tmp_path, steps=60)
    home = home_of(tmp_path, key)
    with murmur(home, *ALONE, f"--run={run}", "--rounds=1") as live:
        until(lambda: (live.status().get("round", {}).get("progress") or 0) > 0, 60, "it trains")
        (trainer,) = live.family()
        trainer.kill()
        assert live.ends() == 0
    assert "the trainer died" in live.complaints
    assert "Traceback" not in live.log + live.complaints
    other = home_of(tmp_path, key, "undisturbed")
    finish(other, run, 1)
    assert seals(home) == seals(other)


def test_thirty_rounds_take_no_more_memory_than_five(tmp_path: Path) -> None:
    run, (key,) = small_run(tmp_path)
    home = home_of(tmp_path, key)
    resident: dict[int, int] = {}
    with murmur(home, *ALONE, f"--run={run}", "--rounds=30", "--json") as live:

        def look() -> bool:
            number = live.printed.count('"sealed"')
            if number and live.process.poll() is None:
                statm = (f"/proc/{live.process.pid}/statm",)
                with open(*statm) as file:
                    resident[number] = int(file.read().split()[1]) * 4096
            return live.process.poll() is not None

        until(look, 120, "30 rounds are over")
        assert live.process.returncode == 0
    early = max(size for number, size in resident.items() if number <= 5)
    late = max(size for number, size in resident.items() if number >= 25)
    assert late - early < 6 << 20, f"{early >> 10} kB, then {late >> 10} kB"
