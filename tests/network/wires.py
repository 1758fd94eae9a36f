"""What the lab's internet is made of: hosts, the router in the middle, the lines to it, and the networks of homes.

The router drops in silence whatever is for nobody: no multicast crosses it, and who is cut off does not answer.
"""

from __future__ import annotations

import itertools
import json
import os
import selectors
import subprocess
import time
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from tests.network.rooms import Rooms, call, configure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

RUN_S = 30.0
CARRIER_S = 5.0
INTERNET, INTERNET6 = "11.22.33", "2a0b:a0a0"
_GATEWAY, _GATEWAY6, _CUSTOMER6 = f"{INTERNET}.1", "fe80::1", "fe80::2"
_FIRST, _LAST = 10, 254
"""Numbers of lines: the last of their public address's four."""


def next_line(stream: IO[str] | None, within: float = 10.0) -> str:
    """What a started process prints next on this pipe, without the line's end; raises AssertionError when nothing."""
    assert stream is not None
    deadline, text = time.monotonic() + within, b""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not text.endswith(b"\n"):
            assert selector.select(deadline - time.monotonic()), f"nothing but {text!r} was printed for {within} s"
            byte = os.read(stream.fileno(), 1)  # so that the next line stays where the selector sees it
            assert byte, f"it ended, having printed {text!r}"
            text += byte
    return text.decode().rstrip("\n")


class Counter(NamedTuple):
    """Bytes that an interface has received and sent, headers included."""

    rx: int
    tx: int


class Host:
    """A machine: its namespace and its addresses."""

    def __init__(self, rooms: Rooms, name: str) -> None:
        self._rooms = rooms
        self.namespace = rooms.add(name)
        self.address = ""
        """Its own IPv4 address; where it has none, that of IPv6."""
        self.address6 = ""
        """Its global IPv6 address; empty where it has none."""

    @property
    def enter(self) -> tuple[str, ...]:
        """In front of a command, runs it on this machine; the process stays the same."""
        return ("ip", "netns", "exec", self.namespace)

    def run(
        self, command: Sequence[str | PathLike[str]], *, timeout: float = RUN_S, check: bool = True, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command here, ``text`` being its input; raises TimeoutExpired, and AssertionError when it fails."""
        done = subprocess.run(
            [*self.enter, *command], input=text, text=True, capture_output=True, check=False, timeout=timeout
        )
        assert not check or done.returncode == 0, f"{[*command]}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def popen(self, command: Sequence[str | PathLike[str]], **options: Any) -> subprocess.Popen[str]:
        """Start a command here, in text mode and without input; ``options`` as for ``Popen``. It ends with the lab."""
        options = {"stdin": subprocess.DEVNULL, "text": True, **options}
        process: subprocess.Popen[str] = subprocess.Popen([*self.enter, *command], **options)
        self._rooms.started.append(process)
        return process

    def configure(self, *lines: str) -> None:
        """Commands of ``ip``, one a line."""
        configure(self.namespace, *lines)

    def carries(self, card: str) -> None:
        """Wait until the kernel sends by this interface: it drops everything for a moment after its link is back."""
        deadline = time.monotonic() + CARRIER_S
        while json.loads(call("ip", "-n", self.namespace, "-j", "link", "show", "dev", card))[0]["operstate"] != "UP":
            assert time.monotonic() < deadline, f"{card} of {self.namespace} has no carrier"
            time.sleep(0.01)

    def forward(self, ruleset: str = "") -> None:
        """Make it a router with these nftables rules."""
        for switch in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            self.run(["tee", f"/proc/sys/net/{switch}"], text="1")
        if ruleset:
            call(*self.enter, "nft", "-f", "-", text=ruleset)


class Internet(Host):
    """The router in the middle."""

    def __init__(self, rooms: Rooms) -> None:
        super().__init__(rooms, "internet")
        self._numbers = itertools.count(_FIRST)
        self.forward()
        self.configure("route add blackhole 0.0.0.0/0", "route add blackhole ::/0")

    def number(self) -> int:
        """The next one that no line has had."""
        number = next(self._numbers)
        assert number <= _LAST, "the lab's internet has no address left"
        return number


class Line:
    """The cable from the internet to a customer, and the address that the customer has by it."""

    def __init__(self, internet: Internet, host: Host, card: str, *, ipv4: bool = True) -> None:
        self.number = internet.number()
        self.host, self._internet, self._card, self._ipv4 = host, internet, card, ipv4
        self._port = f"line-{self.number}"
        self._routes6: list[str] = []
        self.address = f"{INTERNET}.{self.number}" if ipv4 else ""
        internet.configure(f"link add {self._port} type veth peer name {card} netns {host.namespace}")
        host.configure(f"link set {card} up")
        self._address()
        self._connect()

    def route6(self, prefix: str, *, via: bool) -> None:
        """Make the customer reachable at these IPv6 addresses, as its own or behind it (``via``)."""
        self.host.configure(
            f"address add {_CUSTOMER6}/64 dev {self._card} nodad", f"route add ::/0 via {_GATEWAY6} dev {self._card}"
        )
        self._routes6 = [f"route add {prefix} {f'via {_CUSTOMER6} ' if via else ''}dev {self._port}"]
        self._internet.configure(*self._routes6)

    def cut(self) -> None:
        """Unplug the cable: the customer's interface loses its carrier, and nobody hears from it."""
        self._internet.configure(f"link set {self._port} down")

    def restore(self, *, new_address: bool) -> None:
        """Plug it in again, with the old IPv4 address or another one. That of IPv6 stays."""
        if new_address and self._ipv4:
            old, self.address = self.address, f"{INTERNET}.{self._internet.number()}"
            self._address()
            self.host.configure(f"address del {old}/32 dev {self._card}")
        self._connect()

    def rate(self, rate: str) -> None:
        """Cap what is sent each way, as ``tc`` writes it: ``50mbit``."""
        for namespace, device in ((self.host.namespace, self._card), (self._internet.namespace, self._port)):
            shape = f"tbf rate {rate} burst 64k latency 200ms".split()
            call("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *shape)

    def counter(self) -> Counter:
        """What the customer's end of the cable has received and sent."""
        (link,) = json.loads(call("ip", "-n", self.host.namespace, "-s", "-j", "link", "show", "dev", self._card))
        return Counter(link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"])

    def _address(self) -> None:
        if self._ipv4:
            self.host.configure(
                f"address add {self.address}/32 dev {self._card}",
                f"route replace 0.0.0.0/0 via {_GATEWAY} dev {self._card} onlink",
            )

    def _connect(self) -> None:
        """The internet's end: a port that goes down forgets its routes."""
        self._internet.configure(
            f"link set {self._port} up",
            f"address replace {_GATEWAY}/32 dev {self._port}",
            f"address replace {_GATEWAY6}/64 dev {self._port} nodad",
            *([f"route replace {self.address}/32 dev {self._port}"] if self._ipv4 else []),
            *self._routes6,
        )
        for host, card in ((self._internet, self._port), (self.host, self._card)):
            host.carries(card)


class Lan:
    """A router's own network: a bridge with machines."""

    def __init__(self, router: Host, bridge: str, network: str, bits: int, prefix6: str = "") -> None:
        """``network`` is the first three numbers of IPv4 addresses, ``prefix6`` what IPv6 ones begin with; or empty."""
        self._router, self._bridge, self._network, self._bits, self._prefix6 = router, bridge, network, bits, prefix6
        self._numbers = itertools.count(2)
        router.configure(
            f"link add {bridge} type bridge",
            f"link set {bridge} up",
            *([f"address add {network}.1/{bits} dev {bridge}"] if network else []),
            *([f"address add {prefix6}1/64 dev {bridge} nodad"] if prefix6 else []),
        )

    def plug(self, host: Host, card: str) -> None:
        """Connect a machine and give it addresses and routes."""
        number = next(self._numbers)
        port = f"port-{number}"
        self._router.configure(
            f"link add {port} type veth peer name {card} netns {host.namespace}",
            f"link set {port} master {self._bridge} up",
        )
        host.configure(f"link set {card} up")
        if self._prefix6:
            host.address = host.address6 = f"{self._prefix6}{number:x}"
            host.configure(
                f"address add {host.address6}/64 dev {card} nodad", f"route add ::/0 via {self._prefix6}1 dev {card}"
            )
        if self._network:
            host.address = f"{self._network}.{number}"
            host.configure(
                f"address add {host.address}/{self._bits} dev {card}", f"route add default via {self._network}.1"
            )
