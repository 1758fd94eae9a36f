"""What is announced in one's own network, and how much of what is heard there is believed: little. Pure.

Anybody at the same cable may announce anything. What is read here only names a peer and where to try it: whether it is
that peer which answers there, ``dialback`` proves.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.errors import RemoteError
from protocols.ids import PeerId, digest, public_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MOST_ANNOUNCEMENTS = 64
"""Looked at in one look, drawn where there are more: who fills the network with false ones hides no peer for ever."""
MOST_PEERS = 64
"""Of our run that are tried and remembered."""
MOST_ADDRESSES = 4
"""Of one peer, whoever has announced them."""
MOST_CARDS = 8
"""Interfaces on which this peer is announced."""
MARK_BYTES = 16
_MARK_DOMAIN = b"murmur/1/lan"
_RUN, _PEER = "run", "peer"
_NEEDED = frozenset({"up", "broadcast", "multicast"})
_REFUSED = frozenset({"loopback", "pointopoint"})
MAX_WORD_BYTES = 64


@dataclass(frozen=True, slots=True)
class Card:
    """One IPv4 address of this machine, with what its interface is."""

    address: str
    netmask: str | None
    flags: frozenset[str]
    """As ``psutil.net_if_stats`` names them: ``up``, ``broadcast``, …"""


@dataclass(frozen=True, slots=True)
class Announcement:
    """A service as somebody has announced it."""

    words: Mapping[bytes, bytes | None]
    """Its TXT record."""
    addresses: tuple[str, ...]
    port: int


def mark_of(run: bytes) -> str:
    """What neighbours know a run by: whoever does not know its id learns nothing from it."""
    return digest(_MARK_DOMAIN, run)[:MARK_BYTES].hex()


def words_of(run: bytes, peer: PeerId) -> dict[str, str]:
    """The TXT record that this peer announces."""
    return {_RUN: mark_of(run), _PEER: peer}


def networks(cards: Iterable[Card], listen: str) -> tuple[ipaddress.IPv4Interface, ...]:
    """Where this peer is announced: its addresses in networks at home, with these networks.

    ``listen`` is the address on which it takes peers. Empty on a machine that has an address in the world: there the
    neighbours are strangers, and strangers from afar could ask too.
    """
    found: list[ipaddress.IPv4Interface] = []
    for card in cards:
        try:
            each = ipaddress.IPv4Interface(f"{card.address}/{card.netmask or 32}")
        except ValueError:
            continue
        if each.ip.is_global:
            return ()
        is_lan = card.flags >= _NEEDED and not card.flags & _REFUSED and each.network.num_addresses > 2
        if is_lan and each.ip.is_private and not each.ip.is_loopback and listen in ("0.0.0.0", card.address):
            found.append(each)
    return tuple(sorted(set(found))[:MOST_CARDS])


def read(
    heard: Iterable[Announcement], run: bytes, own: PeerId, here: Sequence[ipaddress.IPv4Interface]
) -> dict[PeerId, tuple[str, ...]]:
    """Peers of the run, each with the multiaddrs at which it may be; ``here`` is what ``networks`` returned.

    Only addresses of our own networks count, and none of this machine's.
    """
    mark, found = mark_of(run).encode(), dict[PeerId, tuple[str, ...]]()
    for each in heard:
        peer = _peer_of(each, mark)
        if peer is None or peer == own or (peer not in found and len(found) >= MOST_PEERS):
            continue
        places = (
            f"/ip4/{ip}/tcp/{each.port}/p2p/{peer}" for ip in each.addresses[:MOST_ADDRESSES] if _is_near(ip, here)
        )
        if known := tuple(dict.fromkeys((*found.get(peer, ()), *places)))[:MOST_ADDRESSES]:
            found[peer] = known
    return found


def _peer_of(announced: Announcement, mark: bytes) -> PeerId | None:
    """Whom an announcement of our run names; None for everything else."""
    word = announced.words.get(_PEER.encode())
    if announced.words.get(_RUN.encode()) != mark or not 0 < announced.port < 1 << 16:
        return None
    if word is None or len(word) > MAX_WORD_BYTES or not word.isascii():
        return None
    peer = PeerId(word.decode("ascii"))
    try:
        public_key(peer)
    except RemoteError:
        return None
    return peer


def _is_near(address: str, here: Sequence[ipaddress.IPv4Interface]) -> bool:
    try:
        ip = ipaddress.IPv4Address(address)
    except ValueError:
        return False
    if any(ip == each.ip for each in here):
        return False
    return any(
        ip in each.network and ip not in (each.network.network_address, each.network.broadcast_address) for each in here
    )
