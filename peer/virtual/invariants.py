"""What must hold after every event of a virtual swarm. Each rule is a method that raises ``Violation``.

Rules are about honest peers: what a liar signs or believes is not looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from protocols.drift import MAX_AGE
from protocols.errors import LocalError
from protocols.ids import Hash, PeerId, digest, short
from protocols.outer import state_root

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from protocols.messages import Seal
    from protocols.round.chain import Head
    from protocols.round.effects import Sealed, Train, Vector, Window
    from protocols.state_payloads import StateChunk
    from protocols.statements import Statement

SLOTS_REMEMBERED = 1 << 13
COUNT_LIMIT = 20_000
"""Largest number of things of one sort in a machine."""
BYTES_LIMIT = 64 << 20
"""The same for counters whose name ends in ``bytes``."""
CLOSE = 1e-5
"""Drift is added up in another order here than in the machine: float32 of about 0.01."""


class Violation(LocalError):
    """A rule does not hold; ``check`` names it."""

    def __init__(self, check: str, text: str) -> None:
        super().__init__(f"{check}: {text}")
        self.check = check


@dataclass(frozen=True, slots=True)
class Link:
    """A certified seal that somebody adopted. ``depth`` counts the rounds that were made down to seal 0."""

    seal: Hash
    parent: Hash
    round: int
    view: int
    depth: int
    void: bool
    state: Hash


@dataclass
class Shadow:
    """The drift that one machine must have by the rules; None while that is not known."""

    drift: Vector | None
    ages: tuple[int, ...]

    def trained(self, effect: Train, window: Window) -> None:
        """A window adds what it trained, whatever was sealed meanwhile."""
        if self.drift is not None:
            self.drift = self.drift + (window.drift - effect.drift)


class Invariants:
    """The rules, and what they have seen so far."""

    def __init__(self, anchor: Head, state: Hash) -> None:
        self.links: dict[Hash, Link] = {anchor.seal: Link(anchor.seal, anchor.seal, anchor.round, 0, 0, True, state)}
        self.last_final = anchor.seal
        self.peaks: dict[str, int] = {}
        """The largest value of every counter of any machine."""
        self._slots: dict[bytes, Hash] = {}

    def no_double_signature(self, statement: Statement) -> None:
        """An honest peer signs one statement for a slot, restarts included."""
        body = statement.body
        key = digest(statement.peer.encode(), body.kind.encode(), body.slot())
        if self._slots.setdefault(key, statement.hash) != statement.hash:
            raise Violation("no_double_signature", f"{short(statement.peer)} signed two {body.kind}s for one slot")
        if len(self._slots) > SLOTS_REMEMBERED:
            del self._slots[next(iter(self._slots))]

    def adopted(self, peer: PeerId, before: Head, effect: Sealed) -> Link:
        """A head's view grows, its parent is known, and parameters and momentum are those that were sealed.

        Only a resync may go to a lower view, of another chain. A void seal has its parent's state.
        """
        head, record = effect.head, effect.record
        assert head.proposal is not None
        body = cast("Seal", head.proposal.body)
        if head.view <= before.view and not record.synced:
            raise Violation("view_grows", f"{short(peer)} went from view {before.view} to {head.view}")
        if state_root(effect.params, effect.momentum) != body.state:
            raise Violation("hash_recomputed", f"{short(peer)} holds another state than seal {body.round} names")
        link = self.links.get(head.seal)
        if link is None:
            parent = self.links.get(body.parent)
            if parent is None:
                raise Violation("known_parent", f"{short(peer)} adopted round {body.round} on an unknown seal")
            if body.void and body.state != parent.state:
                raise Violation("void_keeps_state", f"void seal {body.round} changed the state")
            depth = parent.depth + (not body.void)
            link = Link(head.seal, body.parent, body.round, body.view, depth, body.void, body.state)
            self.links[head.seal] = link
        return link

    def one_final_chain(self, peer: PeerId, seal: Hash) -> None:
        """Any two final seals are on one chain."""
        if seal == self.last_final:
            return
        if seal not in self.links:
            raise Violation("final_conflicts", f"{short(peer)} calls an unknown seal final")
        if self.descends(seal, self.last_final):
            self.last_final = seal
        elif not self.descends(self.last_final, seal):
            one, other = self.links[seal], self.links[self.last_final]
            raise Violation(
                "final_conflicts",
                f"{short(peer)}: round {one.round} view {one.view} and round {other.round} view {other.view} "
                "are both final, on different chains",
            )

    def drift_by_rule(self, peer: PeerId, shadow: Shadow, effect: Sealed, part: int) -> None:
        """Drift changes only where a seal took it, or where three seals in a row had not; or all of it, by a resync.

        ``part`` = values of a part. The shadow is brought up to date.
        """
        if shadow.drift is not None and not effect.record.synced:
            self._compare(peer, shadow, effect, part)
        shadow.drift, shadow.ages = effect.drift, effect.ages

    @staticmethod
    def _compare(peer: PeerId, shadow: Shadow, effect: Sealed, part: int) -> None:
        assert shadow.drift is not None and effect.head.proposal is not None
        body = cast("Seal", effect.head.proposal.body)
        starts = range(0, len(effect.drift), part)
        differs = np.logical_or.reduceat(np.abs(effect.drift - shadow.drift) > CLOSE, starts)
        if not differs.any():
            return
        taken = next((each.parts for each in body.contributions if each.peer == peer), 0)
        for index in np.flatnonzero(differs):
            age = shadow.ages[index] if shadow.ages else 0
            if age >= MAX_AGE - 1 and not effect.drift[starts[index] : starts[index] + part].any():
                continue
            if taken == 0:
                raise Violation(
                    "drift_kept",
                    f"{short(peer)} lost drift in part {index}, not taken by round {body.round}, age {age}",
                )
            taken -= 1

    def bounded(self, peer: PeerId, sizes: Mapping[str, int]) -> None:
        """What a machine stores has a limit."""
        for name, size in sizes.items():
            if size > self.peaks.get(name, -1):
                self.peaks[name] = size
                if size > (BYTES_LIMIT if name.endswith("bytes") else COUNT_LIMIT):
                    raise Violation("memory_bounded", f"the machine of {short(peer)} holds {size} {name}")

    def chunk_kept_once(self, peer: PeerId, kept: Sequence[StateChunk], chunk: StateChunk) -> None:
        """No chunk of a state is taken twice, restarts included."""
        if any(each.index == chunk.index for each in kept):
            raise Violation("chunk_once", f"{short(peer)} took chunk {chunk.index} twice")

    # --- the chain ----------------------------------------------------------------------------------

    def back(self, seal: Hash) -> Iterator[Link]:
        """From a seal down to seal 0."""
        link = self.links[seal]
        while True:
            yield link
            if link.parent == link.seal:
                return
            link = self.links[link.parent]

    def descends(self, seal: Hash, ancestor: Hash) -> bool:
        """Whether ``ancestor`` is on the chain that ends in ``seal``."""
        floor = self.links[ancestor].round
        for link in self.back(seal):
            if link.seal == ancestor:
                return True
            if link.round <= floor:
                return False
        return False
