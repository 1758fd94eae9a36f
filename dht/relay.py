"""The circuit relay as a process of its own: ``python -m dht.relay``, started by ``relay_process``.

One line of JSON on its input tells it what to be: ``{"key": FILE, "listen": [MULTIADDR…], "announce": [MULTIADDR…],
"limits": {…}}`` (``relay_limits.RelayLimits``). Later lines ``{"allow": [PEER…] | null}`` say who may reserve. It
writes ``{"event": "ready", "peer": …, "addresses": […]}``, then once a second ``{"event": "figures", …}``, or
``{"event": "error", "text": …, "remedy": …}`` and ends. It also ends when its input does: then its parent has died.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from protocols.errors import ConfigError, EnvironmentFault, MurmurError

from .relay_door import Door
from .relay_hop import Circuits
from .relay_limits import Admission, RelayLimits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LINE = 1 << 20
"""Bytes of a line from the parent."""
FIGURES_S = 1.0
BACKLOG = 256

_KEY = bytes.fromhex("08011240")


@dataclass(frozen=True, slots=True)
class Given:
    """The first line, checked."""

    key: Path
    listen: tuple[tuple[str, int], ...]
    announce: tuple[str, ...]
    limits: RelayLimits


def main() -> None:
    """Serve until the input ends or SIGTERM comes; exit code 0, or that of the error told."""
    out = os.dup(1)
    os.dup2(2, 1)  # a library that prints does not talk to our parent
    os.set_blocking(out, False)
    try:
        trio.run(_main, out)
    except MurmurError as error:
        say(out, "error", text=str(error), remedy=error.remedy)
        sys.exit(2 if isinstance(error, ConfigError) else 5)


async def _main(out: int) -> None:
    lines = _lines()
    given = parse(await anext(lines, b""))
    seed = read_seed(given.key)
    keys = create_new_key_pair(seed)
    own = ID.from_pubkey(keys.public_key)
    admission = Admission(given.limits)
    announced = [Multiaddr(each) for each in given.announce]
    suffix = Multiaddr(f"/p2p/{own}")
    circuits = Circuits(keys.private_key, own, admission, [each.encapsulate(suffix).to_bytes() for each in announced])
    door = Door(keys, admission, circuits, [each.to_bytes() for each in announced])
    listeners = [await _listen(host, port) for host, port in given.listen]
    told = trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT)  # before our parent hears that we are ready
    with told as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_told, signals, nursery.cancel_scope)
            nursery.start_soon(_orders, lines, admission, nursery.cancel_scope)
            nursery.start_soon(circuits.run)
            for listener in listeners:
                nursery.start_soon(trio.serve_listeners, door.admit, [listener])
            say(out, "ready", peer=str(own), addresses=[_address(listener) for listener in listeners])
            await _tell(out, admission, circuits)


def parse(line: bytes) -> Given:
    """The first line; raises ConfigError."""
    try:
        value = json.loads(line)
        key, listen = Path(value["key"]), tuple(_endpoint(each) for each in value["listen"])
        announce = tuple(str(Multiaddr(each)) for each in value.get("announce", ()))
        if any("/p2p/" in each for each in announce):
            raise ValueError("an announced address with a peer id")
        limits = RelayLimits.parse(value.get("limits", {}))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"the relay's configuration is none: {error!r}", remedy="this is a bug") from error
    if not listen:
        raise ConfigError("the relay has no address to listen on", remedy="give one with --listen")
    return Given(key, listen, announce, limits)


def read_seed(path: Path) -> bytes:
    """The 32 secret bytes of a key file: these alone, or a libp2p ``PrivateKey`` as ``peer.identity`` writes it."""
    remedy = f"restore {path} from a backup, or move it away"
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise EnvironmentFault(f"cannot read the key {path}: {error.strerror}", remedy=remedy) from error
    if len(raw) == 32:
        return raw
    if len(raw) != len(_KEY) + 64 or not raw.startswith(_KEY):
        raise EnvironmentFault(f"{path} does not hold a libp2p Ed25519 key", remedy=remedy)
    return raw[4:36]


def say(out: int, event: str, **values: Any) -> None:
    """One line for the parent; dropped when it reads nothing, for a relay does not wait for it."""
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
        os.write(out, json.dumps({"event": event, **values}).encode() + b"\n")  # whole: shorter than PIPE_BUF


async def _tell(out: int, admission: Admission, circuits: Circuits) -> None:
    began = then = trio.current_time()
    before = 0
    while True:
        await trio.sleep(FIGURES_S)
        now, count = trio.current_time(), circuits.bytes
        say(
            out,
            "figures",
            unix=time.time(),
            up_s=now - began,
            connections=admission.connections,
            reservations=admission.reservations(now),
            circuits=admission.circuits,
            opened=admission.opened,
            bytes=count,
            bytes_per_s=(count - before) / (now - then),
            refused=dict(admission.refused),
            ended=dict(circuits.ended),
        )
        then, before = now, count


async def _lines() -> AsyncIterator[bytes]:
    """The parent's lines, until its end."""
    buffer = b""
    async with trio.lowlevel.FdStream(os.dup(0)) as source:
        while data := await source.receive_some(1 << 16):
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                yield line
            if len(buffer) > LINE:
                raise ConfigError("a line without end", remedy="this is a bug")


async def _orders(lines: AsyncIterator[bytes], admission: Admission, scope: trio.CancelScope) -> None:
    async for line in lines:
        value = json.loads(line)["allow"]
        admission.allow(None if value is None else frozenset(map(str, value)))
    scope.cancel()


async def _until_told(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    await anext(signals)
    scope.cancel()


async def _listen(host: str, port: int) -> trio.SocketListener:
    try:
        (listener,) = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        raise EnvironmentFault(
            f"the relay cannot listen on {host} port {port}: {error.strerror or error}",
            remedy="stop the program that uses it, or choose another --listen",
        ) from error
    return listener


def _endpoint(multiaddr: str) -> tuple[str, int]:
    """Host and port of ``/ip4/…/tcp/…`` or ``/ip6/…/tcp/…``; raises ValueError."""
    parts = multiaddr.split("/")
    if len(parts) != 5 or parts[1] not in {"ip4", "ip6"} or parts[3] != "tcp":
        raise ValueError(f"{multiaddr} is no TCP address")
    return parts[2], int(parts[4])


def _address(listener: trio.SocketListener) -> str:
    host, port = listener.socket.getsockname()[:2]
    return f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}"


if __name__ == "__main__":
    main()
