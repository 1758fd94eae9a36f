"""What goes wrong in a virtual swarm, and when: planned from the seed, by rounds made rather than by the clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..swarm.plan import Kill

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from protocols.ids import PeerId

    from .peer import VirtualPeer
    from .world import World

__all__ = ["Faults", "Injector", "Kill", "Lots"]

SPREAD_S = 40.0
"""A fault happens up to so long after its round began."""
AWAY_S = (5.0, 90.0)
"""How long who restarts is away."""
FROZEN_S = (5.0, 60.0)
PARTED_S = (60.0, 150.0)
SLOW = 1 / 200
"""Share of the others' uplink that a slow peer has."""
SPARE = 0.72
"""Share of the voters' weight that must be left for a death by chance."""
RETRY_S, RETRIES = 30.0, 20


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How much goes wrong. Half of the deaths are power cuts, which nobody is told of for half a minute.

    ``restarts`` is the share of the dead that come back, ``fresh`` of them without their disk and so with a new key.
    ``split``: the share of peers on the smaller side of a partition, drawn from this range.
    """

    loss: float = 0.0
    deaths: int = 0
    restarts: float = 0.5
    fresh: float = 0.5
    joins: int = 0
    partitions: int = 0
    split: tuple[float, float] = (0.1, 0.3)
    frozen: int = 0
    slow: int = 0
    kills: tuple[Kill, ...] = ()
    join_at: tuple[int, ...] = ()
    journal: bool = True
    """Without a journal whoever restarts signs anew: shows what it prevents."""


class Lots:
    """Who dies of which kill, within one process."""

    def __init__(self) -> None:
        self._dead: dict[int, int] = {}

    def claim(self, number: int, kill: Kill, index: int) -> bool:
        """See ``Claims.claim``."""
        if list(self._dead.values()).count(number) >= kill.count or index in self._dead:
            return False
        self._dead[index] = number
        return True

    def taken(self) -> dict[int, int]:
        """Peer → number of the kill that it died of."""
        return dict(self._dead)


class Injector:
    """Carries the faults out."""

    def __init__(self, world: World, faults: Faults, draw: Random) -> None:
        self._world, self._faults, self._draw = world, faults, draw
        self._cut: set[PeerId] = set()
        self._plan = self._planned(world.rounds)
        self.open = len(self._plan)
        """Faults that have not happened, or are not over."""

    def _planned(self, rounds: int) -> deque[tuple[int, float, int, Callable[[], None]]]:
        faults, draw = self._faults, self._draw
        kinds: list[tuple[int, Callable[[], None]]] = [
            (faults.deaths, self._die),
            (faults.joins, self._join),
            (faults.partitions, self._part),
            (faults.frozen, self._freeze),
        ]
        last = max(1, rounds - 1)
        plan = [(draw.randrange(last), draw.uniform(0, SPREAD_S), call) for count, call in kinds for _ in range(count)]
        plan += [(number - 1, 1.0, self._join) for number in faults.join_at]
        return deque(sorted((depth, after, number, call) for number, (depth, after, call) in enumerate(plan)))

    def begin(self) -> None:
        """Before the first round: who is slow, what happens in round 1."""
        for peer in self._draw.sample(list(self._world.peers), min(self._faults.slow, len(self._world.peers))):
            self._world.network.slow(peer, SLOW)
        self.reached(0)

    def reached(self, depth: int) -> None:
        """So many rounds were made: what is planned for the next happens soon."""
        clock = self._world.clock
        while self._plan and self._plan[0][0] <= depth:
            _, after, _, call = self._plan.popleft()
            clock.at(clock.now + after, call)

    # --- deaths -------------------------------------------------------------------------------------

    def _die(self, tries: int = RETRIES) -> None:
        world, draw = self._world, self._draw
        able = [peer for peer in world.living() if self._can_spare(peer)]
        if not able and tries:
            world.clock.at(world.clock.now + RETRY_S, self._die, tries - 1)
            return
        if able:
            peer = draw.choice(able)
            silent = draw.random() < 0.5
            world.kill(peer, silent=silent)
            if draw.random() < self._faults.restarts:
                self.open += 1
                disk = draw.random() >= self._faults.fresh
                world.clock.at(world.clock.now + draw.uniform(*AWAY_S), self._return, peer, disk)
        self._over()

    def _return(self, peer: VirtualPeer, with_disk: bool) -> None:
        if with_disk:
            self._world.restart(peer, journal=self._faults.journal)
        else:
            self._world.join()
        self._over()

    def _can_spare(self, peer: VirtualPeer) -> bool:
        table = self._world.newest().table
        there = [each.peer for each in self._world.living() if self._there(each) and each is not peer]
        return table.weigh(there) >= SPARE * table.weigh(table.voters)

    def _there(self, peer: VirtualPeer) -> bool:
        return not peer.frozen and peer.peer not in self._cut

    # --- the rest -----------------------------------------------------------------------------------

    def _join(self) -> None:
        self._world.join()
        self._over()

    def _part(self) -> None:
        world, draw = self._world, self._draw
        if self._cut:  # one at a time
            world.clock.at(world.clock.now + RETRY_S, self._part)
            return
        living = [each.peer for each in world.living()]
        self._cut = set(draw.sample(living, max(1, round(len(living) * draw.uniform(*self._faults.split)))))
        world.say(None, "partition", f"{len(self._cut)} of {len(living)}")
        world.network.part(self._cut)
        world.clock.at(world.clock.now + draw.uniform(*PARTED_S), self._heal)

    def _heal(self) -> None:
        self._cut = set()
        self._world.network.heal()
        self._world.say(None, "partition", "heals")
        self._over()

    def _freeze(self) -> None:
        able = [each for each in self._world.living() if not each.frozen and self._can_spare(each)]
        if not able:
            self._over()
            return
        peer = self._draw.choice(able)
        peer.freeze()
        self._world.say(peer.peer, "freezes", "")
        self._world.clock.at(self._world.clock.now + self._draw.uniform(*FROZEN_S), self._thaw, peer)

    def _thaw(self, peer: VirtualPeer) -> None:
        peer.thaw()
        self._over()

    def _over(self) -> None:
        self.open -= 1
        self._world.check_end()
