"""Homes, keys and manifest of a local swarm, and its daemons as child processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from dht.p2pd import die_with_parent
from protocols.errors import ConfigError, LocalError, MurmurError
from protocols.ids import digest
from protocols.manifest import Manifest, render, run_id, sign, verify
from protocols.manifest_defaults import Choices, default_manifest

from .. import client, corpus
from ..config import unset
from ..config_table import OPTIONS
from ..identity import Identity
from ..paths import Home
from ..runs import read_manifest
from .victim import Tokens

if TYPE_CHECKING:
    from ..options import SwarmOptions

LOOPBACK = "127.0.0.1"
ADDRESS_S = 60.0
"""Until a daemon must have an address that the next can join."""
STOP_S = 15.0
"""Between asking a daemon to end and killing it."""
GONE_S = 5.0
"""After the end of a daemon none of its children may live longer."""
SPARE_CHECKPOINTS = 16
"""Room for seals beyond the rounds asked for: void ones."""
_ROOT = Path(__file__).resolve().parents[2]


def keys(options: SwarmOptions) -> list[Identity]:
    """The peers' keys, a function of the seed, in order of their index; those that join later come last."""
    names = (number.to_bytes(8, "big") for number in range(options.peers + len(options.join_at)))
    return [Identity.from_seed(digest(b"murmur swarm", options.seed.to_bytes(8, "big"), name)) for name in names]


def local_manifest(options: SwarmOptions, identities: list[Identity]) -> Manifest:
    """A run of this swarm alone: the keys of its first peers are the founders, its seed is the swarm's.

    Open to strangers where some are to join. Raises ConfigError.
    """
    chosen = {name: getattr(options, name) for name in ("size", "steps", "codec", "rule")}
    if options.run != corpus.NAME:
        return _given_manifest(options, identities, [name for name, value in chosen.items() if value is not None])
    given = {name: value for name, value in chosen.items() if value is not None}
    choices = Choices(seed=options.seed, open=bool(options.join_at), probation=0, **given)
    founders = [each.peer for each in identities[: options.peers]]
    manifest = default_manifest(choices, founders=founders, shards=corpus.SHARDS)
    return sign(manifest, identities[0].peer, identities[0].sign)


def _given_manifest(options: SwarmOptions, identities: list[Identity], changed: list[str]) -> Manifest:
    """A manifest from a file, whose founders must be this swarm's first keys; nothing in it can be changed here."""
    if changed:
        raise ConfigError(f"--{changed[0]} would change the run {options.run}", remedy="leave it out, or --run")
    manifest = read_manifest(Path(options.run))
    verify(manifest)
    if options.join_at and not manifest.members.open:
        raise ConfigError(f"nobody can join {options.run}: its members are fixed", remedy="leave out --join-at")
    if set(manifest.members.founders) != {each.peer for each in identities[: options.peers]}:
        raise ConfigError(
            f"the founders of {options.run} are not the {options.peers} keys of seed {options.seed}",
            remedy="give the --seed and --peers of the swarm that wrote it (run.toml of --keep or --trace)",
        )
    return manifest


@dataclass
class Peer:
    """One daemon of the swarm and what is seen of it from outside."""

    index: int
    identity: Identity
    home: Home
    joins: int | None = None
    """The round in which it is started; None for a founder."""
    killed: str | None = None
    """The ``--kill`` that it dies, or died, of."""
    process: asyncio.subprocess.Process | None = None
    started: float = 0.0
    """Unix seconds."""
    rss_peak: int = 0
    family: set[tuple[int, float]] = field(default_factory=set)
    """(pid, start time) of every process it ever had."""
    ended: float | None = None
    """When it was first seen to have ended, monotonic seconds."""
    left_behind: list[int] | None = None
    """Its processes that still lived ``GONE_S`` later."""

    @property
    def running(self) -> bool:
        """Whether the daemon has not ended."""
        return self.process is not None and self.process.returncode is None

    def look(self, now: float) -> None:
        """Take note of the daemon's memory and of its children, and of those that outlive it."""
        if self.process is None:
            return
        if not self.running:
            self.ended = now if self.ended is None else self.ended
            if self.left_behind is None and now - self.ended >= GONE_S:
                self.left_behind = self.orphans()
            return
        try:
            daemon = psutil.Process(self.process.pid)
            self.rss_peak = max(self.rss_peak, daemon.memory_info().rss)
            for each in (daemon, *daemon.children(recursive=True)):
                self.family.add((each.pid, each.create_time()))
        except psutil.Error:
            return

    def orphans(self) -> list[int]:
        """Processes of this daemon's that outlived it."""
        found = []
        for pid, started in sorted(self.family):
            try:
                process = psutil.Process(pid)
                if process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(pid)
            except psutil.Error:
                continue
        return found

    def outlived(self) -> list[int]:
        """Processes of this daemon's that were there too long after it, or are there now."""
        return sorted({*(self.left_behind or ()), *self.orphans()})

    def ending(self) -> str:
        """How the daemon ended, for a person: ``was killed by SIGKILL``, ``ended with exit code 5 (…)``."""
        code = self.process.returncode if self.process is not None else None
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        said = self.last_words()
        return f"ended with exit code {code}" + (f" ({said})" if said else "")

    def last_words(self) -> str:
        """The daemon's complaint, or else the last line it printed."""
        try:
            lines = (self.home.root / "output").read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        complaints = [line.removeprefix("murmur: ") for line in lines if line.startswith("murmur: ")]
        return (complaints or lines or [""])[-1]


class Launcher:
    """Starts the daemons of a swarm one after another and ends them."""

    def __init__(self, options: SwarmOptions, folder: Path) -> None:
        identities = keys(options)
        self.manifest = local_manifest(options, identities)
        self.run = run_id(self.manifest)
        joins = (*(None for _ in range(options.peers)), *options.join_at)
        self.peers = [
            Peer(index, each, Home(folder / f"peer-{index}"), number)
            for index, (each, number) in enumerate(zip(identities, joins, strict=True))
        ]
        self.founders = self.peers[: options.peers]
        self._options, self._file = options, folder / "run.toml"
        self._file.write_text(render(self.manifest))
        self._temporary = folder / "t"  # short: sockets live here, and what a killed daemon leaves goes with the rest
        self._tokens = Tokens(folder / "tokens")
        for each in (self._temporary, self._tokens.folder):
            each.mkdir()

    async def start(self) -> None:
        """Start the founders; each but the first joins through the first.

        Raises LocalError when one does not come up.
        """
        entry: list[str] = []
        for peer in self.founders:
            await self._spawn(peer, [f"--run={self._file}", *entry])
            if len(self.peers) > 1 and not entry:
                entry = [f"--join={await self._address(peer)}"]

    async def admit(self, sealed: int) -> list[Peer]:
        """Start whoever is to join once round ``sealed`` is sealed; returns the new ones.

        Each begins with its key and an invitation of a peer that runs: manifest, data and state come from the others.
        """
        due = [each for each in self.peers if each.joins is not None and each.joins <= sealed + 1 and not each.process]
        started = []
        for peer in due:
            running = [each.home for each in self.peers if each.running]
            found = await asyncio.gather(*(asyncio.to_thread(_invitation, home) for home in running))
            invitation = next(filter(None, found), None)
            if invitation is not None:  # else nobody answers just now
                await self._spawn(peer, [f"--join={invitation}"])
                started.append(peer)
        return started

    def see_deaths(self) -> list[Peer]:
        """Take note of the kills that were carried out; returns those that died by one since the last look."""
        found = []
        for index, number in self._tokens.taken().items():
            peer = self.peers[index]
            if peer.killed is None:
                peer.killed = str(self._options.kill[number])
                found.append(peer)
        return found

    async def stop(self) -> None:
        """Ask every daemon to end, kill what does not, reap all."""
        for peer in self.peers:
            if peer.running and peer.process is not None:
                peer.process.terminate()
        await asyncio.gather(*(self._end(peer) for peer in self.peers))

    async def _spawn(self, peer: Peer, entry: list[str]) -> None:
        """Start a daemon that finds its run by ``entry``."""
        peer.home.create()
        peer.identity.save(peer.home.key)
        rounds = self._options.rounds  # of the whole swarm: whoever joins late counts those before it as well
        kept = rounds + SPARE_CHECKPOINTS
        command = [
            *(sys.executable, "-P", "-m", *self._program(peer), "up", "--json"),
            *(f"--home={peer.home.root}", f"--rounds={rounds}"),
            *(f"--listen={LOOPBACK}", "--threads=1", f"--keep-checkpoints={kept}"),
            *(["--alone"] if len(self.peers) == 1 else []),
            *entry,
        ]
        peer.started = time.time()
        with (peer.home.root / "output").open("wb") as output:
            peer.process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                cwd=_ROOT,
                env={**unset(OPTIONS, os.environ), "TMPDIR": str(self._temporary)},
                preexec_fn=die_with_parent(),
            )

    def _program(self, peer: Peer) -> list[str]:
        """The module to run: the daemon as it is, or, for a peer that a kill may hit, the one that can die."""
        kills = self._options.kill
        if not any(kill.index in (None, peer.index) for kill in kills):
            return ["peer"]
        own = (f"--index={peer.index}", f"--tokens={self._tokens.folder}", *(f"--kill={kill}" for kill in kills))
        return ["peer.swarm.victim", *own]

    async def _address(self, peer: Peer) -> str:
        """The peer's TCP address, once its status knows it."""
        async with asyncio.timeout(ADDRESS_S):
            while peer.running:
                address = await asyncio.to_thread(_door, peer.home)
                if address is not None:
                    return address
                await asyncio.sleep(0.2)
        raise LocalError(f"peer {peer.index} {peer.ending()} before it had an address")

    @staticmethod
    async def _end(peer: Peer) -> None:
        if peer.process is None:
            return
        try:
            await asyncio.wait_for(peer.process.wait(), STOP_S)
        except TimeoutError:
            peer.process.kill()
            await peer.process.wait()


def _invitation(home: Home) -> str | None:
    """What a daemon gives out to those who want to join; None while it does not."""
    try:
        return str(client.request(home, "GET", "/api/v1/invite")["invitation"])
    except MurmurError:
        return None


def _door(home: Home) -> str | None:
    """The TCP address at which a daemon can be joined; None while it does not tell."""
    try:
        addresses = client.request(home, "GET", "/api/v1/status")["reach"]["addresses"]
    except MurmurError:
        return None
    return next((str(each) for each in addresses if "/tcp/" in each), None)
