"""Swarms in memory for the tests of this folder: the virtual swarm without faults, with what one peer sends bent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from peer.identity import Identity
from peer.virtual import Plan, QuickScope, VirtualPeer, World
from peer.virtual.plan import draw, first_state
from protocols.ids import Hash, PeerId
from protocols.messages import Seal
from protocols.outer import state_root
from protocols.round.chain import Head, seal_zero
from protocols.round.effects import Sealed, Setting, Train, Vector, Window
from protocols.round.machine import Machine
from protocols.statements import Statement
from protocols.turns import coordinator

if TYPE_CHECKING:
    from dht.memory import Frame
    from peer.virtual.peer import Forge
    from protocols.messages import Body

__all__ = [
    "PART", "SCOPE", "SETTING", "VALUES", "Bend", "Outcome", "QuickScope", "Vector", "draw", "first_head",
    "first_state", "identities", "kind_of", "lying", "restate", "run", "settle", "signed_kinds", "stand_in", "state",
    "trains", "turn_of", "until", "word", "world", "losing", "body_of", "owners", "spoken",
]  # fmt: skip

SCOPE = QuickScope(b"r" * 32, "model")
PART = 64
VALUES = 5 * PART + 20
"""Six parts, the last one short."""
SETTING = Setting(
    values=VALUES, part=PART, update_codec="float32", result_codec="float32", rule="mean", tolerated=1 / 3,
    lr=0.7, momentum=0.8, probation=0, open=True,
)  # fmt: skip
LINGER_S = 12.0
"""After the last round: for everybody to see that it is final."""
LIMIT_S = 600.0
Bend = Callable[[PeerId, str, bytes], "Sequence[tuple[str, bytes]] | None"]
"""(to, kind, payload) of a frame → the frames to send in its place, or None to leave it as it is."""


def identities(count: int) -> list[Identity]:
    """Keys from small numbers."""
    return [Identity.from_seed(bytes([number]) * 32) for number in range(1, count + 1)]


def trains(rounds: int) -> Callable[[PeerId, Train], Window | None]:
    """A trainer that rests after ``rounds``."""

    def train(peer: PeerId, effect: Train) -> Window | None:
        if effect.round > rounds:
            return None
        return Window(effect.drift + draw(peer, effect.parent, len(effect.base)), 25, 25 * 1024)

    return train


def first_head(founders: Sequence[Identity], values: int = VALUES) -> Head:
    """Seal 0."""
    return seal_zero(SCOPE, [each.peer for each in founders], state_root(*first_state(values)))


@dataclass(frozen=True)
class Outcome:
    """A run that has come to rest."""

    peers: list[VirtualPeer]
    """In order of their keys."""
    world: World

    @property
    def setting(self) -> Setting:
        """What it ran with."""
        return self.world.plan.setting

    def chains(self) -> list[list[Hash]]:
        """The seals each peer adopted."""
        return [[sealed.head.seal for sealed in peer.sealed] for peer in self.peers]

    def troubles(self, but: PeerId | None = None) -> list[tuple[PeerId, str]]:
        """(who, what) that peers other than ``but`` showed."""
        return [(each.peer, each.text) for peer in self.peers if peer.peer != but for each in peer.troubles]

    def refusals(self) -> list[tuple[str, str]]:
        """(who is named, what) of every refused frame."""
        return [(error.peer, error.text) for _, _, error in self.world.refused]

    def hung_up(self) -> set[tuple[PeerId, PeerId]]:
        """(sender of a refused frame, who the error names)."""
        return {(sender, PeerId(error.peer)) for _, sender, error in self.world.refused}


def world(
    count: int, rounds: int = 1, *, seed: int | None = None, newcomers: int = 0, trainer: Any = None, **changes: Any
) -> World:
    """``count`` founders and ``newcomers`` strangers that have not begun, ``rounds`` windows each."""
    setting = replace(SETTING, **changes)
    keys = identities(count + newcomers)
    strangers = {each.peer for each in keys[count:]}
    plan = Plan(
        scope=SCOPE, setting=setting, founders=keys[:count], newcomers=keys[count:], state=first_state(setting.values),
        trainer=trainer or trains(rounds), pace=lambda peer, _: 4.0 if peer in strangers else 5.0, keep=0,
        linger=LINGER_S,
    )  # fmt: skip
    return World(seed or 0, count, rounds, plan=plan)


def run(
    count: int,
    rounds: int = 1,
    *,
    seed: int | None = None,
    bend: tuple[PeerId | None, Bend] | None = None,
    newcomers: int = 0,
    **changes: Any,
) -> Outcome:
    """A whole run; ``bend`` = a liar (None: everybody) and what it does to its frames. A liar is not checked."""
    made = world(count, rounds, seed=seed, newcomers=newcomers, **changes)
    if bend is not None:
        lying(made, bend[0], bend[1])
    return settle(made)


def lying(made: World, who: PeerId | None, bend: Bend) -> None:
    """Bend what one peer sends, whose own machine is not checked any more, or (None) what everybody sends."""
    for peer in made.peers.values():
        if who in (None, peer.peer):
            peer.forge = _forge(bend)
            peer.honest = who is None


def settle(made: World, limit: float = LIMIT_S) -> Outcome:
    """From the start to the end, or to ``limit`` virtual seconds."""
    made.run(limit)
    return Outcome(list(made.peers.values()), made)


def until(made: World, holds: Callable[[], bool], limit: float = LIMIT_S) -> None:
    """Go on with a world that has begun until something holds; it must within ``limit`` virtual seconds more."""
    end = made.clock.now + limit
    while not holds():
        assert made.clock.now <= end and made.clock.step(), f"it never came to that\n{made.stand()}"


def losing(made: World, lost: Callable[[Frame], bool], seconds: float = 0.05) -> None:
    """Let all frames take so many seconds, but those that are lost in silence (``network.withheld``)."""
    made.network.courier = lambda frame: None if lost(frame) else seconds


def word(frame: Frame) -> str:
    """The kind of the statement in a frame, or of the frame itself."""
    body = spoken(frame)
    return frame.kind if body is None else body.kind


def spoken(frame: Frame) -> Body | None:
    """The body of the statement in a frame, if that is what it holds."""
    if frame.kind != "statement":
        return None
    if isinstance(frame.payload, Statement):
        return frame.payload.body
    return SCOPE.decode(frame.payload, sender="test").body


def turn_of(founders: int, view: int) -> PeerId:
    """Who coordinates a view as long as nobody has changed the table of seal 0."""
    return coordinator(first_head(identities(founders)).table, SCOPE, view)


def owners(founders: int) -> tuple[PeerId, ...]:
    """Who reduces which part in the first round of a run."""
    return run(founders).peers[0].sealed[0].record.owners


def body_of(sealed: Sealed) -> Seal:
    """The body of an adopted seal."""
    assert sealed.head.proposal is not None
    assert isinstance(sealed.head.proposal.body, Seal)
    return sealed.head.proposal.body


def signed_kinds(peer: VirtualPeer, view: int) -> list[str]:
    """Kinds of the statements that its journal holds for a view."""
    bodies = [statement.body for _, statement in peer.disk.journal.entries.values()]
    return [body.kind for body in bodies if getattr(body, "view", None) == view]


def stand_in(founders: int, me: int = 0, **changes: Any) -> Machine:
    """The machine of one of ``founders``, with nobody around it."""
    setting = replace(SETTING, **changes)
    keys = identities(founders)
    return Machine(SCOPE, keys[me].peer, setting, first_head(keys, setting.values), first_state(setting.values))


def _forge(bend: Bend) -> Forge:
    def forge(to: PeerId, kind: str, payload: bytes) -> list[tuple[str, bytes]] | None:
        bent = bend(to, kind, payload)
        return None if bent is None else list(bent)

    return forge


def restate(payload: bytes, identity: Identity, **changes: Any) -> bytes:
    """The same statement with other fields, signed by ``identity``."""
    return state(replace(SCOPE.decode(payload, sender="test").body, **changes), identity)  # type: ignore[type-var]


def state(body: Body, identity: Identity) -> bytes:
    """A body signed by ``identity``, as it travels."""
    return SCOPE.state(identity.peer, body, identity.sign).encode()


def kind_of(kind: str, payload: bytes) -> str:
    """The statement's kind, or the frame's."""
    return SCOPE.decode(payload, sender="test").body.kind if kind == "statement" else kind
