"""Completion scripts: made for each shell, and what each shell then offers."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from peer import cli
from peer.cli_completion import SHELLS, script

if TYPE_CHECKING:
    from pathlib import Path


def run(*command: str, stdin: str = "") -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_names_every_command_and_flag(shell: str) -> None:
    text = script(cli.parser(), shell)
    assert text == script(cli.parser(), shell), "the same script each time"
    for word in ("up", "status", "export", "import", "doctor", "completion", "p2p-port", "follow", "keep-checkpoints"):
        assert word in text


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_itself_takes_the_script(tmp_path: Path, shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    path = tmp_path / "script"
    path.write_text(script(cli.parser(), shell))
    run(program, "-n", str(path))


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("murmur ", {"up", "status", "stop", "key", "log", "paths", "config", "completion"}),
        ("murmur st", {"status", "stop"}),
        ("murmur key ", {"show", "export", "import"}),
        ("murmur up --p2p", {"--p2p-port"}),
        ("murmur up --size ", {"nano", "tiny", "small", "base"}),
        ("murmur log --level ", {"debug", "info", "warning", "error", "critical"}),
        ("murmur completion ", set(SHELLS)),
    ],
)
def test_what_bash_offers(tmp_path: Path, words: str, offered: set[str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    path = tmp_path / "murmur.bash"
    path.write_text(script(cli.parser(), "bash"))
    array = " ".join(f"'{word}'" for word in words.split(" "))
    found = run(
        bash,
        "--norc",
        stdin=f"source {path}\nCOMP_WORDS=({array}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_LINE='{words}'\n"
        "COMP_POINT=${#COMP_LINE}\n"
        'function=$(complete -p murmur | sed "s/.*-F \\([^ ]*\\).*/\\1/")\n'
        '$function murmur "${COMP_WORDS[COMP_CWORD]}"; printf "%s\\n" "${COMPREPLY[@]}"\n',
    )
    assert offered <= {each.strip() for each in found.splitlines()}
    if words != "murmur ":
        assert {each.strip() for each in found.splitlines()} <= offered | {"--help", "-h", "--debug"}
