"""One peer of the benchmark of rounds: real p2pd, streams, session, journal, machine; its trainer waits for a word.

Reads JSON lines on its standard input and answers in JSON lines. What it does not do is write vectors to the disk: the
yardstick does not either, and a disk's speed is none of the data plane's. Signatures are journalled as ever.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import asyncio
import json
import logging
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import uvloop

from dht.p2pd import P2pd, P2pdConfig
from dht.transport import StreamTransport, TransportConfig
from peer.identity import Identity
from peer.journal import Journal
from peer.memory import keep_freed, reserve, spare_loaded
from peer.outbox import Limits, Outbox
from peer.session import Session
from peer.settings import round_bytes
from peer.state import StateStore
from peer.windows import Parts
from protocols.outer import state_root
from protocols.round.chain import seal_zero
from protocols.round.effects import Phase, Sealed, Setting, Trouble, Window
from protocols.round.machine import Machine
from protocols.statements import Scope

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from protocols.ids import PeerId
    from protocols.round.effects import Train, Vector

SCOPE = Scope(b"r" * 32, "model")
PATIENCE_S = 120.0


def identity(number: int) -> Identity:
    """The key of node ``number``, from 0."""
    return Identity.from_seed(bytes([number + 1]) * 32)


class NoVectors(StateStore):
    """Keeps none: see the module."""

    def save(self, *_: object) -> None:
        """Nothing."""

    def save_pending(self, *_: object) -> None:
        """Nothing."""


class Node:
    """One peer, its rounds' times, and what it used meanwhile."""

    def __init__(self, number: int, peers: int, values: int, codecs: tuple[str, str]) -> None:
        self.number, self.values = number, values
        self.keys = [identity(each) for each in range(peers)]
        self.setting = Setting(
            values=values, update_codec=codecs[0], result_codec=codecs[1], rule="default", tolerated=1 / 3, lr=0.7,
            momentum=0.8, probation=0, open=False, allowed=frozenset(key.peer for key in self.keys),
        )  # fmt: skip
        self.draw = np.random.default_rng(number)
        self.words = {word: asyncio.Event() for word in ("fill", "go")}
        self.complete = asyncio.Event()
        self.round: dict[str, Any] = {}
        self.drift: Vector | None = None
        self.p2pd = 0
        self.transport: StreamTransport | None = None
        self.due: int | None = None
        """Bytes still to come while frames are only moved; None in a round."""
        self.came = asyncio.Event()

    def say(self, what: str, **fields: Any) -> None:
        """A line to whoever started this."""
        sys.stdout.write(json.dumps({"what": what, **fields}) + "\n")
        sys.stdout.flush()

    def on_effect(self, effect: object) -> None:
        """See ``session.Observer``."""
        if isinstance(effect, Phase) and effect.name in {"apply", "seal"}:
            self.round.setdefault({"apply": "results", "seal": "computed"}[effect.name], time.monotonic())
        elif isinstance(effect, Trouble):
            self.say("trouble", text=f"{effect.peer}: {effect.text}")

    async def on_sealed(self, effect: Sealed) -> bool:
        """See ``session.Observer``."""
        end = time.monotonic()
        record = effect.record
        used = {name: now - self.round[name] for name, now in self._used().items()}
        self.say(
            "sealed", **{**self.round, **used}, end=end, seconds=record.seconds, state=record.state.hex(),
            contributors=len(record.contributors), payload=record.payload[0], void=record.void,
            peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )  # fmt: skip
        return True

    def on_disk(self, error: Exception | None) -> None:
        """See ``session.Observer``."""
        self.say("trouble", text=f"disk: {error}")

    async def train(self, effect: Train) -> Window:
        """Wait for two words: one to train, upon which the yardstick too fills its vector, one to end with it."""
        self.say("waiting")
        await self._told("fill")
        fresh = self.draw.standard_normal(self.values, dtype=np.float32)
        fresh *= np.float32(0.01)
        fresh += effect.drift
        self.say("filled")
        await self._told("go")
        self.round = {"start": time.monotonic(), **self._used()}
        return Window(fresh, 1, 1)

    async def _told(self, word: str) -> None:
        await self.words[word].wait()
        self.words[word].clear()

    def _used(self) -> dict[str, float]:
        """CPU seconds of this process (of them in its event loop, in the kernel) and its p2pd, faults, bytes sent."""
        times = psutil.Process(self.p2pd).cpu_times()
        used = resource.getrusage(resource.RUSAGE_SELF)
        assert self.transport is not None
        return {
            "cpu": time.process_time(),
            "loop": time.thread_time(),
            "p2pd": times.user + times.system,
            "system": used.ru_stime,
            "faults": used.ru_minflt,
            "sent": self.transport.traffic().sent,
        }

    async def run(self, home: Path) -> None:
        """Until standard input ends."""
        key = self.keys[self.number]
        key.save(home / "key")
        store = NoVectors(home / "run", SCOPE, self.values)
        journal = Journal(store.journal_path, SCOPE, key.peer, key.sign)
        state = np.linspace(-1, 1, self.values, dtype=np.float32), np.zeros(self.values, dtype=np.float32)
        head = seal_zero(SCOPE, [each.peer for each in self.keys], state_root(*state))
        machine = Machine(SCOPE, key.peer, self.setting, head, state)
        self.transport = transport = StreamTransport(
            TransportConfig(SCOPE.run, "bench"),
            lambda sender, kind, payload: self._on_frame(session, sender, kind, payload),
            on_neighbours=lambda neighbours: self._on_neighbours(session, neighbours),
            members=lambda: frozenset(each.peer for each in self.keys),
        )
        reserve(round_bytes(self.setting))
        outbox = Outbox(transport, Limits.of(4 * self.values))
        session = Session(Parts(SCOPE, machine, journal, store, self.train, time.monotonic), self, outbox)
        async with P2pd(P2pdConfig(home, home / "key", host="127.0.0.1")) as p2pd:
            assert p2pd.pid is not None
            self.p2pd = p2pd.pid
            await transport.start(p2pd.control)
            running = asyncio.create_task(session.run())
            flags = [each for each in psutil.Process(self.p2pd).cmdline()[1:] if "/" not in each]
            self.say("up", address=transport.addresses()[0], flags=flags)
            orders = asyncio.create_task(self._obey(transport))
            await asyncio.wait({running, orders}, return_when="FIRST_COMPLETED")
            for each in (running, orders):
                each.cancel()
            for result in await asyncio.gather(running, orders, return_exceptions=True):
                if isinstance(result, Exception):
                    self.say("trouble", text=repr(result))
            await p2pd.retire()
            await outbox.close()
            await transport.close()

    def _on_frame(self, session: Session, sender: PeerId, kind: str, payload: bytes) -> Awaitable[None]:
        return session.on_frame(sender, kind, payload) if self.due is None else self._take(len(payload))

    async def _take(self, size: int) -> None:
        assert self.due is not None
        self.due -= size
        if self.due <= 0:
            self.came.set()

    async def _move(self, size: int, frames: int) -> None:
        """Give every other peer so many frames of ``size`` bytes, and take theirs, looking at none of them."""
        transport = self.transport
        assert transport is not None
        others = [key.peer for key in self.keys if key.peer != self.keys[self.number].peer]
        payload = [bytes([4, 0, 0, 0]), self.draw.bytes(size - 4)]  # the length of a head, the head and numbers
        start, before = time.monotonic(), self._used()

        async def feed(peer: PeerId) -> None:
            for _ in range(frames):
                await transport.send(peer, "parts", payload)

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(feed(peer) for peer in others))
            await self.came.wait()
        used = {name: now - before[name] for name, now in self._used().items()}
        self.say("moved", start=start, end=time.monotonic(), **used)

    def _on_neighbours(self, session: Session, neighbours: frozenset[PeerId]) -> None:
        session.on_neighbours(neighbours)
        if len(neighbours) == len(self.keys) - 1:
            self.complete.set()

    async def _obey(self, transport: StreamTransport) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            order = json.loads(line)
            if order["what"] == "connect":
                for address in order["addresses"]:
                    await self._connect(transport, address)
                async with asyncio.timeout(PATIENCE_S):
                    await self.complete.wait()
                self.say("connected")
            elif order["what"] == "brace":
                self.due = order["frames"] * order["frame"] * (len(self.keys) - 1)
                self.came.clear()
                self.say("braced")
            elif order["what"] == "move":
                await self._move(order["frame"], order["frames"])
            else:
                self.words[order["what"]].set()

    async def _connect(self, transport: StreamTransport, address: str) -> None:
        peer: PeerId = address.rpartition("/p2p/")[2]  # type: ignore[assignment]
        if peer != self.keys[self.number].peer:
            await transport.connect(peer, [address])


def main() -> None:
    """One node: its number, how many there are, values, codecs, folder."""
    logging.basicConfig(level=logging.WARNING)
    number, peers, values, update, result, folder = sys.argv[1:]
    keep_freed()
    spare_loaded()
    node = Node(int(number), int(peers), int(values), (update, result))
    Path(folder).mkdir(parents=True)
    profile = os.environ.get("ROUND_PROFILE")
    if profile and node.number == 0:
        import cProfile  # noqa: PLC0415 - only where asked for

        found = cProfile.Profile()
        found.runcall(uvloop.run, node.run(Path(folder)))
        found.dump_stats(profile)
    else:
        uvloop.run(node.run(Path(folder)))


if __name__ == "__main__" and len(sys.argv) > 1:  # round.py starts it
    main()
