"""``murmur up`` for a peer that may have to die: the same daemon, ended by SIGKILL where a ``--kill`` says so.

Its round machine is wrapped: effects are looked at on their way out, before the session carries out any of them.
Only ``murmur swarm`` starts this program.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from protocols.errors import ConfigError
from protocols.round.effects import Phase, Sign, Train

from .. import cli
from .plan import Kill, parse_kill

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from protocols.round.effects import Effect
    from protocols.round.machine import Machine

TRAINING_S = 0.05
"""From a sign that training goes on to death in the midst of it."""
_INPUTS = frozenset(
    {"start", "trained", "receive", "payload", "done", "tick", "welcome", "left", "finish", "pause", "resume"}
)


class Claims(Protocol):
    """Who dies of which kill, agreed upon by all peers of a swarm."""

    def claim(self, number: int, kill: Kill, index: int) -> bool:
        """Whether peer ``index`` is to die of the swarm's kill ``number``; False when enough others do."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Who dies of which kill, agreed upon by the daemons of one swarm through files that only one can create."""

    folder: Path

    def claim(self, number: int, kill: Kill, index: int) -> bool:
        """Whether peer ``index`` is to die of the swarm's kill ``number``; False when enough others do."""
        for slot in range(kill.count):
            try:
                file = os.open(self.folder / f"{number}-{slot}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                continue
            os.write(file, b"%d\n" % index)
            os.close(file)
            return True
        return False

    def taken(self) -> dict[int, int]:
        """Peer → number of the kill that it dies, or died, of."""
        found = {}
        for path in self.folder.iterdir():
            text = path.read_text()
            if text.endswith("\n"):  # else it is just being written
                found[int(text)] = int(path.name.partition("-")[0])
        return found


@dataclass(frozen=True, slots=True)
class Fate:
    """What may happen to one peer: the swarm's kills in their order, and the means to carry them out."""

    index: int
    kills: Sequence[Kill]
    tokens: Claims
    later: Callable[[float, Callable[[], None]], object]
    """Call something after so many seconds."""
    die: Callable[[], None]

    def mine(self) -> list[tuple[int, Kill]]:
        """The kills that may hit this peer, with their numbers."""
        return [(number, kill) for number, kill in enumerate(self.kills) if kill.index in (None, self.index)]


class Victim:
    """Stands in for a machine: all it is asked goes on to the machine, and what that answers may be the end."""

    def __init__(self, machine: Machine, fate: Fate) -> None:
        self._machine, self._fate = machine, fate
        self._armed: set[int] = set()
        """Kills in training whose round has begun."""
        self._timed: set[int] = set()
        """Those of them for which training itself has begun."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._machine, name)
        return partial(self._ask, found) if name in _INPUTS else found

    def _ask(self, method: Callable[..., list[Effect]], *args: Any, **kwargs: Any) -> list[Effect]:
        if self._armed and not self._inside(method.__name__, args):
            self._approach(method.__name__)
        effects = method(*args, **kwargs)
        for effect in effects:
            self._look(effect)
        return effects

    def _look(self, effect: Effect) -> None:
        for number, kill in self._fate.mine():
            if self._reached(kill, effect) and self._has_role(kill):
                if kill.phase != "train":
                    self._strike(number)
                else:
                    self._armed.add(number)

    @staticmethod
    def _inside(name: str, args: tuple[Any, ...]) -> bool:
        """Whether the session asks while it carries out effects: a statement of its own, or that it will finish."""
        return name == "finish" or (name == "receive" and args[1] is None)

    def _approach(self, name: str) -> None:
        """A new input: all effects before it are carried out, so the trainer is at work, or done just now."""
        for number in sorted(self._armed):
            if name == "trained":
                self._strike_training(number)
            elif number not in self._timed:
                self._timed.add(number)
                self._fate.later(TRAINING_S, partial(self._strike_training, number))

    def _reached(self, kill: Kill, effect: Effect) -> bool:
        """Whether ``effect`` is the instant that ``kill`` names.

        Where the phase begins with a statement of one's own it is that one, and it is not signed any more.
        """
        signs = kill.phase == "commit" or (kill.who == "coordinator" and kill.phase in ("roster", "seal"))
        match effect:
            case Sign(body):
                return signs and body.kind == kill.phase and self._round() == kill.round
            case Phase(number, name):
                return not signs and name == kill.phase and number == kill.round
            case Train():
                return kill.phase == "train" and self._round() == kill.round
            case _:
                return False

    def _has_role(self, kill: Kill) -> bool:
        machine = self._machine
        match kill.who:
            case "coordinator":
                return machine.coordinator == machine.me
            case "reducer":
                return machine.cast is not None and machine.me in machine.cast.working
            case "contributor":  # before there is a roster everybody will be one
                return machine.cast is None or machine.me in machine.cast.rows
            case _:
                return True

    def _strike_training(self, number: int) -> None:
        if self._round() == self._fate.kills[number].round:
            self._strike(number)

    def _strike(self, number: int) -> None:
        if self._fate.tokens.claim(number, self._fate.kills[number], self._fate.index):
            self._fate.die()

    def _round(self) -> int:
        """The round in flight."""
        return self._machine.head.round + 1


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _arguments() -> tuple[argparse.Namespace, dict[str, Any]]:
    """This program's own flags, and those of the ``up`` that follows them."""
    own = argparse.ArgumentParser(description=__doc__)
    own.add_argument("--index", type=int, required=True)
    own.add_argument("--tokens", type=Path, required=True)
    own.add_argument("--kill", type=parse_kill, action="append", required=True)
    own.add_argument("up", nargs=argparse.REMAINDER)
    given = own.parse_args()
    arguments = vars(cli.parser().parse_args(given.up))
    del arguments["version"], arguments["command"]
    return given, arguments


def main() -> NoReturn:
    """The daemon, and its end."""
    try:
        given, arguments = _arguments()
    except ConfigError as error:
        sys.exit(cli.report(error))

    def wrap(machine: Machine) -> Machine:
        later = asyncio.get_running_loop().call_later
        fate = Fate(given.index, given.kill, Tokens(given.tokens), later, _die)
        return cast("Machine", Victim(machine, fate))

    sys.exit(cli.guarded(partial(cli.run_up, wrap=wrap), arguments))


if __name__ == "__main__":
    main()
