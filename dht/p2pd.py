"""The go-libp2p daemon ``p2pd`` from the hivemind wheel, started, watched and ended by us.

hivemind's ``P2P.create`` hides the flags that matter and leaves a ghost when the daemon is killed, so
we start the binary ourselves and hand its control address to ``transport`` (``attachment``).
p2pd never outlives us: the kernel kills it with us (Linux), and it ends when its last client goes.
One that ends is started again, and one that no longer answers is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Self

from protocols.errors import EnvironmentFault, MurmurError

from . import children, leftovers
from .listening import claim_port, hosts_of
from .p2pd_command import command, environment
from .parent import die_with
from .tasks import end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

log = logging.getLogger(__name__)

READY_S = 15.0
FIRST_RETRY_S = 0.25
LAST_RETRY_S = 15.0
STEADY_S = 3.0
"""One that lived so long is started again at once; after a quicker death, the pause before the next start doubles."""

PROBE_S = 5.0
"""Between questions whether p2pd still answers."""
ANSWER_S = 10.0
"""It answers within 2 ms; without an answer for so long it is frozen (stopped, swapped out, deadlocked)."""
LAST_ANSWER_S = 1.0
"""The same when the daemon ends."""
STALLED_S = 2.0
"""An answer overdue by so much more means that our own loop stood still, which tells nothing about p2pd."""
_IDENTIFY = b"\x02\x08\x00"
"""A ``Request`` of type IDENTIFY after its length, as p2pd.proto has it."""

_LINE_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class P2pdConfig:
    """Where p2pd lives and listens."""

    home: Path
    """Directory of ``p2pd.pid``."""
    key: Path | None
    """The identity file; None: a new identity at each start."""
    port: int = 0
    """TCP and UDP port; 0 = any, kept over restarts."""
    host: str = "0.0.0.0"
    """IP address to listen on; ``0.0.0.0``: all of both families (``listening.hosts_of``)."""
    quic: bool = False
    """Listen for QUIC too, even without relays to reserve at: observers of peers that punch holes do."""
    maps: bool = True
    """Ask the router for a port, by UPnP or NAT-PMP."""


class P2pd:
    """One supervised p2pd. ``async with P2pd(config, on_restart) as p2pd: … p2pd.control …``"""

    def __init__(self, config: P2pdConfig, on_restart: Callable[[str], Awaitable[None]] | None = None) -> None:
        """``on_restart`` gets the control address after each restart; its failure counts as another crash."""
        self._config = config
        self._on_restart = on_restart
        self._binary = find_binary()
        self._trace = config.home / "p2pd.pid"
        self._directory: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._born = 0.0
        self._output: asyncio.Task[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._last_lines: deque[str] = deque(maxlen=8)
        self.port = config.port
        """The port in use once started."""
        self.restarts = 0
        self._relays: tuple[str, ...] = ()
        self._turned = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def control(self) -> str:
        """Multiaddr of the control socket, for ``Attachment.open``."""
        return f"/unix{self._directory}/p2pd.sock"

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def relays(self) -> tuple[str, ...]:
        """Addresses of the relays at which it reserves."""
        return self._relays

    def reserve_at(self, relays: Sequence[str], *, again: bool = False) -> bool:
        """Reserve at these relays, one address of each, from the next start on, which is now; whether that is news.

        p2pd takes them only as flags. It reserves when it believes that nobody can dial it, so it is told so.
        ``again``: start it also for the same ones, for it does not go back to a relay that it has lost.
        """
        if tuple(relays) == self._relays and not again:
            return False
        self._relays = tuple(relays)
        if self._process is not None and self._process.returncode is None:  # else it is being started again anyway
            self._turned = True
            children.send(self._process, signal.SIGTERM)
        return True

    def check(self) -> None:
        """End what an earlier daemon left behind and choose the port, as ``start`` does; raises EnvironmentFault."""
        leftovers.reap(self._trace)
        self.port = claim_port(self._config.host, self._config.port)

    async def start(self) -> None:
        """Returns when p2pd is ready; raises EnvironmentFault (port taken, home unusable, not ready in time …)."""
        self.check()
        self._directory = _socket_directory()
        try:
            await self._launch()
        except BaseException:
            await self.stop()
            raise
        self._supervisor = asyncio.create_task(self._supervise(), name="p2pd supervisor")

    async def retire(self) -> bool:
        """Let p2pd end when its last client goes, and don't start it again: call before the transport closes.

        A frozen one is ended at once, so that nobody waits for what it does not do; whether one is left that works.
        """
        works = False
        if self._supervisor is not None:
            await end([self._supervisor])
            self._supervisor = None
            if self._process is not None:
                works = await self._answers(LAST_ANSWER_S) or False  # not known is not good enough here
                if not works:
                    children.send(self._process, signal.SIGKILL)
        return works

    async def stop(self) -> None:
        """Ends p2pd: asked first, killed after a while; nothing is left, not even a zombie."""
        await self.retire()
        await self._end_process()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
            with contextlib.suppress(OSError):
                self._trace.unlink(missing_ok=True)

    async def _launch(self) -> None:
        """Start the process and wait for its ready line."""
        assert self._directory is not None
        (self._directory / "p2pd.sock").unlink(missing_ok=True)  # a killed p2pd leaves it, and the next cannot bind
        ready = asyncio.get_running_loop().create_future()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                limit=_LINE_LIMIT,
                env=os.environ | environment(os.cpu_count() or 1),
                start_new_session=True,  # Ctrl-C is for the daemon, which then stops p2pd in order
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            raise EnvironmentFault(
                f"cannot run {self._binary}: {error.strerror}",
                remedy="reinstall hivemind for this machine's processor: pip install --force-reinstall hivemind",
            ) from error
        self._process, self._born = process, time.monotonic()
        self._output = asyncio.create_task(self._read_output(process, ready), name="p2pd output")
        try:
            leftovers.record(self._trace, pid=process.pid, directory=self._directory)
        except EnvironmentFault as error:
            if self._supervisor is None:
                raise
            log.warning("%s", error)  # a full disk does not take a running daemon off the network
        try:
            async with asyncio.timeout(READY_S):
                await ready
        except TimeoutError as error:
            raise EnvironmentFault(
                f"p2pd was not ready after {READY_S:.0f} s", remedy="the machine may be overloaded; try again"
            ) from error

    def _command(self) -> list[str]:
        hosts = hosts_of(self._config.host)
        return command(
            self._binary, self._config, control=self.control, port=self.port, relays=self._relays, hosts=hosts
        )

    async def _read_output(self, process: asyncio.subprocess.Process, ready: asyncio.Future[None]) -> None:
        assert process.stdout is not None
        async for line in children.lines(process.stdout):
            self._last_lines.append(line)
            if line.startswith("Control socket:") and not ready.done():
                ready.set_result(None)
            log.debug("p2pd: %s", line)
        code = await process.wait()
        if not ready.done():
            said = self._last_lines[-1] if self._last_lines else "nothing"
            ready.set_exception(
                EnvironmentFault(
                    f"p2pd ended at once (exit {code}), saying: {said}",
                    remedy="check the key file and reinstall hivemind: pip install --force-reinstall hivemind",
                )
            )

    async def _supervise(self) -> None:
        """Restart p2pd whenever it ends; never gives up, network trouble does not end the daemon."""
        pauses = children.Pauses(FIRST_RETRY_S, LAST_RETRY_S)
        while True:
            code = await self._until_ended()
            if self._turned:
                self._turned, pauses = False, children.Pauses(FIRST_RETRY_S, LAST_RETRY_S)
                log.info("p2pd starts anew, with %d relays", len(self._relays))
            else:
                delay = pauses.take(steady=time.monotonic() - self._born > STEADY_S)
                said = self._last_lines[-1] if self._last_lines else ""
                log.warning("p2pd ended (exit %s); restarting in %.1f s. It last said: %s", code, delay, said)
                self.restarts += 1
                await asyncio.sleep(delay)
            await self._end_process()
            try:
                claim_port(self._config.host, self.port)
                await self._relaunch()
                if self._on_restart is not None:
                    await self._on_restart(self.control)
            except Exception as error:  # whatever goes wrong, the daemon lives on and tries again
                log.warning("restarting p2pd failed: %s", error, exc_info=not isinstance(error, MurmurError))
                await self._end_process(signal.SIGKILL)

    async def _relaunch(self) -> None:
        try:
            await self._launch()
        except EnvironmentFault:
            self._relays = ()  # others name them: what p2pd does not take must not keep it down for good
            raise

    async def _until_ended(self) -> int:
        """The exit code, when it has ended; one that no longer answers is killed."""
        assert self._process is not None
        process = self._process
        ended = asyncio.create_task(process.wait(), name="p2pd end")
        try:
            while not (await asyncio.wait({ended}, timeout=PROBE_S))[0]:
                if await self._answers(ANSWER_S) is not False or (await asyncio.wait({ended}, timeout=1.0))[0]:
                    continue
                log.warning("p2pd (process %d) does not answer any more; ending it", process.pid)
                children.send(process, signal.SIGKILL)
            return ended.result()
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    async def _answers(self, within: float) -> bool | None:
        """Whether it answers on its control socket within so many seconds; None: this process stood still meanwhile."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(within):
                reader, writer = await asyncio.open_unix_connection(self.control.removeprefix("/unix"))
                try:
                    writer.write(_IDENTIFY)
                    return bool(await reader.read(1))
                finally:
                    writer.transport.abort()
        except TimeoutError:
            return None if time.monotonic() - began > within + STALLED_S else False
        except (OSError, RuntimeError):  # uvloop: RuntimeError on a closed connection
            return False

    async def _end_process(self, *asks: signal.Signals) -> None:
        """Send these signals (SIGTERM, then SIGKILL) until it ends, and reap it."""
        process, output = self._process, self._output
        if process is None:
            return
        await children.finish(process, *asks)
        if output is not None:
            output.cancel()
            await asyncio.gather(output, return_exceptions=True)


def find_binary() -> Path:
    """The p2pd of the installed hivemind, found without importing it; raises EnvironmentFault."""
    remedy = "install hivemind: pip install hivemind"
    try:
        path = Path(str(distribution("hivemind").locate_file("hivemind/hivemind_cli/p2pd")))
    except PackageNotFoundError as error:
        raise EnvironmentFault("hivemind, which brings p2pd, is not installed", remedy=remedy) from error
    if not os.access(path, os.X_OK):
        raise EnvironmentFault(f"{path} is missing or cannot be executed", remedy=remedy)
    return path


def _socket_directory() -> Path:
    """A private directory with a short path: a unix socket's may have 107 bytes."""
    for parent in (None, leftovers.SHORT):
        try:
            directory = Path(tempfile.mkdtemp(prefix=leftovers.PREFIX, dir=parent))
        except OSError as error:
            raise EnvironmentFault(
                f"cannot make a temporary directory: {error.strerror}", remedy="free some disk space or set TMPDIR"
            ) from error
        if len(str(directory)) <= 60:
            return directory
        directory.rmdir()
    raise EnvironmentFault("the temporary directory's path is too long for a socket", remedy="set TMPDIR=/tmp")


def die_with_parent() -> Callable[[], None] | None:
    """What a new process does before it becomes another program: ask the kernel to kill it when this one dies."""
    return partial(die_with, os.getpid()) if sys.platform == "linux" else None
