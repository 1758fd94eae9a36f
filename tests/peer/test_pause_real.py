"""Real daemons that are paused, resumed, killed and finished: the curve is that of a daemon that never paused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from peer import client
from tests.peer.live import Live, alive, home_of, murmur, run_folder, sealed, small_run, together, until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

ALONE = ("up", "--alone", "--threads=1")
STEPS = 800


def post(live: Live, path: str) -> dict[str, Any]:
    return client.request(live.home, "POST", f"/api/v1/{path}", within=15.0)


def training(live: Live, progress: float = 0.0) -> bool:
    """Whether it is in the middle of a window."""
    now = live.status()
    return bool(now) and now["processes"]["trainer"]["pid"] is not None and (now["round"]["progress"] or 0) > progress


def curve(home: Path) -> list[tuple[str, str, float]]:
    """Seal, state and training loss of each round."""
    return [(each["seal"], each["state_hash"], each["train_loss"]) for _, each in sorted(sealed(home).items())]


def test_the_curve_of_a_paused_daemon_is_that_of_one_that_never_paused(tmp_path: Path) -> None:
    run, (key,) = small_run(tmp_path, steps=STEPS)
    straight, paused = home_of(tmp_path, key, "straight"), home_of(tmp_path, key, "paused")
    with murmur(straight, *ALONE, f"--run={run}", "--rounds=2") as live:
        assert live.ends(240) == 0, live.complaints
    with murmur(paused, *ALONE, f"--run={run}", "--rounds=2") as live:
        until(lambda: training(live), 60, "it trains")
        trainer = psutil.Process(live.status()["processes"]["trainer"]["pid"])
        assert post(live, "pause")["state"] == "paused"
        assert not alive(trainer)
        until(lambda: live.status().get("state") == "paused", 5, "it shows the pause")
        now = live.status()
        assert (now["reason"]["code"], now["processes"]["trainer"]["pid"]) == ("user", None)
        assert now["pause"]["until"] is None
        done = now["round"]["progress"]
        assert not sealed(paused)
        kept = run_folder(paused) / "window.interrupted"
        assert kept.exists()
        post(live, "resume")
        until(lambda: training(live, done), 60, "it goes on where it was")
        post(live, "pause?for=3600")
        live.process.kill()
        live.process.wait(10)
    with murmur(paused, *ALONE, f"--run={run}", "--rounds=2") as live:
        until(lambda: live.status().get("state") == "paused", 60, "a pause outlives the daemon")
        assert live.status()["processes"]["trainer"]["pid"] is None
        assert "by you, until" in live.printed
        assert kept.exists()
        post(live, "resume")
        assert live.ends(240) == 0, live.complaints
    assert curve(paused) == curve(straight)
    assert not kept.exists()


def test_a_paused_peer_follows_and_serves_and_finish_ends_with_the_round(tmp_path: Path) -> None:
    run, keys = small_run(tmp_path, founders=4, seconds=1)
    with together(tmp_path, keys, f"--run={run}") as lives:
        one, *others = lives
        until(lambda: all(live.status().get("round", {}).get("last_sealed") for live in lives), 120, "a round")
        post(one, "pause")
        before = one.status()["round"]["last_sealed"]
        until(lambda: one.status()["round"]["last_sealed"] >= before + 3, 120, "it follows")
        now = one.status()
        assert (now["state"], now["processes"]["trainer"]["pid"]) == ("paused", None)
        assert now["peers"]["total"] == 3
        rows = client.request(one.home, "GET", "/api/v1/peers")["peers"]
        assert [row["own"] for row in rows] == [True, False, False, False]
        assert {row["connection"] for row in rows[1:]} == {"direct"}
        assert {row["member"]["state"] for row in rows} == {"standing"}
        with murmur(one.home.root, "generate", "Enter ", "--bytes=40", "--seed=1", "--json") as asking:
            assert asking.ends(60) == 0, asking.complaints
        text = json.loads(asking.printed)
        assert len(text["text"]) <= 40
        post(one, "resume")
        until(lambda: one.status().get("state") == "training", 60, "it trains again")
        for live in others:
            live.process.terminate()
        for live in others:
            live.ends(60)


def test_finish_completes_the_round_under_way_and_ends_with_0(tmp_path: Path) -> None:
    run, (key,) = small_run(tmp_path, steps=STEPS)
    home = home_of(tmp_path, key)
    with murmur(home, *ALONE, f"--run={run}") as live:
        until(lambda: training(live), 60, "it trains")
        assert post(live, "finish")["under_way"] is True
        assert live.status()["state"] == "finishing"
        with murmur(home, "pause") as asking:
            assert asking.ends(20) == 4
        assert "about to end" in asking.complaints
        assert live.ends(60) == 0, live.complaints
    assert sorted(sealed(home)) == [1]
    assert live.printed.splitlines()[-1] == "stopped at sealed round 1"
    with murmur(home, *ALONE, f"--run={run}") as live:
        until(lambda: training(live), 60, "it trains")
        post(live, "pause")
        assert post(live, "finish")["under_way"] is False
        assert live.ends(20) == 0, live.complaints
    assert sorted(sealed(home)) == [1]
