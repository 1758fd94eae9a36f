"""p2pd killed and frozen under the whole network layer: real p2pd, streams and directory, without training."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from dht.connections import ways
from dht.p2pd import PROBE_S
from peer.identity import Identity
from peer.network import Network
from peer.options import UpOptions
from peer.outbox import Limits, Outbox
from peer.paths import Home
from tests.peer.board import Board

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from protocols.ids import PeerId

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

RUN = bytes(range(32))
MIB = 1 << 20
KEYS = [Identity.from_seed(bytes(31) + bytes([number])) for number in range(1, 5)]


class Peer:
    """One network, and in place of a session what it is told: frames, and who came and left."""

    def __init__(self, folder: Path, key: Identity, peers: list[Peer], limits: Limits | None) -> None:
        """One more beside ``peers``, the first of which it joins."""
        home = Home(folder / key.peer[-4:])
        home.create()
        key.save(home.key)
        board: Any = Board.of(key.peer)
        options = UpOptions(home=home.root, listen="127.0.0.1")
        self.seeds = [each.address for each in peers[:1]]
        members = frozenset(each.peer for each in KEYS)
        self.network = Network(options, home, RUN, key, board, members=lambda: members)
        self.outbox = Outbox(self.network.transport, limits)
        self.peer = key.peer
        self.told: list[tuple[str, PeerId]] = []
        self.frames: list[bytes] = []
        self.reading = asyncio.Event()
        self.reading.set()
        self.changed: asyncio.Event = peers[0].changed if peers else asyncio.Event()

    async def on_frame(self, sender: PeerId, kind: str, payload: bytes) -> None:
        await self.reading.wait()
        self.frames.append(payload)
        self.changed.set()

    def stand(self, *, direct: bool) -> None:
        assert direct, "nobody has found it out of reach"

    def on_neighbours(self, neighbours: frozenset[PeerId]) -> None:
        arrived, gone = self.outbox.connect(neighbours)
        self.told += [("left", peer) for peer in gone] + [("arrived", peer) for peer in arrived]
        self.changed.set()

    @property
    def address(self) -> str:
        return self.network.transport.addresses()[0]

    @property
    def p2pd(self) -> int:
        pid = self.network._p2pd.pid
        assert pid is not None
        return pid


@contextlib.asynccontextmanager
async def swarm(folder: Path, count: int, limits: Limits | None = None) -> AsyncIterator[list[Peer]]:
    """Peers that found each other through the first one's directory; all are connected both ways."""
    async with contextlib.AsyncExitStack() as stack:
        peers: list[Peer] = []
        for key in KEYS[:count]:
            each = Peer(folder, key, peers, limits)
            peers.append(each)
            stack.push_async_callback(each.outbox.close)
            stack.push_async_callback(each.network.close)
            session: Any = each
            await each.network.start(each.seeds)
            await each.network.attach(session)
        await until(lambda: complete(peers), 30, peers[0].changed)
        for each in peers:
            each.told.clear()
        yield peers


def neighbours(peer: Peer) -> frozenset[PeerId]:
    return peer.network.transport.neighbours()


def figures(text: str) -> None:
    """For whoever runs this with ``-s``."""
    sys.stdout.write(f"\n{text}\n")


async def until(condition: Callable[[], bool], within: float, changed: asyncio.Event) -> float:
    """Seconds until ``condition`` holds, looked at whenever something came or went anywhere."""
    began = time.monotonic()
    async with asyncio.timeout(within):
        while not condition():
            changed.clear()
            await changed.wait()
    return time.monotonic() - began


def complete(peers: list[Peer]) -> bool:
    """Whether each has an open stream to every other."""
    return all(len(neighbours(each)) == len(peers) - 1 for each in peers)


async def broken_and_back(peers: list[Peer], victim: Peer, within: float) -> float:
    """Seconds until the victim's streams broke on all sides and are open again; everybody was told of both."""
    others = [each for each in peers if each is not victim]
    pairs = [(each, victim.peer) for each in others] + [(victim, each.peer) for each in others]

    def told(each: Peer, peer: PeerId) -> list[str]:
        return [what for what, about in each.told if about == peer]

    took = await until(
        lambda: all(told(*pair)[:1] == ["left"] and told(*pair)[-1] == "arrived" for pair in pairs) and complete(peers),
        within,
        victim.changed,
    )
    for each in others:
        assert {peer for _, peer in each.told} == {victim.peer}, "streams between the others are not touched"
    for each in peers:
        each.told.clear()
    return took


async def transports(peers: list[Peer]) -> set[str]:
    """What the connections of all of them run over."""
    ends = [await each.network.transport.control.connected(each.peer) for each in peers]
    return {connection.transport for each in ends for end in each for connection in ways([end], ()).values()}


async def said(sender: Peer, to: Peer, text: bytes) -> None:
    """A frame gets there."""
    sender.outbox.post(to.peer, "statement", [text])
    await until(lambda: text in to.frames, 5, to.changed)


def test_p2pd_killed_again_and_again_has_its_streams_back_within_5_s(tmp_path: Path) -> None:
    """The victim is a peer that the others dialled, too: it learns their addresses from the directory."""

    async def scenario() -> None:
        async with swarm(tmp_path, 4) as peers:
            for number, victim in enumerate([peers[3], peers[0], peers[3], peers[3]]):
                os.kill(victim.p2pd, signal.SIGKILL)
                took = await broken_and_back(peers, victim, 15)
                figures(f"kill -9 {number}: streams back after {took:.2f} s")
                assert took < 5
                await said(victim, peers[1], b"from %d" % number)
                await said(peers[1], victim, b"to %d" % number)
                assert await transports(peers) == {"tcp"}, "of a connection over QUIC a death is noticed late"
            assert peers[3].network._p2pd.restarts == 3

    asyncio.run(scenario())


def test_frozen_p2pd_is_ended_and_has_its_streams_back_within_25_s(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with swarm(tmp_path, 3) as peers:
            frozen = psutil.Process(peers[1].p2pd)
            frozen.suspend()
            for text in (b"under way", b"waiting"):  # nobody who sends meanwhile is held up
                peers[0].outbox.post(peers[1].peer, "statement", [text])
            took = await broken_and_back(peers, peers[1], 40)
            figures(f"SIGSTOP: streams back after {took:.2f} s")
            assert PROBE_S < took < 25
            assert not frozen.is_running() and peers[1].network._p2pd.restarts == 1
            await said(peers[1], peers[0], b"from")
            await said(peers[0], peers[1], b"to")

    asyncio.run(scenario())


def test_a_daemon_with_a_frozen_p2pd_ends_soon(tmp_path: Path) -> None:
    async def scenario() -> float:
        async with swarm(tmp_path, 2) as peers:
            frozen = psutil.Process(peers[1].p2pd)
            frozen.suspend()
            began = time.monotonic()
            await peers[1].network.close()
            assert not frozen.is_running()
            return time.monotonic() - began

    assert asyncio.run(scenario()) < 5


def test_a_peer_that_reads_slowly_bounds_nobodys_memory(tmp_path: Path) -> None:
    """600 MiB for a peer that never reads, over and over; a third one gets its frames all the while."""

    async def scenario() -> None:
        async with swarm(tmp_path, 3, Limits(each=16 * MIB, all=64 * MIB)) as (sender, slow, reader):
            slow.reading.clear()
            process, most, waiting = psutil.Process(), 0, 0
            daemon = psutil.Process(sender.p2pd)
            before = (process.memory_info().rss, daemon.memory_info().rss)
            for number in range(600):
                sender.outbox.post(slow.peer, "parts", [os.urandom(MIB)])
                sender.outbox.post(reader.peer, "statement", [b"%d" % number])
                waiting = max(waiting, sender.outbox.waiting)
                await asyncio.sleep(0.01)
                most = max(most, process.memory_info().rss)
            await until(lambda: len(reader.frames) == 600, 10, reader.changed)
            grown = daemon.memory_info().rss - before[1]
            lost = sender.told.count(("left", slow.peer))
            figures(f"let go {lost} times, {waiting >> 20} MiB waited, +{most - before[0]:,} and p2pd +{grown:,} B")
            assert lost >= 3 and waiting <= 18 * MIB
            assert most - before[0] < 200 * MIB and grown < 200 * MIB
            assert ("left", reader.peer) not in sender.told
            slow.reading.set()
            await until(lambda: complete([sender, slow, reader]), 30, slow.changed)
            await said(sender, slow, b"at last")

    asyncio.run(scenario())
