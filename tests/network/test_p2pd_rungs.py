"""Which ways lead from one bare p2pd to another, by what stands between: the ladder's rungs without the ladder."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import pytest

from dht.attachment import Attachment
from dht.control import Control
from dht.p2pd import P2pdConfig, find_binary
from dht.p2pd_command import command, environment
from protocols.errors import TransportError
from protocols.ids import PeerId
from tests.network.rulesets import Nat
from tests.network.wires import next_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.network.natlab import Lab, Online

PORT = 4001
MIB = 1 << 20
DIAL_S = 2.0
"""Without delay in the lab, whoever can be reached is reached within 0.1 s."""
SINK, ALL = "sink", b"all"
TRANSPORTS = ("tcp", "quic")

KINDS: tuple[Nat, ...] = get_args(Nat)
BLOCKED: frozenset[tuple[Nat, str]] = frozenset({("no_udp", "quic")})
"""The only way outwards that a NAT closes."""


@dataclass
class Node:
    """A started p2pd on its host."""

    host: Online
    peer: PeerId
    control: Control

    def at(self, transport: str, address: str = "") -> str:
        """Its multiaddr, at its public address or another."""
        way = f"tcp/{PORT}" if transport == "tcp" else f"udp/{PORT}/quic-v1"
        return f"/ip4/{address or self.host.public_address}/{way}"

    async def dial(self, other: Node, transport: str) -> bool:
        """Whether p2pd gets a connection with the other by this transport."""
        try:
            await self.control.dial(other.peer, [f"{other.at(transport)}/p2p/{other.peer}"])
        except TransportError:
            return False
        return True

    async def ends(self, other: Node) -> list[str]:
        """The other's ends of the connections with it, as multiaddrs."""
        return [address for peer, address in await self.control.connected(self.peer) if peer == other.peer]

    async def send(self, other: Node, size: int) -> None:
        """Send bytes, which must all arrive."""
        async with asyncio.timeout(20):
            reader, writer = await self.control.open(other.peer, SINK)
            try:
                writer.write(size.to_bytes(8, "big") + bytes(size))
                assert await reader.readexactly(len(ALL)) == ALL
            finally:
                writer.transport.abort()


async def sink(_: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take what comes, tell so, and wait until the other side has heard it."""
    await reader.readexactly(int.from_bytes(await reader.readexactly(8), "big"))
    writer.write(ALL)
    await reader.read()
    writer.close()


@contextlib.asynccontextmanager
async def started(host: Online, home: Path) -> AsyncIterator[Node]:
    """A p2pd on that host, with an identity of its own. Its control socket is a file: this process drives it."""
    home = home / host.namespace
    home.mkdir()
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="p") as folder:  # a socket's path is short
        control = f"/unix{folder}/p2pd.sock"
        flags = command(find_binary(), P2pdConfig(home, key=None, quic=True), control=control, port=PORT, relays=())
        process = host.popen(flags, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | environment(2))
        while not next_line(process.stdout).startswith("Control socket:"):
            pass
        attachment = await Attachment.open(control)
        try:
            await attachment.p2p.add_binary_stream_handler(SINK, sink)
            peer = PeerId(attachment.p2p.peer_id.to_base58())
            yield Node(host, peer, Control(control.removeprefix("/unix"), DIAL_S))
        finally:
            await attachment.close()
            process.kill()
            process.wait(10)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_public_pair_connects_directly(lab: Lab, tmp_path: Path, transport: str) -> None:
    hosts = lab.public(), lab.public()

    async def scenario() -> None:
        async with started(hosts[0], tmp_path) as one, started(hosts[1], tmp_path) as other:
            before = hosts[1].counter()
            assert await one.dial(other, transport)
            await one.send(other, MIB)
            assert await one.ends(other) == [other.at(transport)]
            assert await other.ends(one) == [one.at(transport)], "it dials from where it listens"
            assert MIB < hosts[1].counter().rx - before.rx < 1.5 * MIB

    asyncio.run(scenario())


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_homes_reach_a_public_host_but_nobody_reaches_them_first(lab: Lab, tmp_path: Path, transport: str) -> None:
    hosts = {nat: lab.home(nat) for nat in KINDS}
    publics = lab.public(), lab.public()

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            homes = {nat: await stack.enter_async_context(started(host, tmp_path)) for nat, host in hosts.items()}
            public, stranger = [await stack.enter_async_context(started(host, tmp_path)) for host in publics]
            outward = await asyncio.gather(*(home.dial(public, transport) for home in homes.values()))
            inward = await asyncio.gather(*(stranger.dial(home, transport) for home in homes.values()))
            assert dict(zip(homes, outward, strict=True)) == {nat: (nat, transport) not in BLOCKED for nat in homes}
            assert not any(inward)
            for nat in (nat for nat in homes if (nat, transport) not in BLOCKED):
                home = homes[nat]
                assert await home.ends(public) == [public.at(transport)]
                (seen,) = await public.ends(home)
                assert seen.startswith(f"/ip4/{home.host.public_address}/")
                if nat != "symmetric":
                    assert seen == home.at(transport), "it dials from where it listens, and its NAT keeps the port"
                await public.send(home, MIB)  # the other way by the home's connection

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("one", "other", "opens"),
    [
        ("port_preserving", "port_preserving", True),
        ("port_preserving", "double", True),
        ("port_preserving", "symmetric", False),
        ("port_preserving", "no_udp", False),
    ],
)
def test_two_homes_that_dial_at_once_connect_by_quic_between_port_preserving_routers(
    lab: Lab, tmp_path: Path, one: Nat, other: Nat, opens: bool
) -> None:
    hosts = lab.home(one), lab.home(other)

    async def scenario() -> None:
        async with started(hosts[0], tmp_path) as here, started(hosts[1], tmp_path) as there:
            dialled = await asyncio.gather(here.dial(there, "quic"), there.dial(here, "quic"))
            assert any(dialled) is opens
            if opens:
                await here.send(there, MIB)
                assert set(await here.ends(there)) == {there.at("quic")}
                assert set(await there.ends(here)) == {here.at("quic")}

    asyncio.run(scenario())
