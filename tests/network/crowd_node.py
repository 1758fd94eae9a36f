"""One process of the crowd: several joiners, each with a key, a p2pd and the daemon's own network, without training.

Prints JSON lines. ``{"ready": true}`` once everything is imported; then reads one line, the times at which its joiners
start (CLOCK_MONOTONIC, which all processes share), and tells of each what became so and when: ``started``, ``seed``
(the lighthouse answered), ``met`` (it holds another contributor's record), ``stands`` (it has published addresses, a
circuit's behind a NAT). With ``--founder`` its only joiner is the founder, which also tells whose record it reads in
the directory, and from when on: ``record``. It runs until it is ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from peer.identity import Identity
from peer.network import Network
from peer.options import UpOptions
from peer.paths import Home
from protocols.ids import PeerId
from tests.peer.board import Board

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = bytes(range(32))
LOOK_S = 0.1
READ_S = 1.0
"""Between two looks of the founder's into the directory."""


def key_of(number: int) -> Identity:
    """The key of joiner ``number``; 0 is the founder."""
    return Identity.from_seed(number.to_bytes(32, "big"))


FOUNDER = PeerId(key_of(0).peer)


def tell(**what: Any) -> None:
    """One line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Session:
    """In place of the daemon's: rounds are none of this."""

    async def on_frame(self, *_: object) -> None:
        """Nobody sends any."""

    def stand(self, *, direct: bool) -> None:
        """Whether it can be dialled."""

    def on_neighbours(self, neighbours: frozenset[PeerId]) -> None:
        """Who is connected."""


@dataclass
class Joiner:
    """One volunteer."""

    number: int
    folder: Path
    seeds: list[str]
    told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        key, home = key_of(self.number), Home(self.folder / str(self.number))
        home.create()
        key.save(home.key)
        self.board, self.peer = Board.of(key.peer), PeerId(key.peer)
        board: Any = self.board
        members = frozenset({FOUNDER})
        self.network = Network(UpOptions(home=home.root), home, RUN, key, board, members=lambda: members)

    async def join(self, at: float) -> None:
        """Start at this time, enter the rounds, and tell what becomes so."""
        await asyncio.sleep(at - time.monotonic())
        self.say("started")
        await self.network.start(self.seeds)
        session: Any = Session()
        await self.network.attach(session)
        while not self.told >= self.stages().keys():
            for name, holds in self.stages().items():
                if holds():
                    self.say(name)
            await asyncio.sleep(LOOK_S)

    def stages(self) -> dict[str, Callable[[], bool]]:
        """What has to become so."""
        return {
            "seed": lambda: any(seed.state == "ok" for seed in self.network.seeds()),
            "met": lambda: bool(self.network.known().keys() - {self.peer}),
            "stands": lambda: bool(self.board.status.reach.addresses),
        }

    def say(self, name: str, peer: str = "") -> None:
        """Tell something, once."""
        if name + peer not in self.told:
            self.told.add(name + peer)
            tell(joiner=self.number, peer=peer or self.peer, stage=name, at=time.monotonic())

    async def read(self) -> None:
        """The founder's: tell whose record can be read, once it names addresses."""
        while True:
            for record in await self.network._directory.peers():
                if record.addresses and "contributor" in record.roles:
                    self.say("record", record.peer)
            await asyncio.sleep(READ_S)


async def crowd(joiners: list[Joiner], *, founder: bool) -> None:
    """Let all of them join, and stay."""
    tell(ready=True)
    starts: list[float] = json.loads(await asyncio.to_thread(sys.stdin.readline))
    async with asyncio.TaskGroup() as tasks:
        for joiner, at in zip(joiners, starts, strict=True):
            tasks.create_task(joiner.join(at))
        if founder:
            tasks.create_task(joiners[0].read())
        await asyncio.Event().wait()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--join", required=True)
    parser.add_argument("--numbers", type=int, nargs="+", required=True)
    parser.add_argument("--founder", action="store_true")
    given = parser.parse_args()
    path, line = given.folder / f"node-{given.numbers[0]}.log", "%(asctime)s %(name)s: %(message)s"
    logging.basicConfig(filename=path, level=logging.INFO, format=line)
    joiners = [Joiner(number, given.folder, [given.join]) for number in given.numbers]
    uvloop.run(crowd(joiners, founder=given.founder))


if __name__ == "__main__":
    main()
