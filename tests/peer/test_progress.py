"""Progress on a terminal and without one; nothing for what is soon done."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from peer import corpus
from peer.progress import LINE_S, PATIENCE_S, progress

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_what_is_soon_done_says_nothing(stream: io.StringIO) -> None:
    clock = Clock()
    with progress("work", 100, stream=stream, now=clock) as advance:
        for _ in range(10):
            clock.now += PATIENCE_S / 20
            advance(10)
    clock.now += 100
    assert stream.getvalue() == ""


def test_without_a_terminal_a_line_now_and_then() -> None:
    stream, clock = io.StringIO(), Clock()
    with progress("reading texts", 200_000_000, stream=stream, now=clock) as advance:
        for _ in range(20):
            clock.now += LINE_S / 2
            advance(10_000_000)
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["reading texts: 10 of 200 MB", "reading texts: 30 of 200 MB"]
    assert len(lines) == 10 and "\x1b" not in stream.getvalue()


def test_on_a_terminal_a_bar_that_is_gone_when_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream, clock = Terminal(), Clock()
    with progress("reading texts", 200_000_000, stream=stream, now=clock) as advance:
        clock.now = 1.0
        advance(50_000_000)
        advance(50_000_000)
    text = stream.getvalue()
    assert "reading texts" in text and "MB" in text
    assert text.endswith("\x1b[2K"), "the line is cleared"


def test_a_failure_leaves_no_bar_behind() -> None:
    stream, clock = Terminal(), Clock()
    with pytest.raises(OSError), progress("work", 100, stream=stream, now=clock) as advance:
        clock.now = 1.0
        advance(1)
        raise OSError
    assert stream.getvalue().count("\x1b[?25h") >= stream.getvalue().count("\x1b[?25l"), "the cursor is back"


def test_a_folder_of_texts_is_the_same_with_or_without(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").write_bytes(b"")
    assert [(shard.entry.id, shard.raw) for shard in corpus.from_folder(tmp_path)] == [("a", b"one")]
