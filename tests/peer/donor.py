"""``murmur up`` for tests of joining: the daemon, but it gives states slowly or lies to newcomers, and takes notes.

Its round machine is wrapped as for ``murmur swarm --kill``: what goes into it is noted, and what it sends to others may
wait or be bent. States come in smaller chunks, so that a small model has many.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from peer import cli
from peer.identity import Identity
from peer.paths import Home
from protocols import outer
from protocols.chain_payloads import ChainReply
from protocols.round.effects import Push
from protocols.state_payloads import StateChunk, WantState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from protocols.messages import Seal
    from protocols.ports import Buffer
    from protocols.round.effects import Effect
    from protocols.round.machine import Machine

CHUNK_BYTES = 16 << 10
"""40 chunks of nano. All daemons of a test's run must have it: the root in every seal depends on it."""
FAR = 2_000_000
INPUTS = frozenset({"start", "trained", "receive", "payload", "done", "tick", "welcome", "left", "finish", "resumed"})


@dataclass(frozen=True)
class Habits:
    """How one donor differs: seconds a chunk on its line, what it lies about ("", "chain", "state"), its notes."""

    seconds: float
    lie: str
    notes: Path
    identity: Identity

    def note(self, what: str, peer: str, indices: tuple[int, ...]) -> None:
        """Write a line that the test reads."""
        with self.notes.open("a") as file:
            file.write(json.dumps({"at": time.time(), "what": what, "peer": peer, "indices": indices}) + "\n")


class Donor:
    """Stands in for a machine: all it is asked goes on to the machine, and what that sends goes out its own way."""

    def __init__(self, machine: Machine, habits: Habits) -> None:
        self._machine, self._habits = machine, habits
        self._line: deque[tuple[float, Push]] = deque()
        """Chunks on their way out, and when each is there."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._machine, name)
        return partial(self._ask, found) if name in INPUTS else found

    def deadline(self) -> float:
        """See ``Machine.deadline``."""
        return min(self._machine.deadline(), self._line[0][0] if self._line else inf)

    def _ask(self, method: Callable[..., list[Effect]], *args: Any, **kwargs: Any) -> list[Effect]:
        if method.__name__ == "payload":
            self._note(*args[:3])
        effects = method(*args, **kwargs)
        return [*(out for each in effects for out in self._sends(each)), *self._arrived()]

    def _note(self, sender: str, kind: str, payload: bytes) -> None:
        if kind == "want-state":
            self._habits.note("asked", sender, WantState.decode(payload, sender=sender).indices)
        elif kind == "state":
            self._habits.note("came", sender, (StateChunk.decode(payload, sender=sender).index,))

    def _sends(self, effect: Effect) -> Iterator[Effect]:
        if not isinstance(effect, Push):
            yield effect
        elif effect.kind == "state" and self._habits.lie == "state":
            yield replace(effect, payload=nonsense(effect))
        elif effect.kind == "state" and self._habits.seconds:
            before = self._line[-1][0] if self._line else time.monotonic()
            self._line.append((before + self._habits.seconds, effect))
        elif effect.kind == "chain" and self._habits.lie == "chain" and self._is_new(effect):
            yield replace(effect, payload=self._far(effect))
        else:
            yield effect

    def _arrived(self) -> Iterator[Effect]:
        while self._line and self._line[0][0] <= time.monotonic():
            yield self._line.popleft()[1]

    def _is_new(self, effect: Push) -> bool:
        return effect.to not in self._machine.head.table.members

    def _far(self, effect: Push) -> list[Buffer]:
        """A chain whose seals are all of round 2,000,000, signed by this peer."""
        scope, me = self._machine._ctx.scope, self._habits.identity
        reply = ChainReply.decode(joined(effect), scope, sender=me.peer)
        self._habits.note("lied", effect.to, ())
        links = []
        for link in reply.links:
            body = replace(cast("Seal", link.proposal.body), round=FAR)
            links.append(replace(link, proposal=scope.state(me.peer, body, me.sign)))
        return [replace(reply, links=tuple(links)).encode()]


def joined(effect: Push) -> bytes:
    """The payload in one piece."""
    return b"".join(bytes(each) for each in effect.payload)


def nonsense(effect: Push) -> list[Buffer]:
    """The same chunk with NaN in place of every number."""
    chunk = StateChunk.decode(joined(effect), sender="itself")
    return replace(chunk, data=np.full(len(chunk.data) // 4, np.nan, dtype="<f4").tobytes()).encode()


def main() -> NoReturn:
    """The daemon, until it is stopped."""
    own = argparse.ArgumentParser(description=__doc__)
    own.add_argument("--seconds", type=float, default=0.0)
    own.add_argument("--lie", choices=("chain", "state"), default="")
    own.add_argument("--notes", type=Path, required=True)
    own.add_argument("up", nargs=argparse.REMAINDER)
    given = own.parse_args()
    outer.CHUNK_BYTES = CHUNK_BYTES
    arguments = vars(cli.parser().parse_args(given.up))
    del arguments["version"], arguments["command"]

    def wrap(machine: Machine) -> Machine:
        identity = Identity.load_or_create(Home(arguments["home"]).key)
        return cast("Machine", Donor(machine, Habits(given.seconds, given.lie, given.notes, identity)))

    sys.exit(cli.guarded(partial(cli.run_up, wrap=wrap), arguments))


if __name__ == "__main__":
    main()
