"""Which checks the doctor makes: one list for a subject, in the order in which they are reported."""

from __future__ import annotations

import asyncio
import shutil
import socket
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from dht.probe import NAT_PMP_PORT
from dht.records import CLOCK_LIMIT_S
from dht.tasks import end
from protocols.errors import MurmurError

from . import doctor_checks_daemon as by_daemon
from . import doctor_checks_entry as by_entry
from . import doctor_checks_home as by_home
from . import doctor_checks_machine as by_machine
from . import doctor_checks_network as by_network
from . import doctor_checks_outside as by_outside
from . import doctor_interfaces as interfaces
from .doctor import WITHIN_S, Check, beside
from .doctor_report import JOIN, Outcome, skipped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .doctor_subject import Subject

SHARDS_S = 30.0
"""All data of a run is looked at in that time, even on a slow disk."""
ADDRESSES = 16
"""Of those given, that are tried."""
_APART = "--alone never looks for peers"
_LOCAL = "--listen on loopback keeps everything on this machine"


class Checks:
    """The checks of one subject; ``close`` ends what they share. Make it inside of a running loop."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._options = subject.configured.options
        self._manifest = None if isinstance(subject.goal, MurmurError) else subject.goal.manifest
        self._names = by_entry.Names()
        self._torch = asyncio.create_task(by_machine.torch(), name="torch")
        self._own = cache(interfaces.own_addresses)  # asked inside of the checks: what fails there is a finding
        self._port = cache(partial(by_network.port, self._options.listen, self._options.p2p_port, subject.status))
        self._apart = _APART if self._options.alone else _LOCAL if by_network.is_local(self._options.listen) else ""
        self._outside = asyncio.create_task(self._look_outside(), name="outside")

    async def close(self) -> None:
        """End what may still run."""
        await end([self._torch, self._outside])
        await self._names.close()

    def all(self) -> list[Check]:
        """Every check, each id once."""
        return [
            *self._of_home(),
            *self._of_machine(),
            *self._of_network(),
            *self._of_entry(),
            *self._of_outside(),
            *self._of_daemon(),
        ]

    def _of_home(self) -> list[Check]:
        subject, home = self._subject, self._subject.home
        return [
            Check("config", "config", _at_once(partial(by_home.configuration, subject.configured))),
            Check("key", "key", _at_once(partial(by_home.key, home, subject.identity))),
            Check("home", "home", partial(by_home.place, home)),
            Check("disk", "disk", self._disk),
            Check("run", "run", _at_once(partial(by_home.run, subject.goal, subject.status, subject.identity))),
            Check("data", "data", self._data, SHARDS_S),
            Check(
                "daemon",
                "daemon",
                _at_once(partial(by_home.daemon, subject.status, subject.silence, held=subject.held)),
            ),
        ]

    async def _data(self) -> Outcome:
        subject, options = self._subject, self._options
        if isinstance(subject.goal, MurmurError):
            return skipped("which data is needed depends on the run")
        if subject.goal.manifest is None:
            return skipped("the run's manifest, which names its data, comes from its peers")
        founders = subject.goal.manifest.members.founders
        others = not options.alone and bool(subject.goal.seeds or subject.met or len(founders) > 1)
        return await by_home.data(subject.goal.manifest, subject.home, options.data, others=others)

    async def _disk(self) -> Outcome:
        home, options, manifest = self._subject.home, self._options, self._manifest

        def look() -> Outcome:
            need = by_home.LOGS_BYTES
            if manifest is not None:
                need = by_home.needed_bytes(manifest, home, options.data, options.keep_checkpoints)
            return by_home.disk(home, need, lambda folder: shutil.disk_usage(folder).free)

        return await beside(look)

    def _of_machine(self) -> list[Check]:
        asked: Callable[[], Awaitable[dict[str, Any]]] = partial(asyncio.shield, self._torch)
        status = self._subject.status
        patience = by_machine.TORCH_S + WITHIN_S
        return [
            Check(
                "clock", "clock", _at_once(lambda: by_machine.clock(status, CLOCK_LIMIT_S, by_machine.kernel_clock()))
            ),
            Check("torch", "trainer", lambda: by_machine.trainer(asked()), patience),
            Check(
                "gpu",
                "GPU",
                lambda: by_machine.gpu(asked(), by_machine.cards(), by_machine.nvidia_smi()),
                patience + by_machine.PROGRAM_S,
            ),
            Check("p2pd", "p2pd", by_machine.p2pd, by_machine.PROGRAM_S + WITHIN_S),
            Check("lighthouse", "lighthouse", _at_once(by_machine.lighthouse)),
        ]

    def _of_network(self) -> list[Check]:
        options, status = self._options, self._subject.status
        own, wanted = self._own, options.p2p_port
        v4, v6 = (partial(interfaces.has_route, family) for family in (socket.AF_INET, socket.AF_INET6))
        looks: tuple[tuple[str, str, Callable[[], Outcome]], ...] = (
            ("network", "network", lambda: by_network.addresses(own(), routed=v4() or v6())),
            (
                "container",
                "container",
                lambda: by_network.container(own(), inside=interfaces.in_container(), port=wanted),
            ),
            ("ipv6", "IPv6", lambda: by_network.ipv6(own(), routed=v6())),
            ("port", "port", self._port),
        )
        checks = [
            *(Check(name, title, _at_once(look)) for name, title, look in looks),
            Check(
                "upnp",
                "UPnP",
                lambda: by_network.upnp(own(), wanted, gateway=(by_network.gateway_of(), NAT_PMP_PORT)),
                3 * by_network.ROUTER_S,
            ),
        ]
        shown = [_unless(self._apart, each) for each in checks]
        if options.api_port and status is None:
            shown.append(Check("api-port", "API port", _at_once(partial(by_network.api_port, options.api_port))))
        return shown

    def _addresses(self) -> tuple[list[str], list[str]]:
        """Those to join by, and of peers met before, each once."""
        subject, options = self._subject, self._options
        given = [each for each in options.join if each.startswith("/")]
        if not isinstance(subject.goal, MurmurError):
            given = list(subject.goal.seeds)
        given += [each for each in self._seeds() if each not in given and each not in subject.met]
        return given, [each for each in subject.met if each not in given]

    def _seeds(self) -> dict[str, dict[str, Any]]:
        status = self._subject.status
        return {each["address"]: each for each in status["seeds"]} if status else {}

    def _of_entry(self) -> list[Check]:
        subject, options = self._subject, self._options
        given, met = self._addresses()
        seeds = self._seeds()
        place = subject.configured.place("join") if options.join else ""
        doors = [by_entry.Door(each, seeds.get(each), place) for each in given]
        known = [by_entry.Door(each, seeds.get(each)) for each in met]
        hosts = by_entry.names_in([*given, *met])
        checks = [
            *(Check(f"dns/{each}", "name", partial(by_entry.name, each, self._names), _PATIENCE_S) for each in hosts),
            *(
                Check(f"{JOIN}{number}", "address", partial(by_entry.entry, each, self._names), _PATIENCE_S)
                for number, each in enumerate(doors[:ADDRESSES], 1)
            ),
            Check("met", "known", partial(by_entry.met, known, self._names), _PATIENCE_S),
            Check("udp", "UDP", lambda: by_entry.udp([*given, *met], self._names, own=_own_ips()), _PATIENCE_S),
        ]
        return [_unless(_APART if options.alone else "", each) for each in checks]

    async def _look_outside(self) -> by_outside.Outside:
        given, met = self._addresses()
        addresses, status, goal = [*given, *met], self._subject.status, self._subject.goal
        if self._apart:
            return by_outside.Outside(why=self._apart)
        if not any(interfaces.has_route(family) for family in (socket.AF_INET, socket.AF_INET6)):
            return by_outside.Outside(why="there is no network")
        if not addresses:
            return by_outside.Outside(why="there is no address at which to ask (`--join`)")
        is_free = status is None and self._port().result == "pass"  # asked before, for then it is in use
        run = bytes(32) if isinstance(goal, MurmurError) else goal.run  # a lighthouse answers for any
        port, relays = self._options.p2p_port if is_free else 0, by_outside.relays_of(status)
        try:
            return await by_outside.ask(run, port, addresses, relays)
        except TimeoutError:
            return by_outside.Outside(why=f"asking took longer than {by_outside.WITHIN_S:.0f} s")
        except (OSError, ValueError) as error:
            return by_outside.Outside(why=f"asking came to nothing: {error}")

    def _of_outside(self) -> list[Check]:
        status, within = self._subject.status, by_outside.WITHIN_S + WITHIN_S
        asked: Callable[[], Awaitable[by_outside.Outside]] = partial(asyncio.shield, self._outside)

        async def nat() -> Outcome:
            return by_outside.nat(self._own(), await asked(), status)

        async def inbound() -> Outcome:
            return by_outside.inbound(self._own(), await asked())

        async def relays() -> Outcome:
            return by_outside.relays(await asked(), status)

        checks = [Check("nat", "NAT", nat, within), Check("relays", "relays", relays, within)]
        if status is None:
            checks.insert(1, Check("inbound", "inbound", inbound, within))
        return [_unless(self._apart, each) for each in checks]

    def _of_daemon(self) -> list[Check]:
        status, alone = self._subject.status, self._options.alone
        checks = [
            Check(name, title, _at_once(partial(look, status, alone=alone)))
            for name, title, look in (
                *((("inbound", "inbound", by_daemon.inbound),) if status is not None else ()),
                ("peers", "peers", by_daemon.peers),
                ("punch", "punching", by_daemon.punch),
            )
        ]
        warned = by_daemon.warnings(status)
        return checks + [Check(f"warning/{code}", "warning", _known(each)) for code, each in warned.items()]


_PATIENCE_S = by_entry.NAME_S + 4 * by_entry.KNOCK_S


def _at_once(look: Callable[[], Outcome]) -> Callable[[], Awaitable[Outcome]]:
    """A check that waits for nothing."""

    async def looked() -> Outcome:
        return look()

    return looked


def _own_ips() -> frozenset[str]:
    return frozenset(str(each.address) for each in interfaces.own_addresses())


def _known(outcome: Outcome) -> Callable[[], Awaitable[Outcome]]:
    """A check whose outcome is known already."""
    return _at_once(lambda: outcome)


def _unless(reason: str, check: Check) -> Check:
    """The check, or where there is a ``reason`` that it is left out."""
    return check if not reason else Check(check.id, check.title, _known(skipped(reason)))
