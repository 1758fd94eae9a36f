"""This machine's node of hivemind's DHT on the attached p2pd, begun anew with it, its door kept by our guard."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from hivemind.dht import node as hivemind_node
from hivemind.dht import traverse
from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2

from protocols.errors import TransportError
from protocols.ids import PeerId

from . import serializer
from .begun import Begun, Watched
from .limits import FIND_BYTES, STORE_BYTES
from .records import CLOCK_LIMIT_S
from .seeds import ClockDiffers
from .validator import make_room

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hivemind.dht.validation import RecordValidatorBase

    from .guard import Guard
    from .transport import StreamTransport

log = logging.getLogger(__name__)

UnaryHandler: TypeAlias = "Callable[[bytes, PeerID], Awaitable[bytes]]"


class Node:
    """One node, which decides nothing: ``validator`` does, by ``validate`` and ``screen``."""

    def __init__(
        self,
        transport: StreamTransport,
        validator: Any,
        *,
        request_s: float,
        search_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``request_s`` is the deadline of one request to one node, ``search_s`` of a look-up or store in all."""
        self._transport = transport
        self._validator: RecordValidatorBase = validator
        self._request_s, self._search_s = request_s, search_s
        self._clock = clock
        self._node: Any = None
        self._begun = Begun()
        """What searches that are over, and the node itself, have left running."""
        self._searches: set[asyncio.Timeout] = set()
        self.client = False
        """A client only asks: it serves and stores nothing."""

    @property
    def runs(self) -> bool:
        """Whether there is a node."""
        return self._node is not None

    async def create(self) -> None:
        """Begin, or begin anew on a restarted p2pd; raises TransportError."""
        await self.end()
        serializer.install()
        traverse.asyncio = hivemind_node.asyncio = Watched()
        try:
            with self._begun.inside():
                async with asyncio.timeout(self._search_s):
                    self._node = await DHTNode.create(
                        p2p=self._transport.p2p,
                        wait_timeout=self._request_s,
                        record_validator=self._validator,
                        client_mode=self.client,
                        # Caches hand out dictionaries in which some records are old.
                        cache_locally=False,
                        cache_nearest=0,
                        cache_on_store=False,
                        ensure_bootstrap_success=False,
                    )
        except Exception as error:  # hivemind raises whatever its parts raise
            raise TransportError(self._transport.peer, f"the directory node did not start: {error}") from error

        self._node.protocol._validate_dictionary = self._validator.screen
        self._gate()

    async def end(self, *, works: bool = True) -> None:
        """End the node; ``works``: whether there is a p2pd that answers, which is told."""
        node, self._node = self._node, None
        for search in self._searches:  # on a p2pd that is gone it would wait for its deadline, and what follows with it
            if not search.expired():  # whose deadline has just come is ending, and swallows that now and then
                search.reschedule(asyncio.get_running_loop().time())
        await self._begun.end()
        if node is None:
            return
        node.is_alive = False
        if works and self._transport.attached and node.p2p is self._transport.p2p:
            with contextlib.suppress(Exception):  # its p2pd may just have died, and its handlers with it
                async with asyncio.timeout(self._request_s):
                    await node.shutdown()

    async def search(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        """One operation on hivemind's node; None when it fails, whatever the reason, and when the node is ended."""
        if self._node is None:
            return None
        begun, search = Begun(), asyncio.timeout(self._search_s)
        try:
            with begun.inside():
                async with search:
                    self._searches.add(search)
                    try:
                        answer = await ask(self._node)
                    finally:
                        self._searches.discard(search)
            self._begun.adopt(begun)  # the rest of a search goes on when the answer is there
            return answer
        except TimeoutError:
            log.info("the directory gave no answer within %.0f s, or its node was ended", self._search_s)
        except Exception as error:  # hivemind raises whatever its parts raise; trouble here is never fatal
            log.info("the directory failed: %r", error)
        finally:
            await begun.end()
        return None

    async def enter(self, peer: PeerId, address: str) -> bool:
        """Reach a seed, compare clocks, get to know its neighbours; whether it is new. Raises TransportError."""
        node = self._node
        if node is None:
            raise TransportError(peer, "the directory node is not running")
        await self._transport.dial(peer, [address])
        remote = PeerID.from_base58(peer)
        before = self._clock()
        try:
            request = dht_pb2.PingRequest(peer=node.protocol.node_info)
            answer = await node.protocol.get_stub(remote).rpc_ping(request, timeout=self._request_s)
        except Exception as error:  # hivemind raises whatever its parts raise
            raise TransportError(
                peer, f"reached, but it serves no directory: {error or type(error).__name__}"
            ) from error
        offset = answer.dht_time - (before + self._clock()) / 2
        if abs(offset) > CLOCK_LIMIT_S:
            raise ClockDiffers(peer, offset, CLOCK_LIMIT_S)
        is_new = node.protocol.routing_table.get(peer_id=remote) is None
        met = await node.protocol.call_ping(remote)
        if met is None:
            raise TransportError(peer, "stopped answering")
        await node.protocol.update_routing_table(met, remote)  # call_ping leaves it to a task that has not run yet
        if is_new:
            await self.search(lambda node: node.find_nearest_nodes([node.node_id]))
        return is_new

    def forget(self, key: str, peer: str | None) -> None:
        """Take ``peer``'s record out of what hivemind stores under ``key``."""
        if self._node is not None:
            for storage in (self._node.protocol.storage, self._node.protocol.cache):
                make_room(storage, DHTID.generate(source=key), peer)

    def _gate(self) -> None:
        """Let the guard refuse requests before they are even parsed: hivemind answers whatever comes."""
        handlers = self._transport.p2p._client.control.unary_handlers
        for name in [each for each in handlers if each.startswith("DHTProtocol.")]:
            most = STORE_BYTES if name.endswith("store") else FIND_BYTES
            handlers[name] = gated(handlers[name], self._transport.guard, most)


def gated(answer: UnaryHandler, guard: Guard, most: int) -> UnaryHandler:
    """``answer`` for those whom ``guard`` lets ask, with requests of at most ``most`` bytes."""

    async def ask(request: bytes, remote: PeerID) -> bytes:
        peer = PeerId(remote.to_base58())
        if not guard.answers(peer, len(request), most):
            raise TransportError(peer, "asked too much of this directory node")  # hivemind tells the other side
        return await answer(request, remote)

    return ask
