"""How a connection comes into the relay: socket, Noise or TLS, yamux; each step bounded and with a deadline.

py-libp2p's swarm is not used: it never gives back the slot of an inbound connection, connects to addresses that
strangers tell it, and offers connections without encryption.
"""

from __future__ import annotations

import contextlib
import logging
from socket import IPPROTO_TCP, TCP_NOTSENT_LOWAT
from typing import TYPE_CHECKING, Any

import trio
from libp2p.connection_types import ConnectionType
from libp2p.crypto.x25519 import create_new_key_pair
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as Noise
from libp2p.security.tls.transport import PROTOCOL_ID as TLS
from libp2p.security.tls.transport import TLSTransport
from multiaddr import Multiaddr

from . import relay_mux
from .relay_hop import HOP, Circuits, Visitor
from .relay_limits import Admission, End, address_key
from .relay_mux import Mux
from .relay_select import negotiate, write_message
from .relay_stream import Pool, Reset, Stream, read_exactly

if TYPE_CHECKING:
    import ssl

    from libp2p.crypto.keys import KeyPair

log = logging.getLogger(__name__)

IDENTIFY = "/ipfs/id/1.0.0"
PING = "/ipfs/ping/1.0.0"
PROTOCOLS = (HOP, IDENTIFY, PING)

UPGRADE_S = 10.0
"""From the socket to the first stream."""
UPGRADES = 32
"""Connections under way at once: a handshake costs some milliseconds."""
NAME_S = 10.0
"""In which a new stream must have named its protocol, and a hop stream told its request."""
READ = 256 << 10
"""Bytes taken from a socket at once."""
UNSENT = 128 << 10
"""Bytes that the system may hold unsent for a connection before its circuits wait."""
PING_BYTES, PING_IDLE_S = 32, 60.0
_AGENT = "murmuration/relay"


class Door:
    """Lets connections in and serves their streams."""

    def __init__(self, keys: KeyPair, admission: Admission, circuits: Circuits, listens: list[bytes]) -> None:
        """``listens``: the multiaddrs to tell; none: each visitor is told the one that it reached."""
        noise = Noise(keys, noise_privkey=create_new_key_pair().private_key)
        self._secure: dict[str, Any] = {str(TLS): _Tls(keys), str(NOISE): noise}
        self._admission, self._circuits, self._listens = admission, circuits, listens
        self._public = keys.public_key.serialize()
        self._pool = Pool()
        self._upgrades = trio.CapacityLimiter(UPGRADES)

    async def admit(self, socket: trio.SocketStream) -> None:
        """One connection, until it ends; raises nothing."""
        async with socket:
            try:
                ip = address_key(socket.socket.getpeername()[0])
            except OSError:  # it has gone already
                return
            if self._admission.connect(ip) is not None:
                return
            try:
                await self._serve(socket, ip)
            except Exception as error:  # whatever a stranger's bytes make the layers below raise
                log.debug("a connection from %s ended: %r", ip, error)
            finally:
                self._admission.disconnect(ip)

    async def _serve(self, socket: trio.SocketStream, ip: str) -> None:
        with contextlib.suppress(OSError):
            socket.setsockopt(IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT)  # trio's own 16 KiB make bulk slow
        wire = Wire(socket)
        with trio.fail_after(UPGRADE_S):
            async with self._upgrades:
                security = await negotiate(wire, self._secure)
                channel = await self._secure[security].secure_inbound(wire)
                wire.eager = security == TLS
                await negotiate(_Exact(channel), (relay_mux.PROTOCOL,))
        peer = channel.get_remote_peer()

        async def accept(stream: Stream) -> None:
            await self._stream(visitor, stream)

        visitor = Visitor(
            peer,
            End(peer.to_base58(), ip),
            Mux(channel, accept, self._pool, ip),
            _multiaddr(socket.socket.getsockname()),
            _multiaddr(socket.socket.getpeername()),
        )
        self._circuits.enter(visitor)
        try:
            await visitor.mux.run()
        finally:
            self._circuits.leave(visitor)

    async def _stream(self, visitor: Visitor, stream: Stream) -> None:
        """One stream that the visitor opened; raises Reset."""
        with trio.move_on_after(NAME_S) as naming:
            name = await negotiate(stream, PROTOCOLS)
        if naming.cancelled_caught:
            raise Reset
        if name == HOP:
            await self._circuits.serve(visitor, stream)
        elif name == PING:
            await _pong(stream)
        else:
            await write_message(stream, self._identify(visitor))
            await stream.finish()

    def _identify(self, visitor: Visitor) -> bytes:
        return Identify(
            protocol_version="ipfs/0.1.0",
            agent_version=_AGENT,
            public_key=self._public,
            listen_addrs=self._listens or [visitor.local],
            observed_addr=visitor.remote,
            protocols=PROTOCOLS,
        ).SerializeToString()


class Wire:
    """A socket as py-libp2p's security transports want it."""

    is_initiator = False

    def __init__(self, socket: trio.SocketStream) -> None:
        self._socket = socket
        self._buffer = b""
        self.eager = False
        """Whether ``read`` may return more than it was asked for, as TLS can take it: py-libp2p asks for 4096 bytes."""

    async def read(self, n: int | None = None) -> bytes:
        """What has come, at most ``n`` bytes; none at the end."""
        if not self._buffer:
            try:
                self._buffer = bytes(await self._socket.receive_some(READ))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return b""
        if n is None or self.eager or n >= len(self._buffer):
            data, self._buffer = self._buffer, b""
        else:
            data, self._buffer = self._buffer[:n], self._buffer[n:]
        return data

    async def read_exactly(self, size: int) -> bytes:
        """So many bytes; raises Reset."""
        return await read_exactly(self, size)

    async def write(self, data: bytes) -> None:
        """All of it; raises trio.BrokenResourceError."""
        await self._socket.send_all(data)

    async def close(self) -> None:
        """At once."""
        await trio.aclose_forcefully(self._socket)

    def get_remote_address(self) -> tuple[str, int] | None:
        """For py-libp2p, which only hands it on."""
        return None

    def get_transport_addresses(self) -> list[Multiaddr]:
        """As above."""
        return []

    def get_connection_type(self) -> ConnectionType:
        """As above."""
        return ConnectionType.DIRECT


class _Exact:
    """An encrypted connection, for ``negotiate``."""

    def __init__(self, channel: relay_mux.Channel) -> None:
        self._channel = channel

    async def read_exactly(self, size: int) -> bytes:
        return await read_exactly(self._channel, size)

    async def write(self, data: bytes) -> None:
        await self._channel.write(data)


class _Tls(TLSTransport):
    """py-libp2p's, with one context for all connections: it writes the key to a temporary file for each."""

    def __init__(self, keys: KeyPair) -> None:
        super().__init__(keys)
        self._context: ssl.SSLContext | None = None

    def create_ssl_context(self, server_side: bool = False) -> ssl.SSLContext:
        """Made at the first call, for a server."""
        if self._context is None:
            self._context = super().create_ssl_context(server_side)
        return self._context


async def _pong(stream: Stream) -> None:
    """Send back what comes, until the other side ends it."""
    while True:
        with trio.move_on_after(PING_IDLE_S) as idle:
            await stream.write(await stream.read_exactly(PING_BYTES))
        if idle.cancelled_caught:
            raise Reset


def _multiaddr(address: tuple[Any, ...]) -> bytes:
    """Of a socket's address."""
    host = str(address[0]).partition("%")[0].removeprefix("::ffff:")
    return Multiaddr(f"/ip{6 if ':' in host else 4}/{host}/tcp/{address[1]}").to_bytes()  # type: ignore[no-any-return]
