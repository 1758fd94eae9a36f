"""How others reach this peer: from what was observed to what it says of itself and what it does about it (design.md 7).

Pure: ``plan`` is a function of a ``View``. Nothing is believed before somebody else has proven it.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from protocols.reach import PROVEN, WORDS, seen, seen_ip

if TYPE_CHECKING:
    from collections.abc import Mapping

Rung = Literal["unknown", "public", "mapped", "ipv6", "punched", "relayed", "none"]

MOST_RELAYS = 2
"""Lighthouses at which to reserve, where there are so many."""
NO_PUBLIC_PEER = "no public peer: run `murmur lighthouse` on a reachable machine"
LONELY_S = 30.0
"""Without a connection to any of those that should be there, for so long, there is probably no public one."""


@dataclass(frozen=True, slots=True)
class View:
    """What is known at one moment. Addresses are multiaddrs without this peer's ``/p2p/…``."""

    port: int
    """Of p2pd, for TCP and UDP."""
    listen: tuple[str, ...]
    """p2pd's own addresses: those of interfaces, mapped ones, circuits."""
    interfaces: frozenset[str]
    """IP addresses of this machine."""
    seen: Mapping[str, str]
    """Observer → the end of our connection as it sees it (``protocols.reach.seen``), those trusted most first."""
    found: Mapping[str, Mapping[str, str]]
    """Address → observer → what it found there, a word of ``protocols.reach.WORDS``."""
    relays: tuple[str, ...] = ()
    """Addresses of relays that are known, one of each, those preferred first."""
    punched: int = 0
    """Peers with which a hole was punched."""
    lonely_s: float = 0.0
    """Seconds since anybody was connected, while others are expected."""
    confined: bool = False
    """p2pd listens on loopback only."""
    contained: bool = False
    """This process is behind a container's bridge."""
    outside: bool = False
    """Peers out in the world are known, though perhaps none has been asked."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What follows."""

    rung: Rung
    evidence: tuple[str, ...]
    publish: tuple[str, ...]
    """Addresses for this peer's record: of TCP, for QUIC is at the same port (``connections.quic_of``)."""
    relays: tuple[str, ...]
    """Relays to reserve at; none for a peer that others can dial."""
    ask: tuple[str, ...]
    """What an observer is asked to prove."""

    @property
    def direct(self) -> bool:
        """Whether others can dial this peer."""
        return self.rung in {"public", "mapped", "ipv6"}


def plan(view: View) -> Plan:
    """The rung that holds now, and what to do."""
    ask = _to_ask(view)
    if view.confined:
        own = tuple(each for each in view.listen if "/tcp/" in each and not _is_circuit(each))
        return Plan("unknown", ("listens on this machine only",), own, (), ask)
    circuits = tuple(each for each in view.listen if _is_circuit(each))
    proven = tuple(each for each, by in view.found.items() if PROVEN in by.values())
    world = tuple(each for each in proven if _is_global(each) and _is_believed(each, view))
    if world:
        evidence = tuple(f"{_first(view.found[each])} reached it at {each}" for each in world)
        return Plan(_rung_of(world, view.interfaces), evidence, world, (), ask)
    local = tuple(each for each in proven if not _is_global(each))
    if not any(is_outside(each) for each in view.seen.values()):
        return _unseen(view, local, ask)
    evidence = (*_failures(view), *_kind_of_nat(view), *_bridge(view))
    relays = view.relays[:MOST_RELAYS]
    if circuits:
        rung: Rung = "punched" if view.punched else "relayed"
        through = f"others come through {len({_relay_of(each) for each in circuits})} relay(s)"
        holes = (f"directly with {view.punched} peer(s) by hole punching",) if view.punched else ()
        return Plan(rung, (*evidence, through, *holes), circuits, relays, ask)
    missing = "no relay has taken it yet" if relays else NO_PUBLIC_PEER
    return Plan("none", (*evidence, missing), (), relays, ask)


def _unseen(view: View, local: tuple[str, ...], ask: tuple[str, ...]) -> Plan:
    """Nobody outside this network has been asked."""
    if view.lonely_s > LONELY_S and not any(_is_global(f"/ip/{each}") for each in view.interfaces):
        return Plan("none", (NO_PUBLIC_PEER,), (), (), ask)
    if local:
        evidence = tuple(f"{_first(view.found[each])} reached it at {each}" for each in local)
        told = () if view.outside else local  # the directory is no private matter then
        return Plan("unknown", (*evidence, "nobody outside this network has been asked"), told, (), ask)
    return Plan("unknown", (*_failures(view), "nobody has been asked yet"), (), (), ask)


def _to_ask(view: View) -> tuple[str, ...]:
    """The port where we are seen, and the addresses that a router has mapped."""
    mapped = dict.fromkeys(each for each in view.listen if _is_mapped(each, view))
    return (f"/tcp/{view.port}", *list(mapped)[:2])


def _is_mapped(address: str, view: View) -> bool:
    """p2pd lists what others told it too: only what ``seen`` takes can be asked about."""
    is_end = "/tcp/" in address and seen(address) == address
    return is_end and address.split("/")[2] not in view.interfaces and _is_global(address)


def _is_believed(address: str, view: View) -> bool:
    """Whether most of those who could tell found this peer there; of as many for and against, whoever comes first.

    Each observer may have invented the address at which it says that it sees this peer: others then see another.
    """
    able = [peer for peer, end in view.seen.items() if is_outside(end) and end.split("/")[1] == address.split("/")[1]]
    told = [peer for peer in able if any(peer in by for by in view.found.values())]
    agree = [view.found[address].get(peer) == PROVEN for peer in told]
    return sum(agree) * 2 > len(agree) or (sum(agree) * 2 == len(agree) and all(agree[:1]))


def _rung_of(addresses: tuple[str, ...], interfaces: frozenset[str]) -> Rung:
    ips = [each.split("/")[2] for each in addresses]
    four = [ip for ip in ips if ":" not in ip]
    if not four:
        return "ipv6"
    return "public" if any(ip in interfaces for ip in four) else "mapped"


def _failures(view: View) -> tuple[str, ...]:
    """What observers found at the addresses that led nowhere, once each."""
    return tuple(
        f"{address}: {WORDS[word]} ({_count(by, word)})" for address, by in view.found.items() for word in _words(by)
    )


def _words(by: Mapping[str, str]) -> list[str]:
    return sorted({word for word in by.values() if word != PROVEN})


def _count(by: Mapping[str, str], word: str) -> str:
    number = sum(each == word for each in by.values())
    return "1 peer" if number == 1 else f"{number} peers"


def _kind_of_nat(view: View) -> tuple[str, ...]:
    """What the ends that several observers see tell of the NAT."""
    ends = {each for each in view.seen.values() if is_outside(each) and "/udp/" in each}
    if not ends:
        return ("seen over TCP alone: without UDP no hole can be punched",) if view.seen else ()
    ports = {(each.split("/")[1], each.split("/")[4]) for each in ends}
    if len(ports) > len({family for family, _ in ports}):
        return ("each peer sees another port: a symmetric NAT, no hole can be punched",)
    return (f"seen at {min(ends)}",)


def _bridge(view: View) -> tuple[str, ...]:
    """What a container's owner can do, who may not know that only mapped ports are reached (FC24)."""
    port = view.port
    flags = f"-p {port}:{port} -p {port}:{port}/udp"
    return (f"in a container: others get in once its host maps TCP and UDP port {port} ({flags})",) * view.contained


def _first(by: Mapping[str, str]) -> str:
    return f"peer {min(peer for peer, word in by.items() if word == PROVEN)[-6:]}"


def _relay_of(circuit: str) -> str:
    return circuit.partition("/p2p-circuit")[0].rpartition("/p2p/")[2]


def _is_circuit(address: str) -> bool:
    return "/p2p-circuit" in address


def is_outside(end: str) -> bool:
    """Whether an end that an observer sees (``protocols.reach.seen``) lies out in the world."""
    ip = seen_ip(seen(end))
    return ip is not None and ip.is_global


def _is_global(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.split("/")[2]).is_global
    except (ValueError, IndexError):
        return False
