"""``murmur key``: a backup that only its owner reads, and an import that never loses a key."""

from __future__ import annotations

import io
import json
import stat
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from peer import cli
from peer.exits import Exit
from peer.identity import Identity
from peer.lock import hold
from peer.paths import Home

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIRST, SECOND = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))


def run(home: Path, *words: str) -> int:
    arguments = vars(cli.parser().parse_args(["key", *words, "--home", str(home)]))
    return cli.guarded(arguments.pop("command"), arguments)


def home_of(path: Path, identity: Identity) -> Home:
    home = Home(path)
    home.create()
    identity.save(home.key)
    return home


@contextmanager
def daemon(home: Home, reason: str) -> Iterator[None]:
    """Something that answers as the daemon of this home, and holds its lock."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"schema": 1, "state": "seeking", "reason": {"code": reason, "text": ""}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with hold(home.lock), HTTPServer(("127.0.0.1", 0), Handler) as server:
        home.api.write_text(json.dumps({"schema": 1, "port": server.server_port, "token": "t", "pid": 1}))
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join(10)
            home.api.unlink()


def test_a_key_travels_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, backup = home_of(tmp_path / "home", FIRST), tmp_path / "backup"
    assert run(home.root, "export", str(backup)) == Exit.DONE
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert backup.read_bytes() == home.key.read_bytes()
    said = capsys.readouterr()
    assert said.out == "" and FIRST.peer in said.err and "one machine at a time" in said.err
    assert run(tmp_path / "new", "import", str(backup)) == Exit.DONE
    assert Identity.load(Home(tmp_path / "new").key).peer == FIRST.peer
    assert stat.S_IMODE(Home(tmp_path / "new").key.stat().st_mode) == 0o600
    assert capsys.readouterr().out == f"this home is {FIRST.peer}\n"
    assert run(tmp_path / "new", "import", str(backup)) == Exit.DONE, "the same key again"


def test_show_tells_the_public_half_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = home_of(tmp_path, FIRST)
    assert run(tmp_path, "show") == Exit.DONE
    assert capsys.readouterr().out == f"peer  {FIRST.peer}\nfile  {home.key}\nuse   not in use\n"
    assert run(tmp_path, "show", "--json") == Exit.DONE
    document = json.loads(capsys.readouterr().out)
    assert document == {"schema": 1, "peer": FIRST.peer, "file": str(home.key), "in_use": ""}


def test_without_a_key_there_is_nothing_to_show_and_none_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (("show",), ("export", str(tmp_path / "x"))):
        assert run(tmp_path / "home", *words) == Exit.ENVIRONMENT
        assert "has no key yet\n  try: `murmur up` makes one" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_export_never_writes_over_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home_of(tmp_path / "home", FIRST)
    (tmp_path / "precious").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("precious", "link"):
        assert run(tmp_path / "home", "export", str(tmp_path / name)) == Exit.ENVIRONMENT
        assert "name another FILE" in capsys.readouterr().err
    assert (tmp_path / "precious").read_text() == "x" and not (tmp_path / "elsewhere").exists()
    assert run(tmp_path / "home", "export", str(tmp_path / "absent" / "x")) == Exit.ENVIRONMENT
    assert "there is no folder" in capsys.readouterr().err and not (tmp_path / "absent").exists()


def test_an_export_to_a_pipe_is_the_file(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_of(tmp_path, FIRST)
    assert run(tmp_path, "export", "-", "--json") == Exit.DONE
    raw = capfdbinary.readouterr().out
    assert raw == home.key.read_bytes()

    class Stdin:
        buffer = io.BytesIO(raw)

    monkeypatch.setattr(sys, "stdin", Stdin())
    assert run(tmp_path / "new", "import", "-") == Exit.DONE
    assert Identity.load(Home(tmp_path / "new").key).peer == FIRST.peer


def test_a_terminal_gets_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home_of(tmp_path, FIRST)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run(tmp_path, "export", "-") == Exit.USAGE


def test_another_key_is_replaced_only_on_request_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = home_of(tmp_path / "home", FIRST)
    SECOND.save(tmp_path / "second")
    assert run(home.root, "import", str(tmp_path / "second")) == Exit.ENVIRONMENT
    said = capsys.readouterr().err
    assert f"it is {FIRST.peer}" in said and "--replace" in said
    assert Identity.load(home.key).peer == FIRST.peer
    assert run(home.root, "import", str(tmp_path / "second"), "--replace", "--json") == Exit.DONE
    document = json.loads(capsys.readouterr().out)
    assert Identity.load(home.key).peer == SECOND.peer == document["peer"]
    kept = home.key.with_name(f"identity.key.{FIRST.peer[-8:]}")
    assert document["kept"] == str(kept) and Identity.load(kept).peer == FIRST.peer
    assert {stat.S_IMODE(path.stat().st_mode) for path in (home.key, kept)} == {0o600}
    assert {path.name for path in home.root.iterdir()} == {"identity.key", kept.name, "daemon.lock"}


def test_a_key_that_has_signed_here_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The journal keeps what that key has signed: under another one it would be wrong, without it signed twice."""
    home = home_of(tmp_path / "home", FIRST)
    SECOND.save(tmp_path / "second")
    home.run(b"\1" * 32).mkdir(parents=True)
    (home.run(b"\1" * 32) / "journal").write_bytes(b"")
    assert run(home.root, "import", str(tmp_path / "second"), "--replace") == Exit.ENVIRONMENT
    assert "has signed in 1 run" in (said := capsys.readouterr().err) and "--home DIR" in said
    assert Identity.load(home.key).peer == FIRST.peer


@pytest.mark.parametrize(("raw", "complaint"), [(b"", "0 bytes, not 68"), (b"x" * 68, "does not hold")])
def test_what_is_no_key_is_refused_before_anything_is_made(
    tmp_path: Path, raw: bytes, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(raw)
    assert run(tmp_path / "home", "import", str(tmp_path / "file")) == Exit.ENVIRONMENT
    assert complaint in (said := capsys.readouterr().err) and "`murmur key export`" in said
    assert run(tmp_path / "home", "import", str(tmp_path / "absent")) == Exit.USAGE
    assert not (tmp_path / "home").exists()


def test_a_running_daemon_keeps_its_key_and_may_be_backed_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = home_of(tmp_path / "home", FIRST)
    SECOND.save(tmp_path / "second")
    with daemon(home, "none"):
        assert run(home.root, "import", str(tmp_path / "second"), "--replace") == Exit.REFUSED
        assert "`murmur stop`" in capsys.readouterr().err
        assert run(home.root, "export", str(tmp_path / "backup")) == Exit.DONE
        assert run(home.root, "show") == Exit.DONE
        assert "in use by the daemon of this home" in capsys.readouterr().out
    assert Identity.load(home.key).peer == FIRST.peer


def test_a_key_that_another_machine_holds_is_not_copied_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = home_of(tmp_path / "home", FIRST)
    with daemon(home, "key_in_use"):
        assert run(home.root, "export", str(tmp_path / "backup")) == Exit.REFUSED
        assert "in use on another machine" in capsys.readouterr().err
    assert not (tmp_path / "backup").exists()
