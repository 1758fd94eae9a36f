"""Errors that a person can mend say how: checked on the source, and on what the system itself raises."""

from __future__ import annotations

import ast
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from peer import cli
from peer.exits import Exit, exit_code, told
from protocols.errors import ConfigError, MurmurError

ROOT = Path(__file__).resolve().parents[2]
MENDABLE = {"ConfigError", "EnvironmentFault", "NoDaemon", "Withheld"}


def test_every_error_that_a_person_can_mend_has_a_remedy() -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in ("protocols", "dht", "incentives", "peer")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in MENDABLE
        and not any(keyword.arg == "remedy" for keyword in node.keywords)
    ]
    assert bare == []


@pytest.mark.parametrize(
    ("number", "word"),
    [(errno.ENOSPC, "disk space"), (errno.EACCES, "this user"), (errno.EADDRINUSE, "port"), (errno.EIO, "--debug")],
)
def test_what_the_system_refuses_becomes_a_line_with_a_remedy(number: int, word: str) -> None:
    error = told(OSError(number, os.strerror(number), "/home/x"))
    assert str(error) == f"/home/x: {os.strerror(number)}" and word in error.remedy
    assert exit_code(error) == Exit.ENVIRONMENT


def test_a_package_that_is_missing_is_a_fault_of_this_machine() -> None:
    for error in (ModuleNotFoundError("No module named 'torch'"), MemoryError()):
        assert exit_code(told(error)) == Exit.ENVIRONMENT and told(error).remedy


def test_anything_else_is_an_internal_error_and_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_: object) -> int:
        raise ZeroDivisionError("division by zero")

    assert cli.guarded(broken, {"debug": False}) == Exit.FAILED
    first, second = capsys.readouterr().err.splitlines()
    assert first == "murmur: internal error: ZeroDivisionError: division by zero"
    assert second == "  try: the same command with --debug shows where"
    assert cli.guarded(broken, {"debug": True}) == Exit.FAILED
    assert "Traceback" in capsys.readouterr().err


def test_no_error_is_without_a_second_line(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (MurmurError("x"), ConfigError("x")):
        cli.report(error)
        first, second = capsys.readouterr().err.splitlines()
        assert first == "murmur: x" and second.startswith("  try: ")


def test_a_reader_that_has_enough_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "murmur.jsonl").write_text('{"unix": 1, "level": "info", "text": "x"}\n' * 50_000)
    command = [sys.executable, "-c", "from peer.cli import main; main()", "log", "-n", "0", "--home", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == Exit.DONE


def test_a_full_disk_under_stdout_is_told() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    command = [sys.executable, "-c", "from peer.cli import main; main()", "paths"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False
        )
    assert done.returncode == Exit.ENVIRONMENT
    assert done.stderr.splitlines() == ["murmur: [Errno 28] No space left on device", "  try: free some disk space"]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_on_a_terminal_an_error_is_wrapped_between_words(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ConfigError("the home /a/long-path/of/somebody has a fault " + "x " * 60, remedy="mend it " * 20)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    cli.report(error)
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= width and "/a/long-path/of/somebody" in " ".join(lines)
    words = " ".join(lines).split()
    assert words == f"murmur: {error} try: {error.remedy}".split()
