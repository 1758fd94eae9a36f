"""Four real daemons that train: p2pd killed ten times in random phases, p2pd frozen, a daemon frozen. All go on."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.peer.live import Live, sealed, small_run, together, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

SEED = 3
KILLS = 10
WINDOW_S = 7
"""Training time of a round; the rest of it takes less than a second, unless the machine is busy."""
REST_S = 0.4
"""From the last commit on, the time in which a third of the kills fall."""
FROZEN_S = 40.0
UNTIDY = re.compile(r"Traceback|ResourceWarning|never (awaited|retrieved)|destroyed but|ERROR|CRITICAL")


@dataclass(frozen=True)
class Kill:
    """What was hit, and when, as the victim's status had it a moment before."""

    victim: Live
    peer: str
    round: int
    phase: str


def head(live: Live) -> int:
    """Its last sealed round."""
    return max(sealed(live.home.root), default=0)


def state(live: Live) -> dict[str, Any]:
    """Its status, which it must give: the daemon lives whatever happens to p2pd."""
    assert live.process.poll() is None, live.complaints
    status = live.status()
    assert status, "the daemon answers"
    return status


def met(live: Live) -> bool:
    """Whether it has streams to all others."""
    return bool(state(live)["peers"]["total"] == 3)


def reach(lives: list[Live], number: int, within: float) -> None:
    """Wait until all have sealed this round."""
    until(lambda: all(state(each) and head(each) >= number for each in lives), within, f"round {number} is sealed")


def one_chain(lives: list[Live]) -> dict[int, dict[str, Any]]:
    """The rounds of all, which must agree in every seal and state: of each the entry of somebody who was there."""
    logs = [sealed(each.home.root) for each in lives]
    chain: dict[int, dict[str, Any]] = {}
    for number in sorted(set().union(*logs)):
        entries = [log[number] for log in logs if number in log]
        assert len({(entry["seal"], entry["state_hash"]) for entry in entries}) == 1, f"round {number}: {entries}"
        chain[number] = next((entry for entry in entries if not entry["synced"]), entries[0])
    return chain


def tidy(lives: list[Live]) -> None:
    """They end when asked, with nothing untoward in their logs."""
    for each in lives:
        each.process.send_signal(signal.SIGTERM)
    for each in lives:
        assert each.ends(30) == 0
        assert not UNTIDY.search(each.log + each.complaints), each.log


def p2pd(live: Live) -> psutil.Process:
    """Its p2pd, once the status names the one that runs now."""
    found: list[psutil.Process] = []

    def named() -> bool:
        pid = state(live)["processes"]["p2pd"]["pid"]
        found[:] = [each for each in live.family() if each.pid == pid]
        return bool(found)

    until(named, 15, "the status names p2pd")
    return found[0]


def strike(live: Live, other: Live, after: int, chance: random.Random) -> Kill:
    """Kill its p2pd in the first round above ``after``: while it trains, while it waits for a commit, or soon after."""
    moment = chance.choice(("train", "commit", "rest"))
    victim = p2pd(live)
    until(lambda: in_training(live, after + 1), 90, f"it trains in round {after + 1}")
    if moment == "train":
        time.sleep(chance.uniform(0.0, WINDOW_S))  # the moment is what is drawn
        return killed(live, victim)
    time.sleep(WINDOW_S - 2)
    os.kill(other.process.pid, signal.SIGSTOP)  # the rest of a round may take a tenth of a second: this holds it
    try:
        until(lambda: state(live)["round"]["phase"] != "train", 30, "it waits for the other's commit")
        if moment == "commit":
            return killed(live, victim)
    finally:
        os.kill(other.process.pid, signal.SIGCONT)
    time.sleep(chance.uniform(0.0, REST_S))
    return killed(live, victim)


def in_training(live: Live, number: int) -> bool:
    """Whether it trains in this round, or a later one."""
    at = state(live)["round"]
    return bool(at["number"] >= number and at["phase"] == "train")


def killed(live: Live, victim: psutil.Process) -> Kill:
    """Its p2pd is killed now."""
    now = state(live)
    victim.kill()
    return Kill(live, now["peer"], now["round"]["number"], now["round"]["phase"])


def test_p2pd_killed_ten_times_costs_no_contribution(tmp_path: Path) -> None:
    """Of the update that is under way when p2pd dies, in its round or carried over into the next."""
    run, keys = small_run(tmp_path, founders=4, seconds=WINDOW_S)
    chance = random.Random(SEED)
    kills: list[Kill] = []
    with together(tmp_path, keys, f"--run={run}") as lives:
        reach(lives, 1, 120)
        for _ in range(KILLS):
            victim, other = chance.sample([each for each in lives if not kills or each is not kills[-1].victim], 2)
            last = kills[-1].round if kills else 0
            kills.append(strike(victim, other, max(last, *map(head, lives)), chance))
        reach(lives, kills[-1].round + 2, 120)
        until(lambda: all(met(each) for each in lives), 30, "all are connected again")
        restarts = [state(each)["processes"] for each in lives]
        tidy(lives)
    chain = one_chain(lives)
    came = [[number for number in (kill.round, kill.round + 1) if weight(chain, number, kill)] for kill in kills]
    for kill, numbers in zip(kills, came, strict=True):
        sys.stdout.write(f"\nround {kill.round}, {kill.phase}, {kill.peer[-4:]}: in the seals {numbers}")
    assert sum(bool(numbers) for numbers in came) >= KILLS - 1
    assert sum(entry["void"] for entry in chain.values()) <= 1
    assert len({kill.phase for kill in kills}) > 1, "not only training was hit"
    assert sum(each["p2pd"]["restarts"] for each in restarts) == KILLS
    assert [each["trainer"]["restarts"] for each in restarts] == [0] * 4


def weight(chain: dict[int, dict[str, Any]], number: int, kill: Kill) -> float:
    """What its update counted in a round."""
    return float(chain[number]["weights"].get(kill.peer, 0.0))


def test_a_frozen_p2pd_and_a_frozen_daemon_hold_nobody_up(tmp_path: Path) -> None:
    run, keys = small_run(tmp_path, founders=4, seconds=3)
    with together(tmp_path, keys, f"--run={run}") as lives:
        reach(lives, 1, 120)
        until(lambda: all(met(each) for each in lives), 30, "all are connected")
        stopped_p2pd(lives[2], lives)
        stopped_daemon(lives[3], lives[:3])
        assert [state(each)["processes"]["trainer"]["restarts"] for each in lives] == [0] * 4
        tidy(lives)
    one_chain(lives)


def contributes(live: Live, lives: list[Live], after: int) -> None:
    """Wait until all have sealed a round above ``after`` in which its update counted, it too."""
    peer = state(live)["peer"]

    def counted(log: dict[int, dict[str, Any]]) -> bool:
        return any(entry["weights"].get(peer) for number, entry in log.items() if number > after)

    until(lambda: all(state(each) and counted(sealed(each.home.root)) for each in lives), 90, "it contributes again")


def stopped_p2pd(live: Live, lives: list[Live]) -> None:
    """Freeze p2pd: it is replaced, and the streams are back within 30 s."""
    frozen = p2pd(live)
    frozen.send_signal(signal.SIGSTOP)
    began, before = time.monotonic(), max(map(head, lives))
    until(lambda: state(live)["processes"]["p2pd"]["restarts"] == 1 and met(live), 30, "the streams are back")
    sys.stdout.write(f"\np2pd frozen: streams back after {time.monotonic() - began:.1f} s")
    assert not frozen.is_running()
    contributes(live, lives, before + 1)


def stopped_daemon(live: Live, others: list[Live]) -> None:
    """Freeze a daemon, but not its p2pd, which goes on taking what the others send: they keep their memory low."""
    sizes = [psutil.Process(each.process.pid) for each in others]
    before, began = [each.memory_info().rss for each in sizes], max(map(head, others))
    os.kill(live.process.pid, signal.SIGSTOP)
    try:
        time.sleep(FROZEN_S)
        grown = max(each.memory_info().rss - size for each, size in zip(sizes, before, strict=True))
        went = min(map(head, others)) - began
    finally:
        os.kill(live.process.pid, signal.SIGCONT)
    sys.stdout.write(f"\ndaemon frozen: the others sealed {went} rounds and grew by {grown >> 10} kB")
    assert went >= 1
    assert grown < 50 << 20
    contributes(live, [*others, live], max(map(head, others)))
