"""Which relays to try, of those that anybody may name in the directory: whoever lies costs little. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from protocols.reach import seen, seen_ip

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from protocols.ids import PeerId

_NAME = re.compile(r"/dns[46]?/[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){1,7}/tcp/[1-9][0-9]{0,4}", re.ASCII)


def relay_address(addresses: Iterable[str], peer: str, near: Container[str] = (), families: str = "") -> str:
    """The first of them that p2pd may be given as a relay's, those at hosts in ``near`` before others; "" without one.

    Of others those of these ``families`` (``4``, ``6``) come first: a machine may have the one without the other.
    It ends at once on a flag that it cannot read, and an address inside a home is no relay's.
    """
    sound = [each for each in addresses if _is_public(each.removesuffix(f"/p2p/{peer}"), each)]
    return min(sound, key=lambda each: (host_of(each) not in near, family_of(each) not in families), default="")


def drawn(relays: Mapping[PeerId, str], salt: bytes, near: Container[str] = ()) -> tuple[str, ...]:
    """The addresses of ``relays``, by peer: first those at hosts in ``near``, else in an order that ``salt`` draws.

    So no choice of a peer id comes first.
    """

    def lot(peer: PeerId) -> tuple[bool, bytes]:
        return host_of(relays[peer]) not in near, hashlib.sha256(salt + peer.encode()).digest()

    return tuple(relays[peer] for peer in sorted(relays, key=lot))


def candidates(known: Sequence[str], using: Sequence[str], failed: Mapping[str, int]) -> tuple[str, ...]:
    """``known`` relays in the order in which to use them: those that failed least often first, then those in use."""
    return tuple(sorted(known, key=lambda each: (failed.get(each, 0), each not in using)))


def replacement(
    known: Sequence[str], using: Sequence[str], serving: Sequence[str], failed: Mapping[str, int], most: int
) -> tuple[str, ...]:
    """Where to reserve once relays in use have been lost: at those ``serving`` and at others that are ``known``.

    None while all in use serve, or where nobody else is known. A lost one that is known again is as good as another.
    """
    others = [each for each in candidates(known, using, failed) if each not in serving]
    return (*serving, *others)[:most] if len(serving) < min(len(using), most) and others else ()


def host_of(address: str) -> str:
    """``/ip4/IP`` or the like, with which a multiaddr begins."""
    return "/".join(address.split("/")[:3])


def family_of(address: str) -> str:
    """``4`` or ``6`` of ``/ip4/…``, ``/dns6/…`` and the like; another letter where a name may have both."""
    return address.split("/")[1][-1]


def _is_public(end: str, address: str) -> bool:
    if end == address:  # it does not say whose it is
        return False
    ip = seen_ip(seen(end))
    if ip is not None:
        return seen(end) == end and ip.is_global and not ip.is_multicast
    return _NAME.fullmatch(end) is not None and int(end.rpartition("/")[2]) < 1 << 16
