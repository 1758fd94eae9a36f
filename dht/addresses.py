"""Which of a machine's addresses are worth telling others."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from .records import MAX_ADDRESS_CHARS, MAX_ADDRESSES

if TYPE_CHECKING:
    from collections.abc import Iterable

_USELESS = 2


def best_addresses(addresses: Iterable[str], limit: int = MAX_ADDRESSES) -> tuple[str, ...]:
    """At most ``limit`` of these multiaddrs: public ones first, then private ones, each in the order given.

    Loopback and link-local addresses are of use only on this machine or with an interface's name: they are told
    only where there is nothing else (a swarm on one machine).
    """
    ranked = sorted((each for each in addresses if len(each) <= MAX_ADDRESS_CHARS), key=_rank)
    useful = [each for each in ranked if _rank(each) < _USELESS]
    return tuple(useful or ranked)[:limit]


def told(addresses: Iterable[str]) -> tuple[str, ...]:
    """``best_addresses``, and nothing private to the world: where there is a public one, only such."""
    best = best_addresses(addresses)
    return tuple(each for each in best if _rank(each) == _rank(best[0]))


def is_outward(address: str) -> bool:
    """Whether a multiaddr leads out into the world, as far as can be told: a public address, or a name."""
    return _rank(address) == 0


def _rank(address: str) -> int:
    """0 = public or a name, 1 = private, 2 = loopback, link-local or unspecified."""
    parts = address.split("/")
    if len(parts) < 3 or parts[1] not in {"ip4", "ip6"}:
        return 0
    try:
        ip = ipaddress.ip_address(parts[2])
    except ValueError:
        return _USELESS
    if ip.is_loopback or ip.is_link_local or ip.is_unspecified:
        return _USELESS
    return 0 if ip.is_global else 1
