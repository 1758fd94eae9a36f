"""How this machine looks from outside, asked by a p2pd of the doctor's own: ``python -m peer.doctor_outside WISH``.

WISH is JSON, ``{"home": FOLDER, "run": HEX, "port": 0, "addresses": [MULTIADDR…], "relays": [MULTIADDR…]}``. The key is
a new one that nobody knows, so nothing that it does is taken for the daemon's. Prints one line, ``{"port": 0,
"observers": [{"peer", "seen", "found", "error"}], "relays": [{"peer", "connect_s", "rtt_s", "error"}]}``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from dht import reach, rtt
from dht.directory import Directory
from dht.knock import endpoint
from dht.p2pd import P2pd, P2pdConfig
from dht.relay_choice import relay_address
from dht.stream import Timing
from dht.transport import StreamTransport, TransportConfig
from protocols.errors import MurmurError, TransportError
from protocols.ids import PeerId
from protocols.invitation import split

if TYPE_CHECKING:
    from collections.abc import Sequence

OBSERVERS, RELAYS = 4, 4
"""That are asked at most."""
DIAL_S = 5.0
ASK_S = 9.0
"""For an observer to be reached, and to dial back."""
SEED_S, RECORDS_S = 5.0, 4.0
"""For an address to lead into the directory, and for what it names."""
CONNECT_S = 3.0
LOOK_S = 0.1


def main() -> None:
    """Ask, print, end."""
    logging.disable(logging.CRITICAL)
    wish = json.loads(sys.argv[1])
    tempfile.tempdir = wish["home"]  # whoever kills this process removes that
    sys.stdout.write(json.dumps(uvloop.run(look(wish))) + "\n")


async def look(wish: dict[str, Any]) -> dict[str, Any]:
    """What main prints; raises MurmurError where p2pd cannot be started."""
    config = P2pdConfig(Path(wish["home"]), None, wish["port"], quic=True, maps=False)
    run = bytes.fromhex(wish["run"])
    async with AsyncExitStack() as stack:
        p2pd = P2pd(config)
        await p2pd.start()
        stack.push_async_callback(p2pd.stop)
        software = f"murmuration {version('murmuration')}, doctor"
        transport = StreamTransport(TransportConfig(run, software, Timing(dial_s=DIAL_S)), _no_frames)
        await transport.start(p2pd.control, in_rounds=False)
        stack.push_async_callback(transport.close)
        stack.push_async_callback(p2pd.retire)
        outside = _Outside(transport, p2pd.port, run)
        observers = await outside.observed(wish["addresses"])  # first, for who is dialled over TCP sees no UDP end
        answered = {each["peer"] for each in observers if not each["error"]}
        doors = [each for each in wish["addresses"] if split(each)[1] in answered]
        return {"port": p2pd.port, "observers": observers, "relays": await outside.relays(doors, wish["relays"])}


class _Outside:
    """Questions through one transport."""

    def __init__(self, transport: StreamTransport, port: int, run: bytes) -> None:
        self._transport, self._port, self._run = transport, port, run

    async def observed(self, addresses: Sequence[str]) -> list[dict[str, Any]]:
        """How the first peers of these addresses see this end, over QUIC where they listen for it."""
        known: dict[PeerId, list[str]] = {}
        for each in addresses:
            if "/p2p-circuit" not in each:
                known.setdefault(PeerId(split(each)[1]), []).append(each)
        chosen = dict(list(known.items())[:OBSERVERS])
        self._transport.routes.by_quic = frozenset(chosen)
        return list(await asyncio.gather(*(self._observed(peer, at) for peer, at in chosen.items())))

    async def _observed(self, peer: PeerId, at: Sequence[str]) -> dict[str, Any]:
        try:
            reply = await reach.ask(self._transport, peer, (f"/tcp/{self._port}",), at=at, within=ASK_S)
        except MurmurError as error:
            return {"peer": peer, "seen": "", "found": "", "error": str(error).removeprefix(f"{peer}: ")}
        found = reply.outcomes[0].found if reply.outcomes else ""
        return {"peer": peer, "seen": reply.observed, "found": found, "error": ""}

    async def relays(self, addresses: Sequence[str], known: Sequence[str]) -> list[dict[str, Any]]:
        """How far away relays are: those ``known``, and those that the directory names."""
        relays = {PeerId(split(each)[1]): each for each in known}
        for peer, address in (await self._named(addresses)).items():
            relays.setdefault(peer, address)
        chosen = list(relays.items())[:RELAYS]
        return list(await asyncio.gather(*(self._relay(peer, address) for peer, address in chosen)))

    async def _named(self, addresses: Sequence[str]) -> dict[PeerId, str]:
        if not addresses:
            return {}
        directory = Directory(self._transport, self._run, _sign)
        await directory.start(addresses, client=True)
        try:
            for _ in range(round(SEED_S / LOOK_S)):
                if any(seed.state == "ok" for seed in directory.seeds()):
                    break
                await asyncio.sleep(LOOK_S)
            async with asyncio.timeout(RECORDS_S):
                records = await directory.records()
        except TimeoutError:
            return {}
        finally:
            await directory.close()
        relays = {PeerId(each.peer): relay_address(each.addresses, each.peer) for each in records if _relays(each)}
        return {peer: address for peer, address in relays.items() if address}

    async def _relay(self, peer: PeerId, address: str) -> dict[str, Any]:
        found: dict[str, Any] = {"peer": peer, "connect_s": None, "rtt_s": None, "error": ""}
        try:
            found["connect_s"] = await _connected(peer, address)
            await self._transport.dial(peer, [address])
            found["rtt_s"] = await rtt.ping(self._transport.control, peer)
        except MurmurError as error:
            found["error"] = str(error).removeprefix(f"{peer}: ")
        return found


def _relays(record: Any) -> bool:
    return "relay" in record.roles and not record.left


async def _connected(peer: PeerId, address: str) -> float:
    """Seconds for a TCP connection; raises TransportError."""
    where = endpoint(address)
    if where is None:
        raise TransportError(peer, "is not reached by TCP")
    began = time.perf_counter()
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(where[0], where[1], family=where[2])
    except TimeoutError as error:
        raise TransportError(peer, f"no answer within {CONNECT_S:g} s") from error
    except OSError as error:
        raise TransportError(peer, error.strerror or str(error)) from error
    seconds = time.perf_counter() - began
    writer.transport.abort()
    return seconds


def _sign(_: bytes) -> bytes:
    """Nothing is ever announced."""
    raise AssertionError("the doctor tells the directory nothing")


async def _no_frames(*_: object) -> None:
    """No round's stream is ever taken."""


if __name__ == "__main__":
    main()
