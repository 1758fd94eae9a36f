"""A newcomer among neighbours whose chains are made by hand: true, old, forged, silent or endless ones.

Everybody is a real round machine; signatures are ideal ones, and all seals have the state that the newcomer begins
with, so that it moves to a head as soon as it has chosen it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from protocols.errors import RemoteError
from protocols.outer import state_root
from protocols.payloads import Digest
from protocols.round.effects import Effect, Followed, Histories, Notice, Push, Sealed, Setting, Sign, Train, Trouble
from protocols.round.links import Image
from protocols.round.machine import Machine
from tests.protocols import chains
from tests.swarm.judge import IdealScope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from protocols.chain_payloads import Link
    from protocols.ids import Hash, PeerId
    from protocols.round.chain import Head
    from protocols.statements import Statement

SETTING = Setting(
    values=16, part=8, update_codec="float32", result_codec="float32", rule="mean", tolerated=1 / 3, lr=0.7,
    momentum=0.8, probation=0, open=True,
)  # fmt: skip
STATE = np.linspace(-1, 1, 16, dtype=np.float32), np.zeros(16, dtype=np.float32)
ME = chains.PEERS[23]
HONEST, LIAR, THIRD, FOURTH = chains.PEERS[10:14]
SIX_SECONDS = 6.0
"""A stranger is asked for its chain after four."""


def ideal(monkeypatch: pytest.MonkeyPatch) -> IdealScope:
    """Have ``chains`` make seals that machines of this town take."""
    scope = IdealScope(b"r" * 32, "model")
    monkeypatch.setattr(chains, "SCOPE", scope)
    monkeypatch.setattr(chains, "ZERO", state_root(*STATE))
    return scope


class Town:
    """One newcomer, and whoever was put beside it."""

    def __init__(self, scope: IdealScope, zero: Head, **start: Any) -> None:
        self.scope, self.zero, self.now = scope, zero, 100.0
        head = start.pop("head", zero)
        self.me = Machine(scope, start.pop("me", ME), SETTING, head, STATE, **start)
        self.donors: dict[PeerId, Machine] = {}
        self.bends: dict[PeerId, Callable[[bytes], bytes | None]] = {}
        self.troubles: list[Trouble] = []
        self.notices: list[Notice] = []
        self.histories: list[Histories] = []
        self.sealed: list[Sealed] = []
        self.followed: list[Followed] = []
        self.refused: list[RemoteError] = []
        self.trained: list[Effect] = []
        """What it trained or signed."""
        self.asked: list[PeerId] = []
        self._mine(self.me.start(self.now))

    def beside(
        self,
        peer: PeerId,
        heads: Sequence[Head],
        final: tuple[Hash, tuple[Statement, ...]] | None = None,
        *,
        root: Head | None = None,
        bend: Callable[[bytes], bytes | None] | None = None,
    ) -> None:
        """A neighbour with a chain on top of ``root`` (seal 0); ``bend``: what it makes of a reply, None: nothing."""
        root = root or self.zero
        image = Image((root, *heads), (), *(final or (None, ())))
        self.donors[peer] = Machine(self.scope, peer, SETTING, heads[-1], STATE, past=image)
        self.donors[peer].start(self.now)
        self.donors[peer].welcome(self.me.me, self.now)
        if bend is not None:
            self.bends[peer] = bend
        self._mine(self.me.welcome(peer, self.now))
        self.greet(peer)

    def leave(self, peer: PeerId) -> None:
        """Its stream closes."""
        del self.donors[peer]
        self._mine(self.me.left(peer, self.now))

    def greet(self, peer: PeerId) -> None:
        """A neighbour says what it stands on."""
        self._hear(peer, "digest", Digest(self.donors[peer].head.seal, bytes(32)).encode())

    def run(self, seconds: float) -> None:
        """Let time pass; everybody says every 2 s where it stands."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            if self.me.deadline() <= self.now:
                self._mine(self.me.tick(self.now))
            if int(self.now) % 2 == 0:
                for peer in list(self.donors):
                    self.greet(peer)

    def follow(self, seal: Hash) -> None:
        """A person chooses."""
        self._mine(self.me.follow(seal, self.now))

    def _hear(self, peer: PeerId, kind: str, payload: bytes) -> None:
        try:
            self._mine(self.me.payload(peer, kind, payload, self.now))
        except RemoteError as error:
            self.refused.append(error)

    def _mine(self, effects: Sequence[Effect]) -> None:
        queue = deque(effects)
        while queue:
            effect = queue.popleft()
            match effect:
                case Push(to, "ask-chain", payload) if to in self.donors:
                    self.asked.append(to)
                    self._ask(to, b"".join(payload))
                case Trouble():
                    self.troubles.append(effect)
                case Notice():
                    self.notices.append(effect)
                case Histories():
                    self.histories.append(effect)
                case Sealed():
                    self.sealed.append(effect)
                case Followed():
                    self.followed.append(effect)
                case Train() | Sign():
                    self.trained.append(effect)
                case _:
                    pass

    def _ask(self, peer: PeerId, payload: bytes) -> None:
        for effect in self.donors[peer].payload(self.me.me, "ask-chain", payload, self.now):
            if isinstance(effect, Push) and effect.kind == "chain":
                raw: bytes | None = b"".join(effect.payload)
                raw = self.bends[peer](raw) if peer in self.bends and raw is not None else raw
                if raw is not None:
                    self._hear(peer, "chain", raw)


def shown_final(head: Head) -> tuple[Hash, tuple[Statement, ...]]:
    """A seal that all four founders are ready on top of."""
    return head.seal, chains.readys(head, chains.FOUR)


def fork_of(start: Head, length: int) -> list[Head]:
    """Another history on top of a seal, by the same founders."""
    return chains.grown(start, length, chains.FOUR, b"fork")


def other_table(link: Link) -> Link:
    """The same seal with a table that it does not name."""
    return replace(link, table=link.table.without(chains.FOUR[:1]))
