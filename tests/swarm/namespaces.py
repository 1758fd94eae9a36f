"""Machines in network namespaces on two switches, with a cable between these that can be cut. Needs root, iproute2.

A cut drops packets in silence: neither end's link goes down, and every address stays resolved. Nothing leaves the
namespaces, and no interface ever exists outside them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psutil import pid_exists

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PREFIX = "murmur-test-"
SIDES = ("left", "right")


@dataclass(frozen=True, slots=True)
class Host:
    """A machine: its namespace, its only address, and the switch that it is at."""

    namespace: str
    address: str
    side: str

    @property
    def enter(self) -> tuple[str, ...]:
        """In front of a command, runs it on this machine; the process stays the same."""
        return ("ip", "netns", "exec", self.namespace)


class Wires:
    """Both switches and whoever is at them."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """``sizes``: machines at each switch."""
        name = f"{PREFIX}{os.getpid()}"
        self._switches = f"{name}-switches"
        # libp2p takes the documentation's ranges for unroutable; this one it takes for the internet.
        self.hosts = [
            Host(f"{name}-{number}", f"11.22.33.{10 + number}", side)
            for number, side in enumerate(side for side, size in zip(SIDES, sizes, strict=True) for _ in range(size))
        ]

    def build(self) -> None:
        """Make every namespace and connect it."""
        for each in (self._switches, *(host.namespace for host in self.hosts)):
            _ip(None, f"netns add {each}")
            _ip(each, "link set lo up")
        cable = [f"link set cable-{side} master {side} up" for side in SIDES]
        _ip(self._switches, *(f"link add {side} up type bridge" for side in SIDES))
        _ip(self._switches, f"link add cable-{SIDES[0]} type veth peer name cable-{SIDES[1]}", *cable)
        for number, host in enumerate(self.hosts):
            port, card = f"port-{number}", f"eth0 netns {host.namespace} address {_card(number)}"
            _ip(self._switches, f"link add {port} type veth peer name {card}", f"link set {port} master {host.side} up")
            others = [(each.address, _card(other)) for other, each in enumerate(self.hosts) if each is not host]
            known = (f"neigh add {address} lladdr {card} dev eth0 nud permanent" for address, card in others)
            _ip(host.namespace, "link set eth0 up", f"address add {host.address}/24 dev eth0", *known)

    def remove(self) -> None:
        """Take everything away; what is not there is fine."""
        _remove(f"{PREFIX}{os.getpid()}-")

    def cut(self) -> None:
        """From now on nothing passes from one switch to the other."""
        _ip(self._switches, f"link set cable-{SIDES[0]} down")

    def heal(self) -> None:
        """Everything passes again."""
        _ip(self._switches, f"link set cable-{SIDES[0]} up")


@contextlib.contextmanager
def wired(*sizes: int) -> Iterator[Wires]:
    """So many machines at each switch; whatever was made is removed at the end."""
    _remove_left_behind()
    wires = Wires(sizes)
    try:
        wires.build()
        yield wires
    finally:
        wires.remove()


def _card(number: int) -> str:
    """The hardware address of a machine's card."""
    return f"02:00:00:00:00:{number:02x}"


def _ip(namespace: str | None, *lines: str) -> None:
    """Commands of ``ip``, one a line, in a namespace or outside."""
    where = ["-n", namespace] if namespace else []
    command, text = ["ip", *where, "-batch", "-"], "\n".join(lines)
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"{lines}: {done.stderr}"


def _remove(prefix: str) -> None:
    for each in _namespaces():
        if each.startswith(prefix):
            subprocess.run(["ip", "netns", "del", each], check=False, capture_output=True)


def _remove_left_behind() -> None:
    """What tests made whose process was killed."""
    for each in _namespaces():
        pid = each.removeprefix(PREFIX).partition("-")[0]
        if each.startswith(PREFIX) and pid.isdigit() and not pid_exists(int(pid)):
            subprocess.run(["ip", "netns", "del", each], check=False, capture_output=True)


def _namespaces() -> list[str]:
    done = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True)
    return [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
