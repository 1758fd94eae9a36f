"""Peers for a real relay on this machine: py-libp2p ones and p2pd ones, each in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dht.attachment import Attachment
from dht.control import Control
from dht.p2pd import die_with_parent, find_binary
from dht.tasks import end
from peer.identity import Identity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).resolve().parents[2]
NOISE, TLS = "/noise", "/tls/1.0.0"
WITHIN_S = 60.0


class PyPeer:
    """One py-libp2p peer: ``await peer("ping")``; see ``libp2p_peer`` for what it can do."""

    def __init__(self, process: asyncio.subprocess.Process, hello: dict[str, Any]) -> None:
        self.process, self.peer, self.address = process, hello["peer"], hello["addresses"][0]
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}

    async def __call__(self, do: str, **given: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"ask": number, "do": do, **given}).encode() + b"\n")
        async with asyncio.timeout(WITHIN_S):
            return await answer

    async def listen(self) -> None:
        """Take answers until it ends."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            answer = json.loads(line)
            self._waiting.pop(answer.pop("ask")).set_result(answer)


@contextlib.asynccontextmanager
async def py_peer(number: int, security: str = NOISE) -> AsyncIterator[PyPeer]:
    """A started one, whose key is made of ``number``."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-m", "tests.dht.libp2p_peer", str(number), security),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        preexec_fn=die_with_parent(),
        limit=1 << 20,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(WITHIN_S):
            peer = PyPeer(process, json.loads(await process.stdout.readline()))
        listening = asyncio.create_task(peer.listen())
        try:
            yield peer
        finally:
            await end([listening])
    finally:
        if process.returncode is None:
            process.kill()
        process.stdin.close()
        await process.wait()


class GoPeer:
    """One p2pd with a client of ours."""

    def __init__(self, identity: Identity, attachment: Attachment, control: Control) -> None:
        self.peer, self.attachment, self.control = identity.peer, attachment, control


@contextlib.asynccontextmanager
async def go_peer(home: Path, number: int, relay: str | None = None, *flags: str) -> AsyncIterator[GoPeer]:
    """A started one that nobody reaches directly; ``relay``: where it reserves."""
    identity = Identity.from_seed(number.to_bytes(32, "big"))
    home = home / str(number)
    identity.save(home / "key")
    control = f"/unix{home}/p2pd.sock"
    command = [
        str(find_binary()),
        f"-id={home}/key",
        f"-listen={control}",
        "-noListenAddrs=1",
        *("-relay=1", "-relayService=0", "-autonat=0", "-natPortMap=0", "-b=0", "-dhtClient=1", "-idleTimeout=60s"),
        *(flags or ("-noise=0", "-tls=1")),
    ]
    if relay is not None:
        command += ["-autoRelay=1", "-relayDiscovery=0", f"-trustedRelays={relay}", "-forceReachabilityPrivate"]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {"GOLOG_LOG_LEVEL": "panic"},
        preexec_fn=die_with_parent(),
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WITHIN_S):
            while not (line := await process.stdout.readline()).startswith(b"Control socket:"):
                assert line, "p2pd ended at once"
        attachment = await Attachment.open(control)
        try:
            yield GoPeer(identity, attachment, Control(control.removeprefix("/unix"), 10.0))
        finally:
            await attachment.close()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
