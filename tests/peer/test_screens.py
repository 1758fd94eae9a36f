"""What a person sees: screens that fit, lines with a symbol and a word, and no colour where none is wanted."""

from __future__ import annotations

import argparse
import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer import first_screen
from peer import status as st_
from peer.cli_generate import readable
from peer.cli_live import duration
from peer.screen import bar, live_line, peers_screen, screen
from peer.status import to_json
from peer.terminal import Terminal

ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
PEER = "12D3KooWQDVpkdU5SdaByLrZmmSv2i8vEMpy2SPqRcGmUGDSBbNi"


class Screen(io.StringIO):
    """A stream that may be a terminal."""

    def __init__(self, *, tty: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self._tty, self._encoding = tty, encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._tty


def status(**changes: Any) -> dict[str, Any]:
    started = st_.Status(version="0.1.0", protocol=1, peer=PEER, since=5.0)
    events: list[st_.Event] = [
        st_.RunInfo("ab" * 32, "shakespeare", "tiny", "model"),
        st_.StateChanged("training", 9.0),
        st_.Loaded(387_744, "ab" * 32, 2.6, 2),
        st_.PhaseEntered(413, "train", 60.0),
        st_.Trained(1024, 2.031, st_.Speed(10.0, 18_240.0)),
        st_.Progressed(0.61, 30.0),
        st_.Peers(11, 11),
        st_.Seed("/ip4/203.0.113.9/tcp/4001/p2p/" + PEER, "failed", "nobody listens there", 30.0),
        st_.Warned("waiting", "exchange: waiting for 12D3…aaaa, 12D3…bbbb", "they may be slow or offline"),
    ]
    for event in events:
        started = st_.apply(started, event)
    return {**to_json(started), **changes}


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_screen_fits_its_terminal_and_says_all_that_a_wide_one_says(width: int) -> None:
    document = status(pause={"since": 0.0, "until": 3600.0})
    lines = screen(document, width).splitlines()
    assert max(map(len, lines)) <= width
    assert "".join(screen(document, width).split()) == "".join(screen(document).split())


@given(st.integers(20, 200), st.sampled_from(["training", "paused", "seeking", "finishing", "syncing"]))
def test_the_live_line_never_breaks(width: int, state: str) -> None:
    line = live_line(status(state=state, reason={"code": "user", "text": "by you, until Mon 14:05"}), width)
    assert len(line) <= width
    assert "\n" not in line


def test_the_live_line_shows_the_round_or_why_there_is_none() -> None:
    assert live_line(status(), 100) == (
        " round  413  train    ▕██████████──────▏ 61%   loss 2.03   18.2 k tok/s   peers 11"
    )
    paused = status(state="paused", reason={"code": "user", "text": "by you, until Mon 14:05"})
    assert live_line(paused, 80) == " paused: by you, until Mon 14:05   peers 11"


@given(st.floats(0, 1))
def test_a_bar_has_one_width(progress: float) -> None:
    assert len(bar(progress)) == 16 + 2 + 4


def test_lines_are_plain_where_there_is_no_terminal() -> None:
    stream = Screen(tty=False)
    terminal = Terminal(stream, {"TERM": "xterm"})
    terminal.live("round 1")
    terminal.item("ok", "identity", "a " * 200)
    terminal.line("round 1")
    assert stream.getvalue() == f" ✓ identity   {'a ' * 200}\nround 1\n"


def test_a_terminal_rewrites_its_last_line_and_no_color_takes_only_the_colour() -> None:
    for environ, coloured in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)):
        stream = Screen(tty=True)
        terminal = Terminal(stream, environ)
        terminal.live("round 1")
        terminal.live("round 1")
        terminal.item("warn", "network", "nobody")
        assert ("\x1b[33m" in stream.getvalue()) is coloured
        assert ESCAPES.sub("", stream.getvalue()) == "\rround 1\r\r ! network    nobody\n"
    dumb = Screen(tty=True)
    Terminal(dumb, {"TERM": "dumb"}).live("round 1")
    assert dumb.getvalue() == ""


def test_an_old_encoding_gets_symbols_that_it_has() -> None:
    stream = Screen(tty=False, encoding="ascii")
    Terminal(stream, {}).item("ok", "data", "here")
    assert stream.getvalue() == " + data       here\n"


def test_peers_fit_a_narrow_terminal() -> None:
    member = {"state": "standing", "weight": 1.0, "sealed": 12, "missed": 2}
    rows = [
        {"id": PEER, "own": True, "connection": None, "member": member,
         "software": None, "head": None, "addresses": []},
        {"id": "12D3KooWother" + "x" * 39, "own": False, "connection": "direct", "member": None,
         "software": "0.1.0", "head": 7, "addresses": ["/ip4/203.0.113.9/tcp/4001/p2p/12D3KooWother"]},
    ]  # fmt: skip
    narrow = peers_screen(rows, 80).splitlines()
    assert max(map(len, narrow)) <= 80
    assert narrow[1].split()[:5] == ["12D3…DSBbNi", "this", "one", "standing,", "missed"]
    assert narrow[2].split() == ["12D3…xxxxxx", "direct", "no", "–", "–", "7", "0.1.0"]
    assert narrow[-1] == "1 connected, 1 members"
    assert PEER in peers_screen(rows)
    assert "/ip4/203.0.113.9" in peers_screen(rows, 200)


def network(*seeds: str, alone: bool = False, others: bool = False) -> tuple[str, str]:
    now = st_.Status(version="1", protocol=1, peer=PEER, since=0.0)
    now = st_.apply(now, st_.Reach("unknown", (), (f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}",)))
    for i, state in enumerate(seeds):
        now = st_.apply(now, st_.Seed(f"/ip4/192.0.2.{i + 2}/tcp/1/p2p/{PEER}", state))  # type: ignore[arg-type]
    mark, label, text = first_screen.network(now, alone=alone, others=others)
    assert label == "network"
    return mark, text


def test_the_network_line_says_who_answers_and_what_to_do() -> None:
    assert network("ok", "failed") == ("ok", "listens on port 4001; joined through 1 of 2 addresses")
    mark, text = network("failed", "trying")
    assert mark == "warn"
    assert "none of 2 addresses answers yet" in text and "`murmur status`" in text
    assert "trains alone until others join" in network()[1]
    assert "looks for the other members" in network(others=True)[1]
    assert network(alone=True) == ("note", "none: --alone never looks for peers")


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("45s", 45), ("1d", 86400), ("1.5H", 5400)]
)
def test_a_duration(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "2 weeks", "-1h", "0s", "9999d", "1e9s", "1h 30", "١h"])
def test_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        duration(text)


@given(st.binary(max_size=200))
def test_a_sample_can_steer_no_terminal(raw: bytes) -> None:
    text = "".join(readable(raw))
    assert all(each.isprintable() or each in "\n\t" for each in text)
    if raw.isascii() and all(32 <= each < 127 for each in raw):
        assert text == raw.decode()


def test_a_sample_keeps_letters_of_several_bytes() -> None:
    assert "".join(readable("Fürst ☺".encode())) == "Fürst ☺"
    assert "".join(readable("☺".encode()[:2])) == "\ufffd"
