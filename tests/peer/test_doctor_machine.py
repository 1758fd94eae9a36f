"""The doctor on clock, GPU, torch, p2pd and lighthouse, with programs that the test has made."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from peer import doctor_checks_machine as checks
from tests.peer.test_screens import status

if TYPE_CHECKING:
    from peer.doctor_report import Outcome

ANSWER = {"version": "2.9.0+cu128", "cuda": "12.8", "device": "NVIDIA H200", "sound": True}
NOW = 1.8e9


def program(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def trained(*command: str, within: float = 20.0) -> Outcome:
    return asyncio.run(checks.trainer(checks.torch(command, within)))


def test_torch_is_asked_in_a_process_of_its_own() -> None:
    outcome = trained(sys.executable, "-c", f"import json; print('noise'); print(json.dumps({ANSWER}))")
    assert (outcome.result, outcome.evidence) == ("pass", "torch 2.9.0+cu128, computes on NVIDIA H200")


@pytest.mark.parametrize(
    ("script", "evidence"),
    [
        ("import no_such_torch", "ModuleNotFoundError: No module named 'no_such_torch'"),
        ("print('hello')", "it ended with 0, saying: hello"),
        ("import os; os.abort()", "it ended with -6, saying: nothing"),
        (f"import json; print(json.dumps({ANSWER | {'sound': False}}))", "computes wrongly"),
        ("while True: print('x' * 65536)", "it ended with -1"),
    ],
    ids=["missing", "another program", "killed", "wrong", "endless"],
)
def test_a_torch_that_cannot_be_used_fails_and_says_why(script: str, evidence: str) -> None:
    outcome = trained(sys.executable, "-c", script)
    assert outcome.result == "fail" and evidence in outcome.evidence and outcome.remedy


def test_a_torch_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "child"
    slow = program(tmp_path, "slow", f"sleep 1000 & echo $! > {note}; wait")
    outcome = trained(slow, within=1.0)
    assert outcome.result == "fail" and "not loaded" in outcome.evidence
    child = int(note.read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def graphics(smi: str | None, cards: int, answer: dict[str, Any] | Exception) -> Outcome:
    async def asked() -> dict[str, Any]:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def main() -> Outcome:
        torch = asyncio.create_task(asked())
        await asyncio.wait([torch])
        try:
            return await checks.gpu(torch, cards, smi)
        finally:
            torch.exception()

    return asyncio.run(main())


def test_a_gpu_that_is_used_or_lies_idle(tmp_path: Path) -> None:
    works = program(tmp_path, "smi", "echo 'NVIDIA H200, 570.1, 143771 MiB'")
    used = graphics(works, 1, ANSWER)
    assert (used.result, used.evidence) == ("pass", "NVIDIA H200, 570.1, 143771 MiB, used by torch (CUDA 12.8)")
    for answer, why in (
        (ANSWER | {"device": None, "cuda": None}, "torch is a build for processors only"),
        (ANSWER | {"device": None}, "torch is built for CUDA 12.8"),
    ):
        idle = graphics(works, 1, answer)
        assert idle.result == "warn" and why in idle.evidence and idle.remedy
    unknown = graphics(works, 1, ValueError("x"))
    assert unknown.result == "pass" and "not known" in unknown.evidence


def test_a_driver_that_does_not_work_or_is_missing(tmp_path: Path) -> None:
    broken = program(tmp_path, "smi", "echo 'NVIDIA-SMI has failed because it could not communicate'; exit 9")
    outcome = graphics(broken, 1, ANSWER)
    assert outcome.result == "warn" and "could not communicate" in outcome.evidence
    assert graphics(None, 1, ANSWER).result == "warn"
    assert graphics(None, 0, ANSWER).result == "skipped"


def test_nvidia_cards_are_counted_on_the_bus(tmp_path: Path) -> None:
    for number, (vendor, kind) in enumerate((("0x10de", "0x030000"), ("0x10de", "0x040300"), ("0x8086", "0x030000"))):
        device = tmp_path / str(number)
        device.mkdir()
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    (tmp_path / "empty").mkdir()
    assert checks.cards(tmp_path) == 1 and checks.cards(tmp_path / "absent") == 0


def test_the_p2pd_that_is_installed_runs_and_others_do_not(tmp_path: Path) -> None:
    assert asyncio.run(checks.p2pd()).result == "pass"
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o755)
    for binary in (tmp_path / "text", tmp_path / "absent", Path(program(tmp_path, "other", "echo hello"))):
        outcome = asyncio.run(checks.p2pd(binary))
        assert outcome.result == "fail" and str(binary) in outcome.evidence and outcome.remedy


def test_what_a_lighthouse_needs_is_found_or_left_out() -> None:
    assert checks.lighthouse("pytest").result == "pass"
    absent = checks.lighthouse("no_such_libp2p")
    assert absent.result == "skipped" and "murmuration[lighthouse]" in absent.evidence


def test_a_clock_before_its_time_fails() -> None:
    outcome = checks.clock(None, 3.0, 0.01, now=0.0)
    assert (
        outcome.result == "fail" and "01 January 1970" in outcome.evidence and "timedatectl" in (outcome.remedy or "")
    )


def test_a_clock_is_judged_by_peers_first_then_by_the_kernel() -> None:
    warning = {"code": "clock", "text": "this clock and a seed's are 61.0 s apart", "remedy": "set it"}
    apart = checks.clock(status(warnings=[warning]), 3.0, 0.01, now=NOW)
    assert (apart.result, apart.evidence, apart.remedy) == ("fail", warning["text"], "set it")
    seed = {"address": "x", "state": "ok", "error": None, "retry_s": None}
    near = checks.clock(status(seeds=[seed], warnings=[]), 3.0, None, now=NOW)
    assert (near.result, near.evidence) == ("pass", "within 3 s of 1 peer that the daemon compared it with")
    assert checks.clock(status(seeds=[], warnings=[]), 3.0, 0.25, now=NOW).evidence == (
        "kept by a time server, wrong by 0.2 s at most"
    )
    for error_s in (None, 16.0):
        assert checks.clock(None, 3.0, error_s, now=NOW).result == "skipped"


def test_the_kernel_is_asked_without_setting_anything() -> None:
    error_s = checks.kernel_clock()
    assert error_s is None or error_s >= 0
    assert os.times().elapsed > 0
