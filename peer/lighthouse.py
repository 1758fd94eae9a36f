"""``murmur lighthouse``: a directory node for any run, and a circuit relay in a process of its own."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import time
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import psutil
import uvloop
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from dht import reach
from dht.addresses import told
from dht.entry import EntryNode, Herald
from dht.listening import EVERYWHERE, EVERYWHERE_6, at, claim_port, hosts_of
from dht.p2pd import P2pd, P2pdConfig
from dht.relay_limits import RelayLimits
from dht.relay_process import RelayConfig, RelayProcess
from dht.tasks import end, keep_going
from dht.transport import StreamTransport, TransportConfig
from protocols.errors import MurmurError

from .exits import Exit
from .http import HttpServer
from .identity import Identity
from .lighthouse_report import metrics, report
from .lock import hold
from .logs import FILES_ONLY, start_logging
from .paths import Home
from .terminal import Terminal

if TYPE_CHECKING:
    from starlette.requests import Request

    from .options import LighthouseOptions

log = logging.getLogger(__name__)

COUNT_S = 2.0
"""Between two counts of p2pd's connections."""
NO_RUN = bytes(32)
"""A lighthouse is greeted by peers of any run."""


def run(options: LighthouseOptions) -> int:
    """``murmur lighthouse``: returns the exit code. Raises MurmurError for what a person has to mend."""
    home = Home(options.home / "lighthouse")  # a key of its own: a daemon may run beside it
    home.create()
    with hold(home.lock):
        start_logging(home, debug=options.debug)
        try:
            return uvloop.run(_supervised(Lighthouse(options, home)))
        except MurmurError as error:
            log.error("%s", f"{error} ({error.remedy})" if error.remedy else error, extra=FILES_ONLY)
            raise


async def _supervised(lighthouse: Lighthouse) -> int:
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, lighthouse.stopping.set)
    return await lighthouse.run()


class Lighthouse:
    """Puts its parts together, and ends them in order."""

    def __init__(self, options: LighthouseOptions, home: Home) -> None:
        self._options, self._terminal = options, Terminal(sys.stdout)
        self._entry_key = Identity.load_or_create(home.key)
        relay_key = home.root / "relay.key"
        self._relay_key = Identity.load_or_create(relay_key)
        daemon = P2pdConfig(home.root, home.key, options.p2p_port, options.listen, quic=True)
        self._p2pd = P2pd(daemon, self._restarted)
        config = TransportConfig(NO_RUN, f"murmuration {version('murmuration')}", any_run=True)
        self._transport = StreamTransport(config, _no_frames)
        self._entry = EntryNode(self._transport, version("murmuration"), named=options.runs)
        self._reach = reach.ReachServer()
        limits = RelayLimits(total_rate=options.total_rate, circuit_rate=options.total_rate / 2)
        port = options.relay_port or claim_port(options.listen, 0)  # one for both families
        listen = tuple(f"{at(host)}/tcp/{port}" for host in hosts_of(options.listen))
        announce = tuple(f"{host}/tcp/{port}" for host in options.announce)
        self._relay = RelayProcess(RelayConfig(relay_key, listen, announce, limits))
        self._began = time.monotonic()
        self.stopping = asyncio.Event()
        """Set to end it."""

    async def run(self) -> int:
        """Start every part, serve until ``stopping``, and end every part."""
        async with AsyncExitStack() as stack:
            http = HttpServer(Starlette(routes=self._routes()), "--http-port")
            await http.start(self._options.http_host, self._options.http_port)
            stack.push_async_callback(http.close)
            await self._relay.start()
            stack.push_async_callback(self._relay.stop)
            if not self._options.relay_only:
                await self._open_entry(stack)
            self._say(http.port)
            stack.push_async_callback(end, [keep_going(self._count, "connections")])
            await self.stopping.wait()
        self._terminal.line("lighthouse stopped")
        return Exit.DONE

    async def _open_entry(self, stack: AsyncExitStack) -> None:
        await self._p2pd.start()
        stack.push_async_callback(self._p2pd.stop)
        await self._transport.start(self._p2pd.control, in_rounds=False)
        stack.push_async_callback(self._transport.close)
        await self._transport.serve(reach.PROTOCOL, self._reach.serve)
        await self._entry.start(self._options.join)
        stack.push_async_callback(self._close_entry)
        self._make_known()

    async def _close_entry(self) -> None:
        works = await self._p2pd.retire()
        await self._entry.close(works=works)

    async def _restarted(self, control: str) -> None:
        await self._transport.rebind(control)
        await self._entry.rebind()
        self._make_known()

    def _make_known(self) -> None:
        """Both of its halves, in each run that it serves."""
        entry, relay = self._entry_key, self._relay_key
        self._entry.make_known(
            (
                Herald(entry.peer, self.entry_addresses(), "lighthouse", entry.sign),
                Herald(relay.peer, self.relay_addresses(), "relay", relay.sign),
            )
        )

    def entry_addresses(self) -> tuple[str, ...]:
        """Where peers enter, ending in its id."""
        return self._at(self._p2pd.port, self._entry_key.peer)

    def relay_addresses(self) -> tuple[str, ...]:
        """Where peers reserve."""
        return self._at(int(self._relay.addresses[0].rpartition("/")[2]), self._relay_key.peer)

    def _at(self, port: int, peer: str) -> tuple[str, ...]:
        hosts = self._options.announce or own_hosts(self._options.listen)
        return told(f"{host}/tcp/{port}/p2p/{peer}" for host in hosts)

    def _say(self, http_port: int) -> None:
        lines = [f"lighthouse {version('murmuration')}   peer {self._entry_key.peer}"]
        if not self._options.relay_only:
            lines += [f"  join    murmur up --join {each}" for each in self.entry_addresses()]
        lines += [f"  relay   {each}" for each in self.relay_addresses()]
        lines.append(f"  http    http://{self._options.http_host}:{http_port}/healthz and /metrics")
        for line in lines:
            self._terminal.line(line)

    async def _count(self) -> None:
        """Look at connections, and let the relay serve the peers of the named runs, if any are, and nobody else."""
        allowed: frozenset[str] | None = None
        while True:
            await self._transport.count_connections()
            if self._options.runs and self._entry.validator.peers() != allowed:
                allowed = self._entry.validator.peers()
                self._relay.allow(allowed)
            await asyncio.sleep(COUNT_S)

    def _routes(self) -> list[Route]:
        async def healthz(_: Request) -> JSONResponse:
            return JSONResponse({"schema": 1, "ok": True})

        async def status(_: Request) -> JSONResponse:
            return JSONResponse(self._report())

        async def prometheus(_: Request) -> PlainTextResponse:
            return PlainTextResponse(metrics(self._report()), media_type="text/plain; version=0.0.4")

        return [Route("/healthz", healthz), Route("/status", status), Route("/metrics", prometheus)]

    def _report(self) -> dict[str, Any]:
        gauges = [*self._entry.validator.gauges(), *self._transport.gauges(), *self._reach.gauges()]
        return report(gauges, self._relay.figures, time.monotonic() - self._began)


def own_hosts(listen: str) -> tuple[str, ...]:
    """This machine's addresses as multiaddrs, IPv4 first, if it listens on all of a family; else the one."""
    if listen not in (EVERYWHERE, EVERYWHERE_6):
        return (at(listen),)
    families = (socket.AF_INET, socket.AF_INET6) if listen == EVERYWHERE else (socket.AF_INET6,)
    found = [each for addresses in psutil.net_if_addrs().values() for each in addresses]
    own = [each.address for family in families for each in found if each.family == family]
    return tuple(at(each) for each in own if "%" not in each)  # link-local ones need an interface's name


async def _no_frames(*_: object) -> None:
    """No round's stream is ever taken."""
