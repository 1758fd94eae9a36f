"""What a person sees: screens that fit, lines with a symbol and a word, and no colour where none is wanted."""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer import first_screen
from peer import status as st_
from peer.cli_generate import readable
from peer.cli_live import duration
from peer.company import Company
from peer.screen import bar, live_line, peers_screen, screen
from peer.status import to_json
from peer.terminal import Terminal, never_fail
from protocols.ids import PeerId
from protocols.manifest import Members

if TYPE_CHECKING:
    from peer.reporter import Reporter

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
        " round  413  train    ▕██████████──────▏ 61%  loss 2.03  peers 11  Ctrl-C stops  18.2 k tok/s"
    )
    assert live_line(status(), 80).endswith("loss 2.03  peers 11  Ctrl-C stops"), "speed is what 80 columns leave out"
    paused = status(state="paused", reason={"code": "user", "text": "by you, until Mon 14:05"})
    assert live_line(paused, 80) == " paused: by you, until Mon 14:05  peers 11  Ctrl-C stops"
    full = status(reason={"code": "disk", "text": "waits for the disk"})
    assert live_line(full, 80).startswith(" training: waits for the disk  peers 11")
    unasked = status(reason={"code": "no_peers", "text": "signs nothing yet"})
    assert live_line(unasked, 80).startswith(" training: signs nothing yet  peers 11")


def test_a_long_reason_takes_neither_peers_nor_the_way_out_from_the_live_line() -> None:
    line = live_line(status(state="seeking", reason={"code": "no_peers", "text": "nobody answers " * 9}), 80)
    assert line.startswith(" seeking: nobody answers") and line.endswith("…  peers 11  Ctrl-C stops")


def test_the_live_line_has_a_bar_while_something_is_loaded() -> None:
    loading = status(state="syncing", reason={"code": "none", "text": "the run's state: 3 of 4 MiB"})
    assert live_line(loading, 80, 0.75) == " ▕████████████────▏ 75%  the run's state: 3 of 4 MiB  Ctrl-C stops"


def test_text_of_strangers_steers_no_terminal() -> None:
    evil = "\x1b]0;mine\x07\x1b[2Jv1\u202e\n\r"
    stream = Screen(tty=True)
    terminal = Terminal(stream, {"TERM": "xterm", "NO_COLOR": "1"})
    for speak in (terminal.line, terminal.live, lambda text: terminal.item("warn", "peer", text)):
        speak(evil)
    own = stream.getvalue().replace("\r\x1b[K", "").replace("\n", "").replace("\r", "")
    assert own.isprintable() and "mine" in own
    found = {
        "id": PEER,
        "own": False,
        "connection": "direct",
        "transport": "tcp",
        "member": None,
        "software": evil,
        "head": 7,
    }
    document = status(run={"id": evil, "name": evil, "size": evil, "cell": evil})
    for text in (peers_screen([{**found, "addresses": [evil]}], 120), screen(document), screen(document, 80)):
        assert all(line.isprintable() for line in text.split("\n"))


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
    Terminal(dumb, {"TERM": "dumb"}).item("note", "stop", "a word " * 40)
    assert max(map(len, dumb.getvalue().splitlines())) <= 80 and "\x1b" not in dumb.getvalue()


def test_an_old_encoding_gets_symbols_that_it_has() -> None:
    stream = Screen(tty=False, encoding="ascii")
    Terminal(stream, {}).item("ok", "data", "here")
    assert stream.getvalue() == " + data       here\n"


def test_peers_fit_a_narrow_terminal() -> None:
    member = {"state": "standing", "weight": 1.0, "sealed": 12, "missed": 2}
    rows = [
        {"id": PEER, "own": True, "connection": None, "transport": None, "member": member,
         "software": None, "head": None, "addresses": []},
        {"id": "12D3KooWother" + "x" * 39, "own": False, "connection": "direct", "transport": None, "member": None,
         "software": "0.1.0", "head": 7, "rtt_s": 0.0312, "addresses": ["/ip4/203.0.113.9/tcp/4001/p2p/12D3KooWother"]},
    ]  # fmt: skip
    narrow = peers_screen(rows, 80).splitlines()
    assert max(map(len, narrow)) <= 80
    assert narrow[1].split()[:5] == ["12D3…DSBbNi", "this", "one", "standing,", "missed"]
    assert narrow[2].split() == ["12D3…xxxxxx", "direct", "31", "ms", "no", "–", "–", "7"]
    assert narrow[-1] == "1 connected, 1 member"
    assert peers_screen(rows[:1], 80).splitlines()[-1].startswith("none yet: `murmur status` says why")
    assert PEER in peers_screen(rows)
    assert "0.1.0" in (wide := peers_screen(rows, 200)) and "/ip4/203.0.113.9" in wide
    assert "0.4 ms" in peers_screen([{**rows[1], "rtt_s": 0.0004}], 80)


def row(document: dict[str, Any], name: str) -> str:
    """The text of one row of the screen."""
    found = [line[11:] for line in screen(document).splitlines() if line.split(" ")[0] == name]
    assert len(found) == 1
    return found[0]


def test_a_screen_says_what_the_machine_gives_and_how_to_have_it_back() -> None:
    document = status(
        machine={"cpu": 0.93, "cores": 4, "threads": 3, "disk": 12 * 10**6, "disk_free": 7 * 10**10, "disk_cap": 2e10},
        processes={
            "daemon": {"pid": 1, "rss": 3 * 10**8},
            "p2pd": {"pid": 2, "rss": 7 * 10**7, "restarts": 0},
            "trainer": {"pid": None, "rss": None, "restarts": 0},
        },
    )
    assert row(document, "uses") == "0.9 of 4 cores · 370.0 MB of memory · 12.0 MB of disk (70.0 GB free)"
    assert row(document, "limits").startswith("3 cores for the trainer, at the lowest priority · 20.0 GB of disk")
    assert "`murmur stop`" in row(document, "stop") and "`murmur pause" in row(document, "stop")
    assert row(status(), "uses") == "– of – cores · – of memory · – of disk (– free)"


def test_a_screen_says_whether_it_is_connected_or_why_not() -> None:
    def shown(seeds: tuple[str, ...] = (), rung: str = "unknown", evidence: tuple[str, ...] = (), **peers: int) -> str:
        given = [{"address": "/ip4/192.0.2.1/tcp/1", "state": each, "error": None, "retry_s": None} for each in seeds]
        count = {"total": 0, "direct": 0, "punched": 0, "relayed": 0, **peers}
        reach = {"rung": rung, "evidence": evidence, "addresses": ["/ip4/192.0.2.9/tcp/4001/p2p/" + PEER]}
        lines = screen(status(seeds=given, peers=count, reach=reach)).splitlines()
        return next(line[11:] for line in lines if line.startswith("peers"))

    listens = " · listens on port 4001, not known whether others reach it"
    assert shown(total=3, direct=2, relayed=1) == "3 connected (2 direct, 1 relayed)" + listens
    assert shown() == "none connected; `murmur invite` prints a line with which others join" + listens
    assert shown(("failed", "trying")) == "none connected; 0 of 2 addresses answered" + listens
    assert shown(rung="none", evidence=("--alone never looks for peers",)) == "none: --alone never looks for peers"
    assert shown(rung="public", total=1, direct=1) == "1 connected (1 direct) · reachable: public"


def test_rounds_with_one_verdict_share_a_line() -> None:
    found = [
        (7, "accepted", 0.5),
        (8, "accepted", 0.5),
        (9, "late", None),
        (11, "accepted", 0.5),
        (13, "accepted", 0.5),
    ]
    document = status(
        verdicts=[
            {"round": number, "verdict": verdict, "code": "", "text": "", "weight": weight, "score": None}
            for number, verdict, weight in found
        ]
    )
    assert [line[11:] for line in screen(document).splitlines() if line.startswith("verdict")] == [
        "rounds 7 to 8: accepted, weight 0.500",
        "round 9: late",
        "round 11: accepted, weight 0.500",
        "round 13: accepted, weight 0.500",
    ]


def test_a_number_stays_with_its_unit() -> None:
    document = status(traffic={"sent": 351_900_000, "received": 1, "month": None, "cap": None})
    for width in range(40, 60):
        lines = screen(document, width).splitlines()
        assert any("351.9 MB" in line for line in lines)


def test_the_first_lines_say_what_to_type_where_murmur_alone_does_not_do() -> None:
    usual, other = Path("/home/me/.local/share/murmur"), Path("/tmp/x")
    assert first_screen.callable_as(usual, usual, "/usr/bin/murmur", "/usr/bin/murmur") == ""
    assert first_screen.callable_as(usual, usual, None, "/x/.venv/bin/murmur") == "`/x/.venv/bin/murmur`"
    assert first_screen.callable_as(other, usual, "/bin/murmur", "murmur") == "`murmur COMMAND --home /tmp/x`"
    assert first_screen.callable_as(usual, usual, None, "/x/peer/__main__.py") == "`python -m peer`"
    labels = [label for _, label, _ in first_screen.guest(1, 2, 10**9, name="`x`")]
    assert labels == ["limits", "pause", "stop", "murmur"]


def test_no_encoding_makes_a_line_fail() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    never_fail(stream)
    print("held out – · ▕█─▏ ü", file=stream, flush=True)
    assert raw.getvalue() == b"held out - - [#-] ?\n"


def test_a_warning_clears_what_another_stream_rewrites_and_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    stream = Screen(tty=True)
    terminal = Terminal(stream, {"TERM": "xterm", "NO_COLOR": "1"})
    terminal.wipe()
    terminal.item("warn", "warning", "a word " * 12)
    assert stream.getvalue().startswith("\r\x1b[K ! warning    a word")
    assert max(map(len, stream.getvalue()[4:].splitlines())) < 60
    pipe = Screen(tty=False)
    Terminal(pipe, {"TERM": "xterm"}).wipe()
    assert pipe.getvalue() == ""


class Told:
    """What ``Company`` needs of a reporter."""

    def __init__(self) -> None:
        self.status = st_.Status(version="1", protocol=1, peer=PEER, since=0.0)
        self.lines: list[str] = []

    def show(self, *items: first_screen.Item, **_: object) -> None:
        self.lines += [f"{mark} {text}" for mark, _, text in items]

    def count(self, total: int) -> None:
        self.status = st_.apply(self.status, st_.Peers(total, total))


def test_the_first_peer_is_told_and_the_last_only_when_it_stays_away() -> None:
    told = Told()
    company = Company(cast("Reporter", told))
    for now, total in ((1, 0), (2, 2), (3, 2), (4, 0), (5, 1), (6, 0), (15, 0), (16, 0), (17, 0), (40, 1)):
        told.count(total)
        company.tell(float(now))
    assert told.lines == [
        "ok connected to 2 peers",
        "warn no peer is connected any more; it goes on trying",
        "ok connected to 1 peer",
    ]


def network(*seeds: str, founders: int = 1, alone: bool = False, found: bool = False, **run: bool) -> tuple[str, str]:
    now = st_.Status(version="1", protocol=1, peer=PEER, since=0.0)
    now = st_.apply(now, st_.Reach("unknown", (), (f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}",)))
    for i, state in enumerate(seeds):
        error = "nobody listens there" if state == "failed" else None
        now = st_.apply(now, st_.Seed(f"/ip4/192.0.2.{i + 2}/tcp/1/p2p/{PEER}", state, error))  # type: ignore[arg-type]
    members = Members((PeerId(PEER),) * founders, run.get("open_", False), 0)
    mark, label, text = first_screen.network(now, members, alone=alone, found=found)
    assert label == "network"
    return mark, text


def test_the_network_line_says_who_answers_and_what_to_do() -> None:
    assert network("ok", "failed") == ("ok", "listens on port 4001; joined through 1 of 2 addresses")
    mark, text = network("failed", "trying")
    assert mark == "warn"
    assert "none of 2 addresses answers yet (nobody listens there)" in text and "tried again" in text
    assert network("trying", found=True) == ("ok", "listens on port 4001; others of the run answer")
    assert network(alone=True) == ("note", "none: --alone never looks for peers")


def test_the_network_line_invites_only_where_others_may_take_part() -> None:
    assert "`murmur invite`" in network(open_=True)[1]
    assert "`murmur invite`" in network(founders=2)[1]
    assert "`murmur invite`" not in network()[1] and "`murmur run init --open`" in network()[1]


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
