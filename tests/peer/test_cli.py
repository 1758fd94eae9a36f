"""The command as a shell sees it: exit codes, one line and a remedy, light imports, manifests on disk."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from peer import cli_flags, corpus
from peer.blobs import BlobStore
from peer.cli import parser as cli_parser
from peer.exits import Exit, NoDaemon, Refused, exit_code
from peer.identity import Identity
from peer.paths import Home
from protocols.compression import CODECS
from protocols.errors import ConfigError, EnvironmentFault, LocalError, RemoteError
from protocols.manifest_text import parse
from protocols.rules import RULES

ROOT = Path(__file__).resolve().parents[2]


def murmur(home: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MURMUR_HOME": str(home)}
    command = [sys.executable, "-c", "from peer.cli import main; main()", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=ROOT, input=stdin, timeout=30, check=False
    )


def test_one_exit_code_for_each_fault() -> None:
    faults = [
        ConfigError("x"),
        NoDaemon("x"),
        Refused("x"),
        EnvironmentFault("x"),
        LocalError("x"),
        RemoteError("p", "x"),
    ]
    assert [int(exit_code(fault)) for fault in faults] == [2, 3, 4, 5, 1, 1]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("frob",),
        ("up", "--frob"),
        ("up", "--size", "huge"),
        ("up", "--api-port", "65536"),
        ("up", "--rounds", "-1"),
        ("up", "--alone", "--join", "/ip4/127.0.0.1/tcp/1"),
        ("up", "--ro", "3"),
        ("up", "--listen", "banana"),
        ("up", "--listen", "fe80::1"),
        ("up", "--listen", "::ffff:1.2.3.4"),
        ("up", "--join", "banana"),
        ("up", "--join", "murmur1abc"),
        ("up", "--join", "/ip4/127.0.0.1/tcp/1/p2p/banana"),
        ("up", "--run", "abcdef"),
        ("up", "--blob-cap", "0"),
        ("swarm", "--peers", "0"),
        ("run",),
        ("run", "show"),
        ("run", "show", "absent.toml"),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = murmur(tmp_path, *arguments)
    assert done.returncode == Exit.USAGE
    assert done.stdout == ""
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_version() -> None:
    assert murmur(ROOT, "--version").stdout.split() == ["murmur", "0.1.0"]


def test_without_a_daemon_status_and_stop_exit_3(tmp_path: Path) -> None:
    for verb in ("status", "stop", "invite"):
        done = murmur(tmp_path, verb)
        assert (done.returncode, done.stdout) == (Exit.NO_DAEMON, "")
        assert done.stderr.splitlines() == [
            f"murmur: no daemon is running for {tmp_path}",
            "  try: start one with `murmur up`",
        ]
    done = murmur(tmp_path, "status", "--json")
    assert done.returncode == Exit.NO_DAEMON
    assert json.loads(done.stdout) == {"schema": 1, "state": "stopped"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"port": "x"}', '{"schema":1,"port":1,"token":"t","pid":1}'])
def test_a_leftover_api_file_is_no_daemon(tmp_path: Path, content: str) -> None:
    (tmp_path / "api.json").write_text(content)
    assert murmur(tmp_path, "status").returncode == Exit.NO_DAEMON


def test_somebody_else_s_port_is_no_daemon(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (tmp_path / "api.json").write_text(json.dumps({"schema": 1, "port": port, "token": "t", "pid": 1}))
        command = [sys.executable, "-c", "from peer.cli import main; main()", "status", "--home", str(tmp_path)]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
                assert process.wait(timeout=20) == Exit.NO_DAEMON


def test_commands_load_nothing_heavy_and_answer_at_once(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom peer import cli, cli_run, client\nfrom peer.paths import Home\nfrom pathlib import Path\n"
        "cli.parser()\n"
        "try:\n    client.show_status(Home(Path(sys.argv[1])), as_json=False)\n"
        "except client.NoDaemon:\n    print(*sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, timeout=30)
    loaded = set(done.stdout.split())
    assert "peer" in loaded
    assert not loaded & {"torch", "hivemind", "libp2p", "numpy", "trio", "starlette", "uvicorn", "asyncio", "psutil"}

    def once() -> float:
        """Seconds of CPU, which a busy machine does not stretch as it does the wall clock's."""
        before = os.times()
        assert murmur(tmp_path, "status").returncode == Exit.NO_DAEMON
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(once() for _ in range(3)) < 0.4


def test_init_show_verify_and_sign_on_files(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "run.toml"
    done = murmur(home, "run", "init", "--size", "nano", "--seed", "3", "-o", str(file))
    assert done.returncode == Exit.DONE, done.stderr
    identity = Identity.load(Home(home).key)
    manifest = parse(file.read_text())
    assert (manifest.model.size, manifest.run.seed, len(manifest.data.shards)) == ("nano", 3, 38)
    assert manifest.members.founders == (identity.peer,)
    assert home.stat().st_mode & 0o777 == 0o700

    verified = json.loads(murmur(home, "run", "verify", str(file), "--json").stdout)
    assert verified["signed_by"] == identity.peer
    shown = murmur(home, "run", "show", str(file))
    assert f"# run {verified['run_id']}" in shown.stdout
    assert tomllib.loads(shown.stdout) == tomllib.loads(file.read_text())

    file.write_text(file.read_text().replace("seed = 3", "seed = 4"))
    done = murmur(home, "run", "verify", str(file))
    assert done.returncode == Exit.USAGE
    assert "changed after signing" in done.stderr
    assert murmur(home, "run", "sign", str(file)).returncode == Exit.DONE
    resigned = json.loads(murmur(home, "run", "verify", "-", "--json", stdin=file.read_text()).stdout)
    assert resigned["run_id"] != verified["run_id"]

    done = murmur(tmp_path / "other", "run", "sign", str(file))
    assert done.returncode == Exit.USAGE
    assert "not among the manifest's founders" in done.stderr


def test_init_on_a_folder_of_one_s_own(tmp_path: Path) -> None:
    folder = tmp_path / "My Texts"
    folder.mkdir()
    (folder / "one.txt").write_bytes(b"to be or not to be. " * 400)
    (folder / "two.txt").write_bytes(b"that is the question. " * 400)
    done = murmur(tmp_path / "home", "run", "init", "--data", str(folder), "--name", "mine")
    assert done.returncode == Exit.DONE, done.stderr
    manifest = parse(done.stdout)
    assert (manifest.run.name, manifest.data.name) == ("mine", "my-texts")
    assert [(shard.id, shard.bytes) for shard in manifest.data.shards] == [("one.txt", 8000), ("two.txt", 8800)]
    assert "kept 2 shards" in done.stderr
    store = BlobStore(Home(tmp_path / "home").blobs)
    assert corpus.missing(manifest, store, None) == (), "the folder is not needed any more"


def test_the_help_names_every_codec_and_rule() -> None:
    assert cli_flags.CODECS == CODECS and cli_flags.RULES == RULES
    parser = cli_flags.Parser(prog="murmur")
    cli_flags.add_methods(parser, codec="float32")
    text = " ".join(parser.format_help().split())
    assert "how updates are encoded: float32, bf16, int8 or int4 (float32)" in text
    assert "how updates are combined: default, arc-nnm-gm, centered-clip, multi-krum or mean" in text


def test_a_home_that_cannot_be_made_exits_5(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = murmur(tmp_path / "file" / "home", "run", "init")
    assert done.returncode == Exit.ENVIRONMENT
    assert "cannot be used" in done.stderr
    assert "--home" in done.stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in murmur(tmp_path, "status", "--debug").stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("status",), 3),
        (("peers",), 3),
        (("pause",), 3),
        (("resume",), 3),
        (("finish",), 3),
        (("stop",), 3),
        (("invite",), 3),
        (("generate", "Enter "), 5),
        (("export", "model"), 5),
        (("log",), 3),
        (("paths",), 0),
        (("config", "show", "--origin"), 0),
        (("key", "show"), 5),
        (("key", "export", "-"), 5),
        (("run", "follow", "0" * 64), 3),
    ],
)
def test_every_command_says_what_a_new_home_lacks(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    ended = murmur(tmp_path / "home", *arguments)
    assert "internal error" not in ended.stderr and "Traceback" not in ended.stderr
    assert ended.returncode == code, ended.stderr
    assert (code == 0) == (not ended.stderr) and (code == 0) == bool(ended.stdout)


@pytest.mark.parametrize("command", ["up", "key show", "swarm"])
def test_what_a_command_does_not_know_is_told_by_it(command: str) -> None:
    with pytest.raises(ConfigError, match="unrecognized arguments: --hom x") as caught:
        cli_parser().parse_args([*command.split(), "--hom", "x"])
    assert caught.value.remedy == f"`murmur {command} --help` shows what there is"
