"""Peers of a run that this one has met, kept over restarts, so that a run outlives the addresses it began with.

Also the port this peer listened on last, for others keep it in their books, and the invitation it came by. All of it
are hints; a file that is damaged costs nothing but them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from protocols.errors import ConfigError
from protocols.invitation import decode, split

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from protocols.ids import PeerId

log = logging.getLogger(__name__)

KEPT = 64
"""Peers in a book: members first, then those met last."""
KEPT_ADDRESSES = 4
"""Of one peer."""
FILE_BYTES = 128 << 10
_KEYS = {"schema", "port", "invitation", "peers"}


@dataclass(frozen=True, slots=True)
class Known:
    """A peer that was met; ``seen`` in unix seconds."""

    peer: PeerId
    addresses: tuple[str, ...]
    seen: int
    member: bool


class AddressBook:
    """The book of one run."""

    def __init__(self, path: Path) -> None:
        """Reads what is there; a damaged file is told in the log and begun anew."""
        self._path = path
        self._peers: dict[PeerId, Known] = {}
        self._written = ""
        self.port = 0
        """The port this peer listened on last; 0 = unknown."""
        self.invitation = ""
        """The invitation that led to this run, if one did."""
        try:
            self._read()
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError, ConfigError) as error:
            log.warning("%s is passed over: %s", path, error)

    def peers(self) -> list[Known]:
        """Whom it holds: members first, those met last first."""
        return sorted(self._peers.values(), key=_rank)

    def addresses(self, limit: int) -> list[str]:
        """The first address of up to ``limit`` peers, then their others."""
        peers = self.peers()[:limit]
        first = [each.addresses[0] for each in peers]
        return [*first, *(address for each in peers for address in each.addresses[1:])][:limit]

    def met(self, peer: PeerId, addresses: Iterable[str], *, member: bool, now: float) -> None:
        """Take note of a peer that is connected; what is no address of it is left out."""
        own = tuple(each for each in addresses if _is_of(peer, each))[:KEPT_ADDRESSES]
        if own:
            self._peers[peer] = Known(peer, own, int(now), member)
            if len(self._peers) > KEPT:
                del self._peers[self.peers()[-1].peer]

    def save(self) -> None:
        """Write the book if it changed; a disk that refuses costs the book only, which the log tells."""
        peers = [
            {"peer": each.peer, "addresses": list(each.addresses), "seen": each.seen, "member": each.member}
            for each in self.peers()
        ]
        document = {"schema": 1, "port": self.port, "invitation": self.invitation, "peers": peers}
        text = json.dumps(document, indent=1)
        if text == self._written:
            return
        fresh = self._path.with_name(f"{self._path.name}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with fresh.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
            self._written = text
        except OSError as error:
            log.warning("cannot write %s: %s", self._path, error.strerror)
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)

    def _read(self) -> None:
        """Raises OSError, ValueError, ConfigError."""
        with self._path.open("rb") as file:
            raw = file.read(FILE_BYTES + 1)
        if len(raw) > FILE_BYTES:
            raise ValueError(f"larger than {FILE_BYTES} bytes")
        document = json.loads(raw)
        if not isinstance(document, dict) or set(document) != _KEYS or document["schema"] != 1:
            raise ValueError("not a book of addresses")
        port, invitation, peers = document["port"], document["invitation"], document["peers"]
        if type(port) is not int or not 0 <= port <= 65535 or not isinstance(invitation, str):
            raise ValueError("a port or an invitation that is none")
        if invitation:
            decode(invitation)
        if not isinstance(peers, list) or len(peers) > KEPT:
            raise ValueError(f"not a list of at most {KEPT} peers")
        found = [_known(each) for each in peers]
        self.port, self.invitation, self._peers = port, invitation, {each.peer: each for each in found}


def _known(entry: Any) -> Known:
    """Raises ValueError."""
    if not isinstance(entry, dict) or set(entry) != {"peer", "addresses", "seen", "member"}:
        raise ValueError("a peer with missing or unknown fields")
    peer, addresses, seen, member = (entry[name] for name in ("peer", "addresses", "seen", "member"))
    if type(seen) is not int or not 0 <= seen < 1 << 53 or type(member) is not bool:
        raise ValueError("a peer with fields of a wrong type")
    if not isinstance(addresses, list) or not 0 < len(addresses) <= KEPT_ADDRESSES:
        raise ValueError("a peer with no address, or too many")
    if not all(isinstance(each, str) and _is_of(peer, each) for each in addresses):
        raise ValueError("an address of somebody else")
    return Known(peer, tuple(addresses), seen, member)


def _is_of(peer: PeerId, address: str) -> bool:
    try:
        return split(address)[1] == peer
    except ValueError:
        return False


def _rank(known: Known) -> tuple[bool, int, str]:
    return (not known.member, -known.seen, known.peer)
