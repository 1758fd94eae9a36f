"""Requests to p2pd on its control socket, each on a connection of its own and each with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from hivemind.p2p import PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2
from multiaddr import Multiaddr
from multiaddr.exceptions import Error as MultiaddrError

from protocols.errors import TransportError
from protocols.ids import PeerId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from .stream import Ends

READ_AHEAD = 1 << 20
"""Bytes that a stream's reader takes in before it holds the sender back."""

FAVOUR = 1000
"""Weight of a member's connection to p2pd's connection manager, which closes those of least weight first."""

QUIC_S = 3.0
"""For a connection over QUIC: where a network drops UDP nothing says so."""

MAX_CAUSES = 1024
"""Peers of which we remember why the last dial failed."""

_DAEMON_ERRORS = (OSError, asyncio.IncompleteReadError, P2PDaemonError, ValueError, RuntimeError)
"""RuntimeError is what uvloop raises on a closed connection."""


class Control:
    """One p2pd, by the path of its control socket; ``dial_s`` is the deadline of a request, seconds."""

    def __init__(self, path: str, dial_s: float) -> None:
        self._path, self._dial_s = path, dial_s
        self._unreached: dict[PeerId, str] = {}

    async def dial(self, peer: PeerId, addresses: Sequence[str], *, quic_first: bool = False) -> None:
        """Let p2pd reach ``peer`` at these multiaddrs, without opening a stream; raises TransportError."""
        try:
            targets = [Multiaddr(address) for address in addresses]  # hivemind's own writes /p2p in a form p2pd refuses
        except (MultiaddrError, ValueError) as error:
            raise TransportError(peer, f"not an address: {error}") from error
        tcp = [target for target in targets if "tcp" in target]
        groups = [tcp, [target for target in targets if target not in tcp]]  # go-libp2p itself prefers QUIC
        failure = "no address to reach it at"
        for group in reversed(groups) if quic_first else groups:
            if group:
                try:
                    await self._connect(peer, group, min(self._dial_s, QUIC_S) if group is not tcp else self._dial_s)
                except TransportError as error:
                    failure = str(error).removeprefix(f"{peer}: ")
                else:
                    self._unreached.pop(peer, None)
                    return
        if "dial backoff" in failure:  # p2pd waits some seconds before it dials again: tell the true cause
            failure = self._unreached.get(peer, failure)
        if len(self._unreached) >= MAX_CAUSES:
            self._unreached.clear()
        self._unreached[peer] = failure
        raise TransportError(peer, failure)

    async def open(self, peer: PeerId, protocol: str) -> Ends:
        """A bare stream of this protocol to ``peer``, which p2pd must be able to reach; raises TransportError."""
        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.STREAM_OPEN,
            streamOpen=p2pd_pb2.StreamOpenRequest(peer=_raw(peer), proto=[protocol]),
        )
        return await self._ask(peer, request)

    async def disconnect(self, peer: PeerId) -> None:
        """Close all connections with ``peer``; says nothing when that fails, for then there is none."""
        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.DISCONNECT, disconnect=p2pd_pb2.DisconnectRequest(peer=_raw(peer))
        )
        await self._tell(peer, request)

    async def favour(self, peer: PeerId) -> None:
        """Let p2pd keep connections with ``peer`` when it has too many and closes others."""
        tag = p2pd_pb2.ConnManagerRequest(
            type=p2pd_pb2.ConnManagerRequest.TAG_PEER, peer=_raw(peer), tag="member", weight=FAVOUR
        )
        await self._tell(peer, p2pd_pb2.Request(type=p2pd_pb2.Request.CONNMANAGER, connManager=tag))

    async def connected(self, own: PeerId) -> list[tuple[PeerId, str]]:
        """p2pd's connections: peer and the multiaddr of its end; raises TransportError. ``own`` is named in errors."""
        answer = p2pd_pb2.Response()
        _, writer = await self._ask(own, p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS), answer)
        writer.close()
        return [(PeerId(PeerID(info.id).to_base58()), _end_of(info.addrs)) for info in answer.peers]

    async def listening(self, own: PeerId) -> tuple[str, ...]:
        """p2pd's own addresses now, mapped ones and circuits included, without ``/p2p/…``; raises TransportError."""
        answer = p2pd_pb2.Response()
        _, writer = await self._ask(own, p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY), answer)
        writer.close()
        return tuple(each for raw in answer.identify.addrs if (each := _text(raw)))

    async def _tell(self, peer: PeerId, request: Any) -> None:
        with contextlib.suppress(TransportError):
            _, writer = await self._ask(peer, request)
            writer.close()

    async def _connect(self, peer: PeerId, targets: list[Multiaddr], within: float) -> None:
        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.CONNECT,
            connect=p2pd_pb2.ConnectRequest(peer=_raw(peer), addrs=[target.to_bytes() for target in targets]),
        )
        _, writer = await self._ask(peer, request, within=within)
        writer.close()

    async def _ask(self, peer: PeerId, request: Any, answer: Any = None, *, within: float = 0.0) -> Ends:
        """One request, answered into ``answer``; its connection becomes the stream when it opens one.

        hivemind's client leaves that connection open for good when p2pd refuses or the caller is cancelled.
        """
        async with deadline(peer, within or self._dial_s):
            ends = await asyncio.open_unix_connection(self._path, limit=READ_AHEAD)
            response = answer if answer is not None else p2pd_pb2.Response()
            try:
                await write_pbmsg(ends[1], request)
                await read_pbmsg_safe(ends[0], response)
                if response.type == p2pd_pb2.Response.ERROR:
                    raise TransportError(peer, _plain(response.error.msg))
            except BaseException:
                ends[1].transport.abort()
                raise
        return ends


@contextlib.asynccontextmanager
async def in_time(peer: PeerId, deadline_s: float) -> AsyncIterator[None]:
    """Raises TransportError when it takes longer."""
    try:
        async with asyncio.timeout(deadline_s):
            yield
    except TimeoutError as error:
        raise TransportError(peer, f"no answer within {deadline_s:.0f} s") from error


@contextlib.asynccontextmanager
async def deadline(peer: PeerId, deadline_s: float) -> AsyncIterator[None]:
    """Maps what a request to p2pd can raise to TransportError: for such requests alone, or defects would hide in it."""
    try:
        async with in_time(peer, deadline_s):
            yield
    except _DAEMON_ERRORS as error:
        raise TransportError(peer, str(error) or type(error).__name__) from error


def _end_of(addresses: Sequence[bytes]) -> str:
    return _text(addresses[0]) if addresses else ""


def _text(raw: bytes) -> str:
    """A multiaddr in words; empty when it uses a protocol that is not known here."""
    try:
        return str(Multiaddr(raw))
    except (MultiaddrError, ValueError):
        return ""


def _raw(peer: PeerId) -> bytes:
    return PeerID.from_base58(peer).to_bytes()  # type: ignore[no-any-return]


def _plain(message: str) -> str:
    """p2pd's complaint in one line, without its preamble of repeated names."""
    line = " ".join(message.split())
    _, dials, causes = line.rpartition("all dials failed * ")
    return (f"cannot be reached: {causes}" if dials else line)[:400]
