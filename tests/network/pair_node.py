"""What tests run in a home of the lab: the network layers of daemons, without training, each with a run of its own.

pair_node.py FOLDER 0|1 LIGHTHOUSE
    reads numbers from stdin; each begins, in a run of its own, one of the two peers that this run has, and ends it
    when it comes again. Whenever that changes, prints as JSON the number, by what this peer is connected with the other
    one, whether its stream to it is open, and when that was (``time.monotonic``, which all processes share).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer.identity import Identity
from peer.network import Network
from peer.options import UpOptions
from peer.paths import Home
from protocols.ids import PeerId
from tests.peer.board import Board

if TYPE_CHECKING:
    from peer.session import Session

POLL_S = 0.05


class Rounds:
    """In place of a session: takes nothing."""

    async def on_frame(self, sender: PeerId, kind: str, payload: bytes) -> None:
        """A frame of a round."""

    def on_neighbours(self, neighbours: frozenset[PeerId]) -> None:
        """Who has a stream."""

    def stand(self, *, direct: bool) -> None:
        """Whether others can dial this peer."""


def key(number: int, side: int) -> Identity:
    """That of one of two peers."""
    return Identity.from_seed(bytes(30) + bytes([number, side + 1]))


async def tell(network: Network, number: int, other: PeerId) -> None:
    """Print what changes, for ever: from p2pd itself, so that no look of the network's is hurried by it."""
    before: tuple[str, bool] | None = None
    while True:
        with contextlib.suppress(Exception):  # p2pd is being restarted
            ends = await network.transport.control.connected(network.transport.peer)
            kinds = {"relayed" if "/p2p-circuit" in end else "direct" for peer, end in ends if peer == other}
            line = network.lines().get(other)
            kind = min(kinds, default="")
            now = ("punched" if kind and line and line.kind == "punched" else kind, line is not None)
            if now != before:
                before = now
                told = {"number": number, "kind": now[0], "open": now[1], "at": time.monotonic()}
                sys.stdout.write(json.dumps(told) + "\n")
                sys.stdout.flush()
        await asyncio.sleep(POLL_S)


async def run(folder: Path, number: int, side: int, lighthouse: str) -> None:
    """One peer, until it is cancelled."""
    own, other = key(number, side), PeerId(key(number, 1 - side).peer)
    home = Home(folder / str(number))
    home.create()
    own.save(home.key)
    board: Any = Board.of(own.peer)
    session: Session | Any = Rounds()
    members = frozenset({PeerId(own.peer), other})
    options = UpOptions(home=home.root)
    network = Network(options, home, bytes(31) + bytes([number]), own, board, members=lambda: members)
    try:
        await network.start([lighthouse])
        await network.attach(session)
        await tell(network, number, other)
    finally:
        await network.close()


async def main(folder: Path, side: int, lighthouse: str) -> None:
    """Begin what stdin tells."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    running: dict[int, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while line := await reader.readline():
            if (task := running.get(int(line))) is not None:
                task.cancel()
            else:
                running[int(line)] = group.create_task(run(folder, int(line), side, lighthouse))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
