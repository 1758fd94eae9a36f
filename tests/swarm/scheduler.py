"""A Byzantine scheduler: real round machines, ideal signatures, and an adversary that owns the liars and the network.

It chooses what is delivered next, to whom, when and whether; it fires timers; each liar has several *faces*, machines
under one key that share no journal, so that each half of a split swarm hears an honest one. Only signatures of honest
peers are beyond it. ``judge.Judge`` says what must hold in spite of it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from protocols.errors import RemoteError
from protocols.ids import Hash, PeerId, digest, peer_id
from protocols.messages import Body, Ready, Seal, Vote
from protocols.outer import state_root
from protocols.round.chain import Head, seal_zero
from protocols.round.effects import Effect, Final, Flood, Push, Sealed, Setting, Sign, Train, Window, Work
from protocols.round.machine import Machine
from protocols.round.timing import Timing
from tests.swarm.judge import IdealScope, Judge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from protocols.round.links import Image
    from protocols.statements import Statement

PART = 8
SETTING = Setting(
    values=2 * PART, part=PART, update_codec="float32", result_codec="float32", rule="mean", tolerated=1 / 3,
    lr=0.7, momentum=0.8, probation=0, open=False, timing=Timing(digest=8.0),
)  # fmt: skip
KEPT = 400
"""Messages that the adversary holds back at most; older ones are lost."""
JUMPS = (0.0, 3.0, 20.0, 60.0)
"""By how much a machine's clock runs past its deadline before it is told, seconds."""
KINDS = ("digest", "freeze", "have", "ready", "results", "roster", "seal", "vote")
"""What the adversary hides from some."""
STEPS = (80, 260)
"""Length of an act among four, in messages and timers."""
HALVES = 400
"""The same of the act that is made to fork."""
RESTARTS = 0.15
LEAD = 3
"""Seals by which a liar may be ahead of all honest peers: alone it would go on for ever."""


@dataclass(eq=False)
class Node:
    """An honest peer, or one face of a liar. ``ahead``: by how much its clock is ahead of the others', seconds."""

    peer: PeerId
    honest: bool
    machine: Machine
    ahead: float = 0.0
    group: int = 0
    inbox: deque[tuple[PeerId, str, Any]] = field(default_factory=deque)
    said: set[Hash] = field(default_factory=set)
    """Statements passed on, so that a flood ends."""
    had: set[Hash] = field(default_factory=set)
    """Statements on their way to it or taken in: a second copy would tell it nothing."""
    training: Train | None = None
    journal: dict[tuple[str, bytes], Statement] = field(default_factory=dict)
    saved: Sealed | None = None
    past: Image | None = None
    """What its disk has of the chain, as of ``saved``."""


@dataclass(frozen=True)
class Act:
    """How the adversary plays for a while: who hears whom (``Node.group``; −1: nobody), and what is held back.

    ``hidden``: kinds of messages that ``deaf`` nodes do not get.
    """

    steps: int
    drop: float
    haste: float
    """How often a timer fires although messages are waiting."""
    hidden: frozenset[str]
    deaf: frozenset[int]


class Arena:
    """``count`` founders, the last ``liars`` of whom lie, at the mercy of the adversary that ``seed`` makes."""

    def __init__(
        self, seed: int, count: int, liars: int, *, faces: int = 3, anchor: Callable[[Head], Head] | None = None
    ):
        self.bound, self.many = 3 * liars < count, faces
        self.draw = Random(seed)
        self.scope = IdealScope(b"b" * 32, "model")
        peers = [peer_id(digest(b"byzantine", bytes([number]))) for number in range(count)]
        self.draw.shuffle(peers)
        self.state = np.linspace(-1, 1, SETTING.values, dtype=np.float32), np.zeros(SETTING.values, dtype=np.float32)
        first = seal_zero(self.scope, peers, state_root(*self.state))
        self.anchor = anchor(first) if anchor else first
        self.judge = Judge(self.scope, self.anchor)
        self.peers, self.liars = peers, peers[count - liars :]
        names = [*peers[: count - liars], *(each for each in self.liars for _ in range(faces))]
        self.nodes = [Node(each, each not in self.liars, self._machine(each)) for each in names]
        self.held: deque[tuple[Node, tuple[PeerId, str, Any]]] = deque(maxlen=KEPT)
        self.over = False
        """The liars hold a third of the weight in a table that an honest peer builds on: nothing is promised."""
        self.act = Act(0, 0.0, 0.0, frozenset(), frozenset())
        self.time = 0.0

    @property
    def honest(self) -> list[Node]:
        """The machines of those that do not lie."""
        return [node for node in self.nodes if node.honest]

    @property
    def faces(self) -> list[Node]:
        """The machines of those that do."""
        return [node for node in self.nodes if not node.honest]

    def begin(self) -> None:
        """Everybody starts and has a stream to everybody."""
        for node in self.nodes:
            self._wake(node)

    def play(self, act: Act) -> None:
        """One act."""
        self.act = act
        self._release()
        for _ in range(act.steps):
            if self.over:
                return
            self._step()

    # --- the adversary's hands ----------------------------------------------------------------------

    def restart(self, node: Node) -> None:
        """Kill an honest peer and start it again from its checkpoint and its journal."""
        saved = node.saved
        signed = max(
            (cast("Ready", each.body).view for (kind, _), each in node.journal.items() if kind == "ready"), default=0
        )
        node.machine = self._machine(node.peer, saved, signed, node.past)
        node.inbox.clear()
        node.had.clear()
        node.said.clear()
        node.training = None
        self._wake(node)

    def lie(self, liar: PeerId, body: Body) -> Statement:
        """A liar's signature, for anything."""
        return self.scope.state(liar, body, _no_key)

    def tick(self, node: Node, *, late: float = 0.0) -> None:
        """Run one machine's clock to its deadline, or past it, and tell it."""
        node.ahead = max(node.ahead, node.machine.deadline() - self.time) + late
        self.hand(node, node.machine.tick)

    def wait(self, active: Sequence[Node]) -> None:
        """Let time pass for everybody until somebody's timer fires."""
        node = min(active, key=lambda each: each.machine.deadline() - each.ahead)
        self.time = max(self.time, node.machine.deadline() - node.ahead)
        self.hand(node, node.machine.tick)

    def _step(self) -> None:
        draw = self.draw
        ceiling = max(node.machine.head.round for node in self.honest) + LEAD
        active = [node for node in self.nodes if node.group >= 0 and node.machine.head.round <= ceiling]
        busy = [node for node in active if node.inbox or node.training]
        if not active:
            return
        if draw.random() < self.act.haste:
            self.tick(draw.choice(active), late=draw.choice(JUMPS))
            return
        if not busy:
            self.wait(active)
            return
        node = draw.choice(busy)
        if node.training is not None and (not node.inbox or draw.random() < 0.3):
            self._train(node)
            return
        if draw.random() < 0.2:
            node.inbox.rotate(-draw.randrange(len(node.inbox)))
        sender, kind, payload = node.inbox.popleft()
        if draw.random() < self.act.drop:
            if kind == "statement":
                node.had.discard(payload.hash)
            if draw.random() < 0.5:
                self.held.append((node, (sender, kind, payload)))
            return
        if kind == "statement":
            self.hand(node, partial(node.machine.receive, payload, sender))
        else:
            self.hand(node, partial(node.machine.payload, sender, kind, payload))

    def _release(self) -> None:
        """Of what was held back some comes late, some never, some even later."""
        held, self.held = list(self.held), deque(maxlen=KEPT)
        self.draw.shuffle(held)
        for node, message in held:
            fate = self.draw.random()
            if fate < 0.4:
                node.inbox.append(message)
            elif fate < 0.7:
                self.held.append((node, message))

    def _send(self, node: Node, to: PeerId, kind: str, payload: Any) -> None:
        for other in self.nodes:
            if other.peer != to or other is node or (kind == "statement" and payload.hash in other.had):
                continue
            name = payload.body.kind if kind == "statement" else kind
            deaf = id(other) in self.act.deaf and name in self.act.hidden
            if other.group == node.group and not deaf:
                other.inbox.append((node.peer, kind, payload))
                if kind == "statement":
                    other.had.add(payload.hash)
            elif other.honest:
                self.held.append((other, (node.peer, kind, payload)))

    # --- one machine --------------------------------------------------------------------------------

    def _machine(
        self, peer: PeerId, saved: Sealed | None = None, signed: int = 0, past: Image | None = None
    ) -> Machine:
        head = saved.head if saved else self.anchor
        params, momentum = (saved.params, saved.momentum) if saved else self.state
        state = params.copy(), momentum.copy()
        ages = saved.ages if saved else ()
        return Machine(
            self.scope, peer, SETTING, head, state, signed_view=signed, ages=ages, past=past, zero=self.anchor
        )

    def _wake(self, node: Node) -> None:
        drift = node.saved.drift if node.saved else None
        self.hand(node, partial(node.machine.start, drift=drift))
        for other in self.peers:
            if other != node.peer:
                self.hand(node, partial(node.machine.welcome, other))

    def _train(self, node: Node) -> None:
        effect, node.training = cast("Train", node.training), None
        seed = int.from_bytes(digest(node.peer.encode(), effect.parent)[:4], "big") + node.group * (not node.honest)
        drift = effect.drift + np.random.default_rng(seed).standard_normal(len(effect.base), dtype=np.float32)
        self.hand(node, partial(node.machine.trained, effect.parent, Window(drift, 1, 1)))

    def hand(self, node: Node, method: Callable[..., list[Effect]]) -> None:
        """Call a machine at its time and carry out what it asks for; what it refuses is the liars' pleasure."""
        try:
            effects = deque(method(now=self._now(node)))
        except RemoteError:
            return
        while effects:
            effects.extend(self._do(node, effects.popleft()))

    def _now(self, node: Node) -> float:
        return self.time + node.ahead

    def _do(self, node: Node, effect: Effect) -> Sequence[Effect]:
        match effect:
            case Sign(body):
                return self._sign(node, body)
            case Flood(statement, source):
                if statement.hash not in node.said:
                    node.said.add(statement.hash)
                    for to in self.peers:
                        if to not in {node.peer, source}:
                            self._send(node, to, "statement", statement)
            case Push(to, kind, payload):
                data = b"".join(payload)
                statement_ = self.scope.decode(data, sender=node.peer) if kind == "statement" else data
                self._send(node, to, kind, statement_)
            case Work(_, _, _, run):
                return node.machine.done(effect, run(), self._now(node))
            case Train():
                node.training = effect
            case Sealed(head):
                self._sealed(node, effect, head)
            case Final(seal) if node.honest:
                self.judge.final(seal)
            case _:
                pass
        return ()

    def _sealed(self, node: Node, effect: Sealed, head: Head) -> None:
        node.had.clear()
        node.said.clear()
        if node.honest:
            node.saved, node.past = effect, node.machine.chain
            if effect.record.synced and (final := node.machine._ctx.chain.final) is not None:
                self.judge.final(final.seal)  # shown by somebody, and never left from now on
            self.judge.adopted(head)
            self._tempt(node, lambda: Ready(head.view + 1, head.seal, head.view, (), b"", 0, ()))
            table = head.table
            whole = table.lasting(table.members, head.round)
            self.over = self.over or (self.bound and 3 * table.lasting(self.liars, head.round) >= whole)

    def _sign(self, node: Node, body: Body) -> Sequence[Effect]:
        slot = (body.kind, body.slot())
        statement = node.journal.get(slot) if node.honest else None
        statement = statement or self.scope.state(node.peer, body, _no_key)
        if node.honest:
            node.journal[slot] = statement
            self.judge.signed(statement)
        if isinstance(body, Seal):
            name, view = self.judge.proposed(body), body.view
            self._tempt(node, lambda: Vote(view, name))
        try:
            return node.machine.receive(statement, None, self._now(node))
        except RemoteError:
            return ()

    def _tempt(self, near: Node, make: Callable[[], Body]) -> None:
        """Liars say more of what ``near`` likes to hear, to its half alone."""
        for liar in self.liars:
            if self.draw.random() < 0.6:
                statement = self.lie(liar, make())
                for node in self.honest:
                    if node.group == near.group:
                        node.inbox.append((liar, "statement", statement))


def _no_key(_raw: bytes) -> bytes:
    return bytes(64)


def next_act(arena: Arena) -> Act:
    """A random act: a split in which each half hears its own face of every liar, somebody cut off, messages hidden."""
    draw, honest = arena.draw, arena.honest
    mode = draw.choice(("split", "split", "split", "whole", "whole", "hide", "hide", "lone"))
    for node in honest:
        node.group = draw.randrange(2) if mode == "split" else 0
    if mode == "lone":
        draw.choice(honest).group = draw.choice((1, 1, -1))
    deal(arena, 1 if mode in {"whole", "hide"} else 2)
    if draw.random() < RESTARTS:
        arena.restart(draw.choice(honest))
    hidden = frozenset(draw.sample(KINDS, draw.randrange(1, 4))) if mode == "hide" else frozenset()
    deaf = frozenset(id(each) for each in draw.sample(arena.nodes, draw.randrange(1, len(arena.nodes))))
    steps = draw.randrange(*STEPS) * len(arena.peers) // 4
    return Act(steps, draw.choice((0.0, 0.0, 0.02, 0.1)), draw.choice((0.0, 0.01, 0.05)), hidden, deaf)


def halves(arena: Arena) -> Act:
    """The act made to fork: two equal halves that do not hear each other, every liar honest to each of them."""
    for place, node in enumerate(arena.draw.sample(arena.honest, len(arena.honest))):
        node.group = place % 2
    for place, node in enumerate(arena.faces):
        node.group = place % arena.many if place % arena.many < 2 else -1
    return Act(HALVES * len(arena.peers) // 4, 0.0, 0.0, frozenset(), frozenset())


def deal(arena: Arena, groups: int) -> None:
    """Give each group one face of each liar, or none; the others hear nothing and grow stale."""
    by: dict[PeerId, list[Node]] = {}
    for node in arena.faces:
        node.group = -1
        by.setdefault(node.peer, []).append(node)
    for own in by.values():
        picked = arena.draw.sample(own, min(groups, len(own)))
        for group, node in enumerate(picked):
            node.group = group if arena.draw.random() < 0.9 else -1


def run(seed: int, count: int, liars: int, *, acts: int = 4) -> Judge:
    """One play, the halves at a random place in it. Raises ``Broken``."""
    arena = Arena(seed, count, liars)
    arena.begin()
    fork = arena.draw.randrange(acts)
    for number in range(acts):
        arena.play(halves(arena) if number == fork else next_act(arena))
    return arena.judge
