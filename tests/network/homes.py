"""Real daemons and a real lighthouse in the lab: started in a host's namespace, asked over their own loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer import corpus
from peer.identity import Identity
from peer.paths import Home
from protocols.manifest import render, sign
from protocols.manifest_defaults import Choices, default_manifest
from tests.peer.live import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.network.natlab import Online
    from tests.network.wires import Host

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = (sys.executable, "-m", "peer")
ENTRY, RELAY = 4001, 4002


@dataclass
class Program:
    """One ``murmur`` in a namespace; it ends with the lab."""

    host: Host
    home: Home
    process: subprocess.Popen[str]
    printed: Path

    def ask(self, *words: str) -> dict[str, Any]:
        """What the thin client prints with ``--json``; empty while nothing answers."""
        done = self.host.run([*PROGRAM, *words, "--json", "--home", str(self.home.root)], timeout=20, check=False)
        return json.loads(done.stdout) if done.returncode == 0 and done.stdout else {}

    def status(self) -> dict[str, Any]:
        """The status document."""
        return self.ask("status")

    def connections(self) -> dict[str, str]:
        """Peer → ``direct``, ``punched`` or ``relayed``, of those that are connected."""
        return {each["id"]: each["connection"] for each in self.ask("peers").get("peers", []) if each["connection"]}

    def log(self) -> str:
        """The end of its log, for whoever reads that a test failed."""
        lines = self.home.log.read_text().splitlines() if self.home.log.exists() else []
        return "\n".join(("", self.printed.read_text(), *lines[-40:]))


def _start(host: Host, folder: Path, *words: str) -> Program:
    folder.mkdir(mode=0o700, exist_ok=True)
    printed = folder / "printed"
    with printed.open("w") as out:
        process = host.popen(
            [*PROGRAM, *words, "--home", str(folder)], stdout=out, stderr=subprocess.STDOUT, cwd=str(ROOT)
        )
    return Program(host, Home(folder), process, printed)


class Lighthouse:
    """``murmur lighthouse`` on a public host."""

    def __init__(self, host: Online, folder: Path, *words: str) -> None:
        self.host = host
        self.program = _start(host, folder, "lighthouse", *words)
        until(lambda: "healthz" in self.program.printed.read_text(), 60, "the lighthouse is up")
        line = next(each for each in self.program.printed.read_text().splitlines() if "--join" in each)
        self.address = line.split()[-1]


def founders(folder: Path, names: Sequence[str], *, size: str = "nano", steps: int = 10) -> Path:
    """A home with a key for each name, and the manifest that all of them have founded."""
    keys = []
    for name in names:
        (folder / name).mkdir(mode=0o700)
        keys.append(Identity.load_or_create(Home(folder / name).key))
    choices = Choices(size=size, steps=steps)
    manifest = default_manifest(choices, founders=[key.peer for key in keys], shards=corpus.SHARDS)
    path = folder / "run.toml"
    path.write_text(render(sign(manifest, keys[0].peer, keys[0].sign)))
    return path


def daemon(host: Host, folder: Path, run: Path, lighthouses: Sequence[Lighthouse], *words: str) -> Program:
    """``murmur up`` of a founder; its home is ``folder``."""
    joins = [word for each in lighthouses for word in ("--join", each.address)]
    return _start(host, folder, "up", "--run", str(run), *joins, *words)


def identity(program: Program) -> str:
    """The peer's id."""
    return identity_of(program.home.root)


def identity_of(home: Path) -> str:
    """The id of the peer whose home this is."""
    return Identity.load(Home(home).key).peer
