"""What a peer without a state of its own trusts, and what others have shown it of the run's history (protocol.md 6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .walking import Branch

if TYPE_CHECKING:
    from collections.abc import Collection

    from ..ids import Hash, PeerId
    from .chain import Head
    from .effects import History

UNSERVED = 8
"""Heads whose state nobody could serve that are remembered."""
SHOWN = 16
"""Heads of histories that were shown to a person and can be chosen: they go on while the person looks."""


@dataclass
class Opinion:
    """The chain that one neighbour shows, as far as it is verified: a branch on top of the seal that is trusted."""

    peer: PeerId
    begun: float
    asked: float
    """When the last request of it went out."""
    branch: Branch = Branch(())
    shown: bool = False
    about: PeerId | None = None
    """The other neighbour against whose chain this one is being compared."""
    size: int = 0
    """Bytes that came in."""

    @property
    def head(self) -> Head:
        """The newest seal that it shows."""
        return self.branch.heads[-1]


@dataclass(frozen=True)
class Rival:
    """A verified branch that no rule ranks against this peer's own chain: it parts from that above ``fork``."""

    peer: PeerId
    fork: Head
    branch: Branch
    shown: float


@dataclass
class Trust:
    """The seal that is trusted without proof, and all that is only looked at until a head is chosen."""

    zero: Head | None = None
    """Seal 0, the manifest, where it is known."""
    anchor: tuple[Hash, int] | None = None
    """A seal and its round that this peer has not reached yet and below which it believes nothing: from an invitation,
    or chosen by a person."""
    by_hand: bool = False
    """Whether a person chose that seal."""
    base: Head | None = None
    """That seal with its table, once somebody has shown it."""
    opinions: dict[PeerId, Opinion] = field(default_factory=dict)
    compared: set[tuple[PeerId, PeerId]] = field(default_factory=set)
    """(who was asked, about whose chain)."""
    rested: dict[PeerId, float] = field(default_factory=dict)
    """Neighbours that were asked in vain, and when."""
    begun: float | None = None
    """When the first of these opinions was asked for."""
    chosen: Hash | None = None
    """The head whose state is being loaded."""
    unserved: dict[Hash, float] = field(default_factory=dict)
    """Heads whose state nobody could serve, and since when."""
    halted: bool = False
    """Without a state, and with several histories: nothing is trained until a head is chosen."""
    again: float = 0.0
    """Not before then everybody is asked anew about several histories."""
    rivals: dict[Hash, Rival] = field(default_factory=dict)
    """A member's: by their first seal above the fork."""
    refused: set[Hash] = field(default_factory=set)
    """First seals of rivals that a person decided against."""
    histories: tuple[History, ...] = ()
    shown: dict[Hash, tuple[PeerId, Head]] = field(default_factory=dict)
    """Heads that a person has seen lately, and who showed them."""
    filling: PeerId | None = None
    """Who was asked for what lies below the oldest seal that is kept here, and what it has shown of that so far."""
    gap: Branch = Branch(())
    gap_bytes: int = 0
    lonely: bool = False
    """A person was told that nobody shows the anchor."""

    def start(self, zero: Head | None, anchor: tuple[Hash, int] | None) -> None:
        """What a start brings along."""
        self.zero, self.anchor = self.zero or zero, anchor

    def follow(self, head: Head) -> None:
        """Go on only from this seal, which a person chose; its table is known."""
        self.start_over()
        self.rested.clear()
        self.anchor, self.base, self.by_hand = (head.seal, head.round), head, True

    def rest(self, peer: PeerId, neighbours: Collection[PeerId], now: float) -> None:
        """This neighbour was asked in vain; of those who left nothing is remembered."""
        self.rested = {each: at for each, at in self.rested.items() if each in neighbours}
        self.rested[peer] = now

    def give_up(self, peer: PeerId, now: float) -> None:
        """This neighbour has nothing to show for now."""
        self.opinions.pop(peer, None)
        self.rested[peer] = now

    def show(self, peer: PeerId, head: Head) -> None:
        """A person sees this head of a history."""
        self.shown.pop(head.seal, None)
        self.shown[head.seal] = peer, head
        while len(self.shown) > SHOWN:
            del self.shown[next(iter(self.shown))]

    def start_over(self) -> None:
        """Forget what was shown."""
        self.opinions.clear()
        self.compared.clear()
        self.begun = None

    def unservable(self, head: Hash, now: float) -> None:
        """Nobody could serve the state of this head."""
        self.unserved[head] = now
        while len(self.unserved) > UNSERVED:
            del self.unserved[next(iter(self.unserved))]
        for peer in [peer for peer, each in self.opinions.items() if each.shown and each.head.seal == head]:
            self.give_up(peer, now)

    def reached(self) -> None:
        """This peer has a state of its own: its own chain is what it trusts from here on."""
        self.start_over()
        self.anchor = self.base = self.chosen = None
        self.halted = self.lonely = self.by_hand = False
        self.rivals.clear()
        self.unserved.clear()
        self.rested.clear()
