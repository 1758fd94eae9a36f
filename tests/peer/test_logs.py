"""The daemon's log: two files that rotate, lines for people and for programs, and what ``murmur log`` makes of them."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as some

from peer import cli, log_reader, logs
from peer.exits import Exit
from peer.log_reader import LogReader
from peer.paths import Home
from protocols.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger("peer.test")
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def logging_to(home: Home, *, debug: bool = False) -> Iterator[io.StringIO]:
    """The process's logging as a daemon has it; yields its terminal."""
    root, stderr = logging.getLogger(), sys.stderr
    before, level = root.handlers[:], root.level
    hooks = threading.excepthook, sys.unraisablehook
    root.handlers[:] = []
    structlog.contextvars.clear_contextvars()
    sys.stderr = terminal = io.StringIO()
    try:
        logs.start_logging(home, debug=debug)
        yield terminal
    finally:
        sys.stderr = stderr
        logging.captureWarnings(capture=False)
        threading.excepthook, sys.unraisablehook = hooks
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = before
        root.setLevel(level)
        structlog.contextvars.clear_contextvars()


def documents(home: Home) -> list[dict[str, Any]]:
    return [json.loads(line) for line in home.json_log.read_text().splitlines()]


def test_a_record_goes_to_people_and_to_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(logging._levelToName, logging.WARNING, "WARN")  # as hivemind does
    home = Home(tmp_path)
    with logging_to(home) as terminal:
        logs.about(peer="12D3", run="ab", round=7)
        log.info("round %d", 3, extra={logs.FIELDS: {"event": "sealed", "round": 3, "level": "mine", "loss": None}})
        log.warning("böse")
        log.debug("not asked for")
    first, second = documents(home)
    assert first.pop("unix") == pytest.approx(second.pop("unix"), abs=60)
    base = {"schema": 1, "logger": "peer.test", "peer": "12D3", "run": "ab"}
    assert first == {**base, "level": "info", "text": "round 3", "event": "sealed", "round": 3, "loss": None}
    assert second == {**base, "level": "warning", "text": "böse", "round": 7}
    lines = home.log.read_text().splitlines()
    assert [line[24:] for line in lines] == ["INFO    peer.test: round 3", "WARN    peer.test: böse"]
    assert terminal.getvalue() == " ! warning    böse\n"


def test_a_traceback_is_in_the_files_and_on_the_terminal_only_with_debug(tmp_path: Path) -> None:
    for debug in (False, True):
        home = Home(tmp_path / str(debug))
        home.create()
        with logging_to(home, debug=debug) as terminal:
            try:
                raise ValueError("inner")
            except ValueError:
                log.exception("it broke")
                log.error("told elsewhere", extra=logs.FILES_ONLY)
        assert ("Traceback" in terminal.getvalue()) is debug and "told elsewhere" not in terminal.getvalue()
        assert "Traceback" in home.log.read_text()
        broke, told = documents(home)
        assert "ValueError: inner" in broke["exception"] and "exception" not in told
        assert set(told) == {"schema", "unix", "level", "logger", "text"}


def test_what_python_would_print_is_logged(tmp_path: Path) -> None:
    class Bad:
        def __del__(self) -> None:
            raise ValueError("late")

    def fail() -> None:
        raise ValueError("thread")

    with logging_to(Home(tmp_path)) as terminal:
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join(10)
        Bad()
    texts = [each["text"] for each in documents(Home(tmp_path))]
    assert texts[0] == "a thread failed: ValueError('thread')" and texts[1].startswith("ignored: ValueError('late')")
    assert len(terminal.getvalue().splitlines()) == len(texts) and "Traceback" not in terminal.getvalue()


@given(text=some.text(max_size=300))
def test_what_a_peer_says_stays_on_its_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    home = Home(tmp_path_factory.mktemp("home"))
    with logging_to(home) as terminal:
        log.warning("peer says %s", text)
    for shown in (home.log.read_text(errors="replace"), terminal.getvalue()):
        assert shown.endswith("\n") and shown[:-1].isprintable()
    (document,) = documents(home)
    assert document["text"] == f"peer says {text}"
    (line,) = home.json_log.read_bytes().splitlines()
    assert line.isascii(), "no control code of a terminal, however it is shown"
    assert log_reader.shown(line).text.isprintable()


def test_both_files_rotate_at_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES", 2000)
    home = Home(tmp_path)
    with logging_to(home):
        for number in range(200):
            log.info("%d", number)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"{name}{end}" for name in ("murmur.log", "murmur.jsonl") for end in ("", ".1", ".2", ".3")}
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())
    assert [each["text"] for each in documents(home)][-1] == "199"
    reader = LogReader(home.json_log)
    texts = [json.loads(line)["text"] for line in reader.last(0, lambda _: True)]
    reader.close()
    assert texts == [str(number) for number in range(200 - len(texts), 200)], "all that is kept, in order, once"


def test_a_full_disk_ends_nothing_and_shows_no_traceback(tmp_path: Path) -> None:
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with logging_to(Home(tmp_path)) as terminal:
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.FileHandler):
                handler.close()
                handler.stream = Full()  # type: ignore[assignment]
        log.info("x")
        assert terminal.getvalue() == ""


def test_a_home_that_takes_no_log_is_a_fault_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "murmur.log").mkdir()
    with pytest.raises(EnvironmentFault, match="cannot write") as caught:
        logs.start_logging(Home(tmp_path), debug=False)
    assert "--home" in caught.value.remedy


# --- reading it back -------------------------------------------------------------------------------


def line(number: int, level: str = "info") -> bytes:
    document = {"schema": 1, "unix": 1e9 + number, "level": level, "logger": "x", "text": f"line {number}"}
    return json.dumps(document).encode()


def write(path: Path, *lines: bytes) -> None:
    with path.open("ab") as file:
        file.writelines(each + b"\n" for each in lines)


@given(
    sizes=some.lists(some.integers(0, 5), min_size=1, max_size=4),
    count=some.integers(0, 12),
    least=some.sampled_from(log_reader.LEVELS),
)
def test_the_last_lines_over_all_files(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], count: int, least: str
) -> None:
    path = tmp_path_factory.mktemp("home") / "murmur.jsonl"
    every = [line(number, log_reader.LEVELS[number % 5]) for number in range(sum(sizes))]
    left = iter(every)
    for number, size in reversed(list(enumerate(sizes))):
        file = path if number == 0 else path.with_name(f"{path.name}.{number}")
        file.touch()
        write(file, *(next(left) for _ in range(size)))
    wanted = [
        each for each in every if log_reader.LEVELS.index(json.loads(each)["level"]) >= log_reader.LEVELS.index(least)
    ]
    reader = LogReader(path)
    assert reader.last(count, log_reader.at_least(least)) == (wanted[-count:] if count else wanted)
    reader.close()


def test_following_misses_nothing_over_rotations(tmp_path: Path) -> None:
    path = tmp_path / "murmur.jsonl"
    write(path, line(0), line(1))
    with path.open("ab") as file:
        file.write(line(2)[:10])
    reader = LogReader(path)
    assert reader.last(1, lambda _: True) == [line(1)]

    def finish() -> None:
        with path.open("ab") as file:
            file.write(line(2)[10:] + b"\n")

    def rotate() -> None:
        write(path, line(3))
        path.rename(path.with_name("murmur.jsonl.1"))
        write(path, line(4))

    def vanish() -> None:
        path.rename(path.with_name("murmur.jsonl.1"))

    def empty() -> None:
        path.write_bytes(b"")

    events: Iterator[Callable[[], None]] = iter(
        [finish, rotate, vanish, lambda: write(path, line(5)), empty, lambda: write(path, line(6))]
    )

    def wait() -> None:
        next(events)()

    lines = reader.follow(wait, lambda _: True)
    assert [next(lines) for _ in range(5)] == [line(number) for number in range(2, 7)]
    reader.close()


def test_a_line_without_end_is_not_kept_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (3 * log_reader.LINE_BYTES))
    reader = LogReader(path)
    pieces = reader.last(0, lambda _: True)
    assert len(pieces) >= 2 and max(map(len, pieces)) <= log_reader.LINE_BYTES + log_reader.CHUNK
    reader.close()


# --- the command -----------------------------------------------------------------------------------


def run(*words: str) -> int:
    arguments = vars(cli.parser().parse_args(["log", *words]))
    return cli.guarded(arguments.pop("command"), arguments)


def test_the_command_shows_lines_without_colour_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home(tmp_path)
    write(home.json_log, line(0), line(1, "warning"), b"cut o\x1b[31mff", line(2, "error"))
    assert run("--home", str(tmp_path), "-n", "3") == Exit.DONE
    first, damaged, last = capsys.readouterr().out.splitlines()
    assert first.endswith(" warning  line 1") and last.endswith(" error    line 2") and damaged == "cut o?[31mff"
    assert run("--home", str(tmp_path), "--level", "error") == Exit.DONE
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "cut o?[31mff" and shown[1].endswith(" error    line 2")
    assert run("--home", str(tmp_path), "--json") == Exit.DONE
    assert [json.loads(each)["text"] for each in capsys.readouterr().out.splitlines()] == ["line 0", "line 1", "line 2"]


def test_without_a_log_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--home", str(tmp_path)) == Exit.NO_DAEMON
    assert "no daemon has run in" in (said := capsys.readouterr().err) and "  try: " in said


@pytest.mark.parametrize("colour", [True, False])
def test_a_terminal_gets_columns_and_colour_unless_forbidden(
    tmp_path: Path, colour: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "[bold]a long line[/bold] " + "word " * 20
    document = {"unix": 1e9, "level": "warning", "text": text, "exception": "Traceback\n  ValueError"}
    write(Home(tmp_path).json_log, json.dumps(document).encode(), b"cut off")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    assert run("--home", str(tmp_path)) == Exit.DONE
    out = capsys.readouterr().out
    assert ("\x1b[33m" in out) is colour
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", each).rstrip() for each in out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0][19:].startswith(" warning  [bold]a long line[/bold]")
    assert lines[1].startswith(" " * 29 + "word") and "Traceback" in lines[-3] and lines[-1] == "cut off"


def test_ctrl_c_is_how_following_ends(tmp_path: Path) -> None:
    write(Home(tmp_path).json_log, line(0))
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from peer.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "log", "-f", "--home", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().endswith(b"line 0\n")
        write(Home(tmp_path).json_log, line(1))
        assert process.stdout.readline().endswith(b"line 1\n")
        process.send_signal(signal.SIGINT)
        assert (process.wait(timeout=20), process.stderr.read()) == (Exit.DONE, b"")
