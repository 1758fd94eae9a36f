"""One virtual peer: a round machine, and what carries out its effects on virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from protocols.errors import RemoteError
from protocols.ids import PeerId
from protocols.messages import Commit
from protocols.round.effects import (
    DropPart,
    Effect,
    Final,
    Flood,
    Followed,
    Histories,
    KeepChunk,
    LoadPart,
    Notice,
    Phase,
    Push,
    Sealed,
    Sign,
    Syncing,
    Train,
    Trouble,
    Votes,
    Window,
    Work,
)
from protocols.round.machine import Machine
from protocols.statements import Statement

from ..swarm.victim import Fate, Victim
from .invariants import Shadow, Violation
from .wire import wired

if TYPE_CHECKING:
    from protocols.state_payloads import StateChunk

    from .storage import Disk
    from .world import World

Forge = Callable[[PeerId, str, bytes], "list[tuple[str, bytes]] | None"]
"""A liar's part: (to, kind, payload) of a frame → the frames to send in its place; None leaves it as it is."""
SIZES_EVERY = 64
"""Calls of a machine between two looks at what it stores."""
READ_S = 0.1
"""To read from the disk what came of a state."""
SPIN = 100
"""Ticks of one machine in one instant that are too many."""


class VirtualPeer:
    """One incarnation: a process from its start to its death. Its disk may outlive it."""

    def __init__(self, world: World, disk: Disk) -> None:
        self.world, self.disk, self.peer = world, disk, disk.identity.peer
        self.alive = self.honest = True
        self.forge: Forge | None = None
        keep = world.plan.keep or None
        self.sealed: deque[Sealed] = deque(maxlen=keep)
        self.final: deque[Final] = deque(maxlen=keep)
        self.troubles: deque[Trouble] = deque(maxlen=None if keep is None else 64)
        self.finished = False
        self._training, self._restarted, self._unsure = False, True, False
        self._frozen: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        self._alarm, self._rang, self._spin, self._calls = inf, -inf, 0, 0
        saved = disk.checkpoints[-1] if disk.checkpoints else None
        head = saved.head if saved else world.anchor
        state = (saved.params.copy(), saved.momentum.copy()) if saved else world.plan.first()
        self._drift = saved.drift.copy() if saved else None
        ages = saved.ages if saved else ()
        self.head, self.depth = head, world.rules.links[head.seal].depth
        self.shadow = Shadow(np.zeros_like(state[0]) if self._drift is None else self._drift, ages)
        links = tuple(each.head for each in disk.checkpoints if each.head.round < head.round)
        self.machine = self._mortal(
            Machine(
                *(world.plan.scope, self.peer, world.plan.setting, head, state),
                signed_view=disk.journal.signed_view,
                links=links,
                ages=ages,
                part=disk.part[0].seal if disk.part else None,
                past=disk.chain,
                zero=world.anchor,
            )
        )
        self._do: dict[type[Any], Callable[[Any], list[Effect] | None]] = {
            Sign: self._sign,
            Flood: self._flood,
            Push: self._push,
            Work: self._work,
            Train: self._train,
            Sealed: self._on_sealed,
            Final: self._on_final,
            Phase: self._on_phase,
            Trouble: self._on_trouble,
            Votes: lambda _: None,
            Syncing: lambda _: None,
            Histories: lambda _: None,
            Notice: lambda _: None,
            Followed: lambda _: None,
            KeepChunk: self._keep_chunk,
            LoadPart: self._load_part,
            DropPart: lambda _: self.disk.part.clear(),
        }

    # --- inputs -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; after a restart from the disk."""
        self._call(self.machine.start, self._now, self._drift)

    def finish(self) -> None:
        """Train no more, and help the others to make the head final."""
        if self.alive and not self.finished:
            self.finished = True
            self._call(self.machine.finish, self._now)

    def on_frame(self, sender: PeerId, kind: str, payload: Any) -> None:
        """A frame arrived: bytes, or a statement that was flooded."""
        if not self.alive:
            return
        if self._frozen is not None:
            self._frozen.append((self.on_frame, (sender, kind, payload)))
        elif kind != "statement":
            self._call(self.machine.payload, sender, kind, payload, self._now, blame=sender)
        else:
            try:
                known = isinstance(payload, Statement)
                statement = payload if known else self.world.plan.scope.decode(payload, sender=sender)
            except RemoteError as error:
                self.world.refuse(self.peer, sender, error)
                return
            self._call(self.machine.receive, statement, sender, self._now, blame=sender)

    def on_stream(self, neighbour: PeerId, open_: bool) -> None:
        """A stream to a neighbour opened or closed."""
        if not self.alive:
            return
        if self._frozen is not None:
            self._frozen.append((self.on_stream, (neighbour, open_)))
        elif open_:
            self._call(self.machine.welcome, neighbour, self._now)
        else:
            self._call(self.machine.left, neighbour, self._now)

    def freeze(self) -> None:
        """Stop handling anything."""
        if self._frozen is None:
            self._frozen = []

    def thaw(self) -> None:
        """Handle everything that came meanwhile."""
        waiting, self._frozen = self._frozen or [], None
        for call, arguments in waiting:
            if self.alive:
                call(*arguments)

    def die(self) -> None:
        """The process is gone, with all that it held; only the disk stays."""
        self.alive = False
        del self.machine

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Do what the machine asks, and what that leads to."""
        queue = deque(effects)
        while queue and self.alive:
            effect = queue.popleft()
            queue.extend(self._do[type(effect)](effect) or ())

    # --- the machine --------------------------------------------------------------------------------

    @property
    def frozen(self) -> bool:
        """Whether it handles nothing just now."""
        return self._frozen is not None

    def _mortal(self, machine: Machine) -> Machine:
        """The machine, in the hands of those that a ``--kill`` may hit."""
        world = self.world
        if not world.faults.kills:
            return machine
        clock = world.clock
        fate = Fate(
            world.number(self.peer),
            world.faults.kills,
            world.lots,
            lambda seconds, call: clock.at(clock.now + seconds, call),
            lambda: world.kill(self),
        )
        return cast("Machine", Victim(machine, fate))

    @property
    def _now(self) -> float:
        return self.world.clock.now

    def _call(self, method: Callable[..., list[Effect]], *arguments: Any, blame: PeerId | None = None) -> None:
        """One input of the machine."""
        if not self.alive:
            return
        try:
            effects = method(*arguments)
        except RemoteError as error:
            self.world.refuse(self.peer, blame or self.peer, error)
            self._set_alarm()
            return
        if effects:
            self.carry_out(effects)
        self._calls += 1
        if self._calls % SIZES_EVERY == 0:
            self.world.rules.bounded(self.peer, self.machine.sizes())
        self._set_alarm()

    def _set_alarm(self) -> None:
        if not self.alive:
            return
        deadline = self.machine.deadline()
        if deadline < self._alarm:
            self._alarm = deadline
            self.world.clock.at(deadline, self._ring, deadline)

    def _ring(self, at: float) -> None:
        if not self.alive:
            return
        if at != self._alarm or not self.alive:
            return  # an earlier one was set meanwhile, and rang
        if self._frozen is not None:
            self._frozen.append((self._ring, (at,)))
            return
        self._alarm = inf
        if self.machine.deadline() > self._now:
            self._set_alarm()
            return
        self._spin = self._spin + 1 if self._rang == self._now else 0
        self._rang = self._now
        self._call(self.machine.tick, self._now)
        if self._spin > SPIN and self._alarm <= self._now:
            raise Violation("time_goes_on", f"the machine in {self.machine.waiting()} wants a tick again and again")

    # --- effects ------------------------------------------------------------------------------------

    def _sign(self, effect: Sign) -> list[Effect]:
        body, window = effect.body, self.machine.window
        if isinstance(body, Commit) and window is not None:
            self.disk.save_pending(body.parent, window)
        statement = self.disk.journal.sign(self.world.plan.scope, self.disk.identity, body, self.machine.head.round + 1)
        if self.honest:
            self.world.rules.no_double_signature(statement)
        self.world.say(self.peer, "signs", body.kind)
        try:
            return self.machine.receive(statement, None, self._now)
        except RemoteError as error:
            return [Trouble(self.peer, f"refused its own {body.kind}: {error.text}")]

    def _flood(self, effect: Flood) -> None:
        statement, size = wired(self.world.plan.scope, effect.statement)
        if self.forge is not None:
            for to in self.world.network.neighbours(self.peer):
                if to != effect.source:
                    self._send(to, "statement", effect.statement.encode())
            return
        self.world.network.flood(self.peer, statement, size)

    def _push(self, effect: Push) -> None:
        payload = b"".join(effect.payload)
        if effect.kind == "statement" and self.forge is None and self.honest:
            statement = self.world.plan.scope.decode(payload, sender=self.peer)
            self.world.network.send(self.peer, effect.to, effect.kind, statement, len(payload))
        else:
            self._send(effect.to, effect.kind, payload)

    def _send(self, to: PeerId, kind: str, payload: bytes) -> None:
        frames = self.forge(to, kind, payload) if self.forge is not None else None
        for each, data in [(kind, payload)] if frames is None else frames:
            self.world.network.send(self.peer, to, each, data, len(data))

    def _work(self, effect: Work) -> None:
        value = effect.run()
        low, high = self.world.plan.work_s
        self.world.clock.at(self._now + self.world.draw.uniform(low, high), self._worked, effect, value)

    def _worked(self, effect: Work, value: object) -> None:
        if not self.alive:
            return
        if self._frozen is not None:
            self._frozen.append((self._worked, (effect, value)))
        else:
            self._call(self.machine.done, effect, value, self._now)

    def _train(self, effect: Train) -> list[Effect] | None:
        if self._training:
            raise Violation("one_window", f"round {effect.round}: asked to train while a window is in progress")
        if self.finished:
            return None
        pending = self.disk.pending.get(effect.parent) if self._restarted else None
        self._restarted = False
        window = pending or self.world.plan.trainer(self.peer, effect)
        if window is None:
            self.finished = True
            return self.machine.finish(self._now)
        self._training = True
        seconds = 0.0 if pending else self.world.pace(self.peer, effect)
        self.world.clock.at(self._now + seconds, self._trained, effect, window)
        return None

    def _trained(self, effect: Train, window: Window) -> None:
        if self._frozen is not None:
            self._frozen.append((self._trained, (effect, window)))
        elif self.alive and not self.finished:  # what was in progress at the end is not waited for
            self._training = False
            self.shadow.trained(effect, window)
            if self._unsure:  # a jump may have made it useless
                self._unsure, self.shadow.drift = False, None
            self._call(self.machine.trained, effect.parent, window, self._now)

    def _on_sealed(self, effect: Sealed) -> None:
        self.sealed.append(effect)
        self.disk.save(effect)
        self.disk.chain = self.machine.chain
        self.world.network.forget(self.peer)
        self.world.on_sealed(self, effect)
        if effect.record.synced and self._training:
            self._unsure = True
            self.shadow.drift = None  # what becomes of a window begun before, only the next seal tells

    def _keep_chunk(self, effect: KeepChunk) -> None:
        chunk, part = effect.chunk, self.disk.part
        if part and part[0].seal != chunk.seal:
            part.clear()
        self.world.rules.chunk_kept_once(self.peer, part, chunk)
        part.append(replace(chunk, data=bytes(chunk.data)))

    def _load_part(self, effect: LoadPart) -> None:
        chunks = [each for each in self.disk.part if each.seal == effect.seal]
        self.world.clock.at(self._now + READ_S, self._resumed, chunks)

    def _resumed(self, chunks: list[StateChunk]) -> None:
        if self._frozen is not None:
            self._frozen.append((self._resumed, (chunks,)))
        elif self.alive:
            self._call(self.machine.resumed, chunks, self._now)

    def _on_final(self, effect: Final) -> None:
        self.final.append(effect)
        self.world.on_final(self, effect)

    def _on_phase(self, effect: Phase) -> None:
        self.world.on_phase(self, effect)

    def _on_trouble(self, effect: Trouble) -> None:
        self.troubles.append(effect)
        self.world.say(self.peer, "trouble", effect.text)
