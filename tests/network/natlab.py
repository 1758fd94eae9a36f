"""A small internet in network namespaces: public hosts, and homes behind NATs. Needs root, iproute2, nftables.

11.22.33.0/24 stands for the internet, because libp2p takes the documentation's ranges for unroutable; 2a0b:a0a0::/32
for that of IPv6. Nothing leaves the namespaces, and no interface ever exists outside them.

    with Lab() as lab:
        public, home = lab.public(), lab.home("symmetric")
        home.run(["curl", f"http://{public.address}"], timeout=5)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from tests.network import rulesets
from tests.network.rooms import Rooms, remove_left_behind
from tests.network.wires import INTERNET6, Host, Internet, Lan, Line

if TYPE_CHECKING:
    from tests.network.rulesets import Nat
    from tests.network.wires import Counter


class Online(Host):
    """A machine with a line to the internet, its own or its router's."""

    line: Line

    @property
    def public_address(self) -> str:
        """The IPv4 address under which others see it; empty where it has none."""
        return self.line.address

    def counter(self) -> Counter:
        """Bytes on the outer interface: its own, or that of the outermost router."""
        return self.line.counter()

    def rate(self, rate: str) -> None:
        """Cap the line each way, as ``tc`` writes it: ``50mbit``."""
        self.line.rate(rate)

    def cut(self) -> None:
        """Unplug the line; what is behind a router sees no change of its own link."""
        self.line.cut()

    def restore(self, *, new_address: bool = False) -> None:
        """Plug the line in again, with the old public IPv4 address or another one."""
        self.line.restore(new_address=new_address)
        if self.line.host is self and self.line.address:
            self.address = self.line.address


class Home(Online):
    """A machine behind a router, or in a container."""

    def __init__(self, rooms: Rooms, internet: Internet, nat: Nat | None, *, ipv6: bool) -> None:
        assert ipv6 or nat is not None, "a home has IPv4, IPv6 or both"
        assert not (ipv6 and nat in ("double", "bridge")), f"the lab has no IPv6 for {nat}"
        super().__init__(rooms, "home")
        outer = Host(rooms, "router")
        self.line = Line(internet, outer, "wan", ipv4=nat is not None)
        self.routers = [outer]
        """From the machine outwards: two of ``double``, the machine with the bridge of ``bridge``."""
        outer.forward(rulesets.docker() if nat == "bridge" else rulesets.router(nat))
        number = self.line.number
        if nat == "bridge":
            self._lan = Lan(outer, "docker0", "172.17.0", 16)
        else:
            if nat == "double":
                inner = Host(rooms, "router")
                inner.forward(rulesets.router(nat))
                Lan(outer, "lan", f"100.64.{number}", 24).plug(inner, "wan")  # providers use this range
                self.routers.insert(0, inner)
            prefix6 = f"{INTERNET6}:{number:x}::" if ipv6 else ""
            self._lan = Lan(self.router, "lan", f"192.168.{number}" if nat is not None else "", 24, prefix6)
            if ipv6:
                self.line.route6(f"{prefix6}/64", via=True)
        self._lan.plug(self, "eth0")

    @property
    def router(self) -> Host:
        """The one that the machine is at."""
        return self.routers[0]

    def neighbour(self) -> Host:
        """One more machine in the same home."""
        host = Host(self._rooms, "neighbour")
        self._lan.plug(host, "eth0")
        return host


class Lab:
    """One internet, as a context manager; many can exist at once, and none knows of another."""

    def __init__(self) -> None:
        self._rooms = Rooms()
        self.prefix = self._rooms.prefix
        """That of its namespaces, and of no others."""

    def __enter__(self) -> Self:
        remove_left_behind()
        try:
            self.internet = Internet(self._rooms)
        except BaseException:
            self._rooms.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End every process in it, asked first and killed after a while, and delete everything."""
        self._rooms.close()

    def public(self, *, ipv4: bool = True, ipv6: bool = False) -> Online:
        """A host that everybody reaches."""
        assert ipv4 or ipv6, "a host has IPv4, IPv6 or both"
        host = Online(self._rooms, "public")
        host.line = line = Line(self.internet, host, "eth0", ipv4=ipv4)
        if ipv6:
            host.address6 = f"{INTERNET6}::{line.number:x}"
            host.configure(f"address add {host.address6}/128 dev eth0 nodad")
            line.route6(f"{host.address6}/128", via=False)
        host.address = line.address or host.address6
        return host

    def home(self, nat: Nat | None = "port_preserving", *, ipv6: bool = False) -> Home:
        """A machine behind such a NAT; None: without IPv4. Its IPv6 addresses are global, and only replies get in."""
        return Home(self._rooms, self.internet, nat, ipv6=ipv6)
