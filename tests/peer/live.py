"""For tests of the whole: real daemons as child processes, and waiting for a condition with a deadline."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import psutil

from peer import client, corpus
from peer.identity import Identity
from peer.paths import Home
from protocols.errors import MurmurError
from protocols.manifest import render, sign
from protocols.manifest_defaults import Choices, default_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = (sys.executable, "-m", "peer")


def until(condition: Callable[[], bool], within: float, what: str) -> None:
    """Return as soon as ``condition`` holds; fails the test after ``within`` seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"after {within} s still not so: {what}"
        time.sleep(0.01)


@dataclass
class Live:
    """A ``murmur`` process: its home, what it printed so far, and its family."""

    home: Home
    process: subprocess.Popen[bytes]
    streams: tuple[Path, Path]

    @property
    def printed(self) -> str:
        """Its stdout."""
        return self.streams[0].read_text()

    @property
    def complaints(self) -> str:
        """Its stderr."""
        return self.streams[1].read_text()

    @property
    def log(self) -> str:
        """Its log file."""
        return self.home.log.read_text()

    def last_words(self, lines: int = 40) -> str:
        """The end of its log, for whoever reads that a test failed."""
        log = self.log.splitlines()[-lines:] if self.home.log.exists() else ["(no log)"]
        return "\n".join((f"\n== {self.home.root}", *log, self.complaints))

    def status(self) -> dict[str, Any]:
        """The status document; empty while the daemon does not answer."""
        try:
            return client.request(self.home, "GET", "/api/v1/status")
        except MurmurError:
            return {}

    def says(self, text: str, within: float = 60.0) -> None:
        """Wait until ``text`` is on stdout; fails at once when the process ends first."""
        until(lambda: text in self.printed or self.process.poll() is not None, within, f"it says {text!r}")
        assert text in self.printed, self.complaints

    def family(self) -> list[psutil.Process]:
        """Its children and theirs, those that live."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def ends(self, within: float = 60.0) -> int:
        """The exit code, once it has ended."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"still running after {within} s: {self.printed}{self.complaints}") from error

    def asked(self, number: signal.Signals, within: float) -> int:
        """Send a signal; the exit code, which must come in time."""
        self.process.send_signal(number)
        return self.ends(within)


def _hear_interrupts() -> None:
    """A shell's background job, as a CI run can be, hands down an ignored SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def murmur(
    home: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    program: tuple[str, ...] = PROGRAM,
) -> Iterator[Live]:
    """Start ``murmur ARGUMENTS`` for a home; it is killed at the end if it still runs."""
    number = len(list(home.parent.glob(f"{home.name}.*.out")))  # a command beside its daemon has streams of its own
    streams = (home.parent / f"{home.name}.{number}.out", home.parent / f"{home.name}.{number}.err")
    with streams[0].open("wb") as out, streams[1].open("wb") as err:
        process = subprocess.Popen(
            [*program, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=ROOT,
            env={**os.environ, "MURMUR_HOME": str(home), **(environment or {})},
            preexec_fn=_hear_interrupts,  # noqa: PLW1509 - the tests' process has no threads
        )
    live = Live(Home(home), process, streams)
    try:
        yield live
    except BaseException:
        sys.stdout.write(live.last_words())
        raise
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def gone(processes: list[psutil.Process], within: float = 5.0) -> None:
    """Wait until none of these processes lives."""
    until(lambda: not any(alive(each) for each in processes), within, f"{processes} ended")


def alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def small_run(
    folder: Path,
    *,
    founders: int = 1,
    steps: int = 2,
    seconds: int = 0,
    codec: str = "int8",
    guests: bool = False,
    data: Path | None = None,
) -> tuple[Path, list[Identity]]:
    """A run of nano on the plays, with few steps or so many seconds a window: a signed manifest file, its founders.

    ``guests``: strangers may join it, and are contributors at once; ``data``: a folder in place of the plays.
    """
    keys = [Identity.from_seed(bytes(31) + bytes([number])) for number in range(1, founders + 1)]
    choices = Choices(size="nano", steps=steps, codec=codec, open=guests)
    shards = corpus.SHARDS
    if data is not None:
        choices, shards = replace(choices, data="texts"), tuple(each.entry for each in corpus.from_folder(data))
    manifest = default_manifest(choices, founders=[each.peer for each in keys], shards=shards)
    if seconds:
        manifest = replace(manifest, round=replace(manifest.round, steps=None, seconds=seconds))
    path = folder / "run.toml"
    path.write_text(render(sign(manifest, keys[0].peer, keys[0].sign)))
    return path, keys


def home_of(folder: Path, key: Identity, name: str = "home") -> Path:
    """A fresh home with this key."""
    home = Home(folder / name)
    home.create()
    key.save(home.key)
    return home.root


def addresses(live: Live) -> list[str]:
    """Where it takes peers over TCP, as far as it knows."""
    found = live.status().get("reach", {}).get("addresses", [])
    return [each for each in found if "/tcp/" in each]


def address(live: Live) -> str:
    """The first of these, once it knows one; fails when it ends first."""
    until(lambda: bool(addresses(live)) or live.process.poll() is not None, 90, "it has an address")
    return addresses(live)[0]


@contextlib.contextmanager
def together(folder: Path, keys: list[Identity], *options: str, seed: Live | None = None) -> Iterator[list[Live]]:
    """A daemon on the loopback for each key; all join through ``seed``, or else through the first of them."""
    with contextlib.ExitStack() as stack:
        found: list[Live] = []
        for key in keys:
            entry = seed or (found[0] if found else None)
            join = (f"--join={address(entry)}",) if entry else ()
            home = home_of(folder, key, f"home-{key.peer[-4:]}")
            found.append(stack.enter_context(murmur(home, "up", "--threads=1", "--listen=127.0.0.1", *options, *join)))
        yield found


def sealed(home: Path) -> dict[int, dict[str, Any]]:
    """Round → its last entry in the round log; none before the run's folder is there."""
    found: dict[int, dict[str, Any]] = {}
    for path in home.glob("runs/*/rounds.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        found |= {entry["round"]: entry for entry in map(json.loads, (each for each in lines if each.endswith("\n")))}
    return found


def run_folder(home: Path) -> Path:
    """The one run's folder."""
    (folder,) = (home / "runs").iterdir()
    return folder


def journal(home: Path) -> dict[tuple[str, bytes], bytes]:
    """``statements`` of the one run's journal."""
    return statements(run_folder(home) / "journal")


def statements(path: Path) -> dict[tuple[str, bytes], bytes]:
    """(kind, slot) → signed bytes, of every statement in a journal; parsed here on its own."""
    data, found = path.read_bytes(), {}
    while data:
        size = int.from_bytes(data[:4], "little")
        key, _, raw, _ = msgpack.unpackb(data[12 : 12 + size])
        if key:
            fields = msgpack.unpackb(raw)
            slot = (fields["kind"], fields["slot"])
            assert slot not in found, f"two statements for {slot}"
            found[slot] = raw
        data = data[20 + size :]
    return found
