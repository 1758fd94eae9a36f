"""The circuit relay (``relay``), started, watched and ended by this daemon: its own process, for it needs py-libp2p.

One that ends is started again, at the same ports; one that tells nothing any more is ended. It never outlives us: it
ends when its input does, and the kernel kills it with us (Linux).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from protocols.errors import EnvironmentFault, MurmurError, one_line

from . import children
from .p2pd import FIRST_RETRY_S, LAST_RETRY_S, STEADY_S, die_with_parent
from .relay_limits import RelayLimits
from .tasks import end

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

READY_S = 30.0
"""Importing py-libp2p takes half a second on a quiet machine."""
SILENT_S = 10.0
"""It tells its figures once a second; without any for so long it is frozen."""
INSTALL = "pip install 'murmuration[lighthouse]'"

_LINE_LIMIT = 1 << 20
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """What the relay is to be."""

    key: Path
    """Its identity: 32 secret bytes, or a key file as ``peer.identity`` writes it. Not that of a running p2pd."""
    listen: tuple[str, ...]
    """``/ip4/…/tcp/…`` and ``/ip6/…/tcp/…``; port 0: any, kept over restarts."""
    announce: tuple[str, ...] = ()
    """Multiaddrs told to its visitors; none: to each the one that it reached."""
    limits: RelayLimits = field(default_factory=RelayLimits)


@dataclass(frozen=True, slots=True)
class RelayFigures:
    """What a relay did since it was started (again), as it told about once a second."""

    up_s: float = 0.0
    connections: int = 0
    """Open now."""
    reservations: int = 0
    """Valid now."""
    circuits: int = 0
    """Open now."""
    opened: int = 0
    """Circuits."""
    bytes: int = 0
    """Relayed, both directions together."""
    bytes_per_s: float = 0.0
    """In the last second."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """By reason (``relay_limits.Refusal``)."""
    ended: Mapping[str, int] = field(default_factory=dict)
    """Circuits: ``closed`` by both ends, ``cut`` by one, ``duration``, ``bytes``, ``stalled``."""


class RelayProcess:
    """One supervised relay. ``async with RelayProcess(config) as relay: … relay.peer, relay.addresses …``"""

    def __init__(self, config: RelayConfig, on_figures: Callable[[], None] = lambda: None) -> None:
        """``on_figures`` is called when there are new figures."""
        self._config, self._on_figures = config, on_figures
        self._process: asyncio.subprocess.Process | None = None
        self._born = 0.0
        self._errors: asyncio.Task[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._last_lines: deque[str] = deque(maxlen=8)
        self._allowed: list[str] | None = None
        self.peer = ""
        """Its id, once started."""
        self.addresses: tuple[str, ...] = config.listen
        """Where it listens, with the ports in use once started."""
        self.figures = RelayFigures()
        """The newest."""
        self.restarts = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Returns when the relay is ready; raises EnvironmentFault (py-libp2p missing, port taken, key unusable, …)."""
        check_installed()
        try:
            await self._launch()
        except BaseException:
            await self.stop()
            raise
        self._supervisor = asyncio.create_task(self._supervise(), name="relay supervisor")

    async def stop(self) -> None:
        """Ends it: asked first, killed after a while; nothing is left, not even a zombie."""
        if self._supervisor is not None:
            await end([self._supervisor])
            self._supervisor = None
        await self._end_process(signal.SIGTERM, signal.SIGKILL)

    def allow(self, peers: frozenset[str] | None) -> None:
        """From now on only these peers may reserve, and others lose what they have; None: everybody."""
        self._allowed = None if peers is None else sorted(peers)
        self._send_allowed()

    async def _launch(self) -> None:
        """Start the process and wait until it is ready."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "dht.relay"),  # -P: not a folder called dht where we were started
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=_LINE_LIMIT,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for the daemon, which then stops the relay in order
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            raise EnvironmentFault(f"cannot start the relay: {error.strerror}", remedy="free some memory") from error
        self._process, self._born, self.figures = process, time.monotonic(), RelayFigures()
        self._errors = asyncio.create_task(self._read_errors(process), name="relay errors")
        assert process.stdin is not None
        config = self._config
        first = {
            "key": str(config.key),
            "listen": self.addresses,
            "announce": config.announce,
            "limits": asdict(config.limits),
        }
        process.stdin.write(json.dumps(first).encode() + b"\n")
        self._send_allowed()
        try:
            async with asyncio.timeout(READY_S):
                ready = await self._event(process)
        except TimeoutError as error:
            raise EnvironmentFault(
                f"the relay was not ready after {READY_S:.0f} s", remedy="the machine may be overloaded; try again"
            ) from error
        if ready is None:
            code = await process.wait()
            await asyncio.gather(self._errors, return_exceptions=True)
            said = self._last_lines[-1] if self._last_lines else "nothing"
            raise EnvironmentFault(
                f"the relay ended at once (exit {code}), saying: {one_line(said)}", remedy=f"reinstall it: {INSTALL}"
            )
        if ready["event"] == "error":
            raise EnvironmentFault(ready["text"], remedy=ready["remedy"])
        self.peer, self.addresses = ready["peer"], tuple(ready["addresses"])

    async def _supervise(self) -> None:
        """Restart the relay whenever it ends; never gives up."""
        pauses = children.Pauses(FIRST_RETRY_S, LAST_RETRY_S)
        while True:
            code = await self._until_ended()
            delay = pauses.take(steady=time.monotonic() - self._born > STEADY_S)
            said = self._last_lines[-1] if self._last_lines else ""
            log.warning("the relay ended (exit %s); restarting in %.1f s. It last said: %s", code, delay, said)
            await asyncio.sleep(delay)
            self.restarts += 1
            await self._end_process(signal.SIGKILL)
            try:
                await self._launch()
            except Exception as error:  # whatever goes wrong, the daemon lives on and tries again
                log.warning("restarting the relay failed: %s", error, exc_info=not isinstance(error, MurmurError))
                await self._end_process(signal.SIGKILL)

    async def _until_ended(self) -> int:
        """The exit code, when it has ended; one that tells nothing is killed. Takes its figures meanwhile."""
        assert self._process is not None
        process = self._process
        while True:
            told = asyncio.create_task(self._event(process), name="relay figures")
            try:
                # twice, for when our own loop stood still the first moment passes before what came is read
                for patience in (SILENT_S, 1.0):
                    await asyncio.wait({told}, timeout=patience)
                event = told.result() if told.done() else {}
            finally:
                await end([told])
            if event is None:
                return await process.wait()
            if not event:
                log.warning("the relay (process %d) tells nothing any more; ending it", process.pid)
                children.send(process, signal.SIGKILL)
            elif event["event"] == "figures":
                known = RelayFigures.__slots__
                self.figures = RelayFigures(**{name: value for name, value in event.items() if name in known})
                self._on_figures()

    async def _event(self, process: asyncio.subprocess.Process) -> dict[str, Any] | None:
        """The next line that it writes; None when there is no more."""
        assert process.stdout is not None
        line = await process.stdout.readline()
        return dict(json.loads(line)) if line.endswith(b"\n") else None

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in children.lines(process.stderr):
            self._last_lines.append(line)
            log.debug("relay: %s", line)

    def _send_allowed(self) -> None:
        if self.pid is not None and self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps({"allow": self._allowed}).encode() + b"\n")

    async def _end_process(self, *asks: signal.Signals) -> None:
        """Send these signals until it ends, and reap it."""
        process, errors = self._process, self._errors
        if process is None:
            return
        await children.finish(process, *asks)
        if process.stdin is not None:
            process.stdin.close()
        if errors is not None:
            await end([errors])


def check_installed() -> None:
    """Raises EnvironmentFault, which says what to install, where py-libp2p is missing; does not load it."""
    if find_spec("libp2p") is None or find_spec("trio") is None:
        raise EnvironmentFault("the relay needs libp2p, which is not installed", remedy=INSTALL)


def _environment() -> dict[str, str]:
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
