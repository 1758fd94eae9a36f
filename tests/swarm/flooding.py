"""A hostile client: ``python -m tests.swarm.flooding --run HEX --seconds N ADDRESS…`` does what it can to real daemons.

It opens connections, streams and handshakes, sends junk statements that are well signed, garbage frames, directory
records and requests for chains, states and blobs, all as fast as it can, and takes a new key every few seconds. It
runs at the lowest priority: machines of a test are one, those of a flood are not. Prints one JSON line: attempts that
went through and that failed, of each kind, and the CPU seconds of its own processes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from msgpack import packb

from dht.control import Control
from dht.handshake import Hello, encode_hello
from dht.p2pd import P2pd, P2pdConfig
from dht.records import PeerRecord, encode_record, expiration_of, key_of
from dht.transport import PROTOCOL_ID, StreamTransport, TransportConfig
from peer.blob_fetch import PROTOCOL as BLOBS
from peer.identity import Identity
from peer.settings import CELL
from protocols.chain_payloads import AskChain
from protocols.errors import TransportError
from protocols.frames import Header, encode_header
from protocols.ids import Hash, PeerId
from protocols.messages import Ready
from protocols.statements import Scope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LIFE_S = 4.0
"""Until the next key."""
AT_ONCE = 4
"""Of each kind, to each target."""
WAIT_S = 5.0
_TROUBLE = (TransportError, OSError, EOFError, asyncio.IncompleteReadError, TimeoutError, RuntimeError)


@dataclass
class Flooder:
    """One key's attack on some daemons."""

    run: bytes
    key: Identity
    transport: StreamTransport
    control: Control
    targets: list[str]
    done: Counter[str]
    failed: Counter[str]
    subtle: bool
    """Breaks no rule but those about how much."""
    made: int = field(default=0)

    def attacks(self) -> dict[str, Callable[[PeerId, str], Awaitable[None]]]:
        """All kinds, by name."""
        broken = {} if self.subtle else {"garbage": self.garbage}
        return broken | {
            "connections": self.connection,
            "streams": self.stream,
            "handshakes": self.handshake,
            "statements": self.statements,
            "requests": self.requests,
            "blobs": self.blobs,
            "stores": self.store,
            "finds": self.find,
        }

    async def attack(self) -> None:
        """All kinds at all targets, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for address in self.targets:
                for name, attack in self.attacks().items():
                    for _ in range(1 if name == "connections" else AT_ONCE):
                        group.create_task(self._again(name, attack, address))

    async def _again(self, name: str, attack: Callable[[PeerId, str], Awaitable[None]], address: str) -> None:
        peer = PeerId(address.rpartition("/p2p/")[2])
        while True:
            try:
                async with asyncio.timeout(WAIT_S):
                    await attack(peer, address)
                self.done[name] += 1
            except Exception as error:  # whatever it is refused with
                self.failed[name] += 1
                if not isinstance(error, _TROUBLE) and "Handler" not in type(error).__name__:
                    self.failed[repr(error)[:80]] += 1
                with contextlib.suppress(TransportError):
                    await self.control.dial(peer, [address])
            await asyncio.sleep(0)

    async def connection(self, peer: PeerId, address: str) -> None:
        """A new connection, then none."""
        await self.control.dial(peer, [address])
        await asyncio.sleep(0.02)
        await self.control.disconnect(peer)

    async def stream(self, peer: PeerId, _: str) -> None:
        """A stream on which nothing is said."""
        _reader, writer = await self.control.open(peer, PROTOCOL_ID)
        await asyncio.sleep(0)
        writer.transport.abort()

    async def handshake(self, peer: PeerId, _: str) -> None:
        """A proper hello, and goodbye."""
        (await self._greeted(peer, PROTOCOL_ID)).transport.abort()

    async def statements(self, peer: PeerId, _: str) -> None:
        """Statements that nobody can tell from a member's before the signature is checked."""
        scope = Scope(self.run, CELL)
        bodies = []
        for _number in range(32):
            self.made += 1
            bodies.append(Ready(2 + self.made, Hash(os.urandom(32)), 1 + self.made, (), b"", 0, ()))
        payloads = [scope.state(self.key.peer, body, self.key.sign).encode() for body in bodies]
        await self._send(peer, PROTOCOL_ID, [self._frame("statement", each) for each in payloads])

    async def requests(self, peer: PeerId, _: str) -> None:
        """Everything on the chain, again and again."""
        ask = self._frame("ask-chain", AskChain((Hash(os.urandom(32)),)).encode())
        await self._send(peer, PROTOCOL_ID, [ask] * 32)

    async def blobs(self, peer: PeerId, _: str) -> None:
        """Requests for a blob that nobody has."""
        await self._send(
            peer, BLOBS, [self._frame("ask-blob", packb({"hash": os.urandom(32), "length": 1, "offset": 0}))]
        )

    async def garbage(self, peer: PeerId, _: str) -> None:
        """A megabyte of nothing after a proper hello."""
        await self._send(peer, PROTOCOL_ID, [os.urandom(1 << 20)])

    async def store(self, peer: PeerId, _: str) -> None:
        """A good record of the longest kind, and fifteen that are none."""
        self.made += 1
        now = time.time()
        addresses = tuple(f"/dns4/{number}/" + "x" * 480 for number in range(16))
        record = PeerRecord(
            self.run, self.key.peer, addresses, (), "", 0, int(now * 1000) + self.made, int(now) + 60 + self.made % 60
        )
        good = packb(encode_record(record, self.key.sign))
        request = dht_pb2.StoreRequest(
            keys=[DHTID.generate(source=key_of(self.run)).to_bytes()] * 16,
            subkeys=[packb(self.key.peer)] * 16,
            values=[good, *[good[:-1] + b"x"] * 15],
            expiration_time=[expiration_of(record)] * 16,
            in_cache=[False] * 16,
            peer=dht_pb2.NodeInfo(node_id=DHTID.generate().to_bytes()),
        )
        await self._call(peer, "rpc_store", request)

    async def find(self, peer: PeerId, _: str) -> None:
        """The whole directory, under a new node id each time."""
        keys = [DHTID.generate(source=key_of(self.run)).to_bytes()] * 8
        request = dht_pb2.FindRequest(keys=keys, peer=dht_pb2.NodeInfo(node_id=DHTID.generate().to_bytes()))
        await self._call(peer, "rpc_find", request)

    async def _call(self, peer: PeerId, method: str, request: Any) -> None:
        client = self.transport.p2p._client.control
        await client.call_unary_handler(PeerID.from_base58(peer), f"DHTProtocol.{method}", request.SerializeToString())

    def _frame(self, kind: str, payload: bytes) -> bytes:
        return encode_header(Header(kind, self.run, len(payload))) + payload

    async def _greeted(self, peer: PeerId, protocol: str) -> asyncio.StreamWriter:
        reader, writer = await self.control.open(peer, protocol)
        try:
            writer.write(encode_hello(Hello(self.run, "murmuration 0.1.0")))
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "little"))
        except BaseException:
            writer.transport.abort()
            raise
        return writer

    async def _send(self, peer: PeerId, protocol: str, frames: list[bytes]) -> None:
        writer = await self._greeted(peer, protocol)
        try:
            for frame in frames:
                writer.write(frame)
                await writer.drain()
            await asyncio.sleep(0.05)
        finally:
            writer.transport.abort()


async def flood(run: bytes, targets: list[str], seconds: float) -> dict[str, object]:
    """Attack with one key after the other; what came of it."""
    done: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    end, keys = time.monotonic() + seconds, 0
    with tempfile.TemporaryDirectory(prefix="murmur-flood-") as folder:
        while time.monotonic() < end:
            keys += 1
            key, home = Identity.from_seed(os.urandom(32)), Path(folder) / str(keys)
            key.save(home / "key")
            transport = StreamTransport(TransportConfig(run, "flood"), _unheard)
            async with P2pd(P2pdConfig(home, home / "key", host="127.0.0.1")) as p2pd:
                _yield_to_others(p2pd.pid)
                await transport.start(p2pd.control, in_rounds=False)
                control = Control(p2pd.control.removeprefix("/unix"), WAIT_S)
                flooder = Flooder(run, key, transport, control, targets, done, failed, subtle=keys % 2 == 1)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(LIFE_S, max(0.1, end - time.monotonic()))):
                        await flooder.attack()
                await p2pd.retire()
                await transport.close()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(each.ru_utime + each.ru_stime for each in used)
    return {"done": dict(done), "failed": dict(failed), "keys": keys, "seconds": seconds, "cpu_s": round(cpu, 2)}


async def _unheard(*_: object) -> None:
    pass


def _yield_to_others(pid: int | None) -> None:
    """Lowest priority for a process, its session's share included (autogroups have a priority of their own)."""
    os.setpriority(os.PRIO_PROCESS, pid or 0, 19)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(pid or 0, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid or 'self'}/autogroup").write_text("19")


def main() -> None:
    """Flood, then say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("address", nargs="+")
    given = parser.parse_args()
    _yield_to_others(None)
    found = uvloop.run(flood(bytes.fromhex(given.run), given.address, given.seconds))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
