"""The blobs of the served run: fetched from peers that have them, and served to those that do not."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from protocols.blobs import BUSY, MAX_WAITS, NONE, WAIT, AskBlob, Reply, decode_manifest
from protocols.errors import RemoteError, TransportError
from protocols.ids import Hash

from .blob_fetch import PROTOCOL, Crew, Fetch, Patience, in_thread, next_frame
from .blob_providers import Providers
from .blob_serving import BlobServer, Limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from protocols.ids import PeerId
    from protocols.manifest import Manifest, ShardEntry

    from .blob_fetch import Caller, Progress
    from .blobs import BlobStore

ROLE = "blobs"
"""What the records of peers say that serve."""
MANIFEST_S = 120.0
"""For a manifest to arrive, on the slowest line."""


class BlobExchange:
    """Both sides of ``/murmur/1/blob`` for one run. ``start`` begins to serve; fetching needs no start."""

    def __init__(  # noqa: PLR0913 - who and how much come by name
        self,
        transport: Caller,
        store: BlobStore,
        run_id: bytes,
        manifest_text: Callable[[], str | None],
        providers: Callable[[], Mapping[PeerId, Sequence[str]]],
        *,
        members: Callable[[], Collection[PeerId]] = frozenset,
        limits: Limits | None = None,
        patience: Patience | None = None,
    ) -> None:
        """``manifest_text`` gives the run's signed manifest once it is known: nothing is served before.

        ``providers``: who may have blobs, with the addresses of those that p2pd may not know. ``members`` are asked
        first, and strangers never take all the room from them.
        """
        self._transport, self._store, self._run = transport, store, run_id
        self._find, self._members = providers, members
        self.limits = limits or Limits()
        self._server = BlobServer(store, run_id, manifest_text, members=members, limits=self.limits)
        self._patience = patience or Patience()
        self._draw = random.Random()
        self._providers = Providers(self._draw)
        self._fetch: Fetch | None = None
        self._state = ""

    async def start(self) -> None:
        """Serve from now on; raises TransportError."""
        await self._transport.serve(PROTOCOL, self._server.serve)

    def yield_to(self, calm: Callable[[], Awaitable[None]]) -> None:
        """Before each piece that is served wait for ``calm``: rounds and blobs share one line."""
        self._server.hold = calm

    @property
    def state(self) -> str:
        """What is being fetched and what it waits for, in one line; empty when nothing is."""
        return self._fetch.state() if self._fetch is not None else self._state

    @property
    def refused(self) -> int:
        """Requests that were over a limit or not about the served run."""
        return self._server.queue.refused + self._server.unknown

    @property
    def serving(self) -> tuple[int, int]:
        """Requests that are answered now, and those that wait."""
        return self._server.queue.serving, len(self._server.queue)

    async def fetch_manifest(self) -> Manifest:
        """The run's manifest, from whoever has it: its hash is the run id, and a founder has signed it.

        Never gives up by itself; ``state`` tells what is in the way.
        """
        crew = Crew()
        try:
            while True:
                self._ask_around(crew)
                for manifest in await crew.wait(self._patience.tick_s):
                    if manifest is not None:
                        found: Manifest = manifest
                        return found
        finally:
            self._state = ""
            await crew.dismiss()

    async def fetch(self, entries: Sequence[ShardEntry], progress: Progress = lambda *_: None) -> None:
        """Until all of these are in the store, however long that takes; ``progress`` gets (bytes here, bytes in all).

        Raises ConfigError when they are larger than the store may become, EnvironmentFault when it cannot be read.
        What has come stays when this is cancelled.
        """
        wanted = list({entry.hash: entry for entry in entries}.values())
        await in_thread(self._store.pin, wanted)
        lacking = [entry for entry in wanted if await in_thread(self._store.path, entry) is None]
        self._draw.shuffle(lacking)  # two peers that fetch at the same time can give each other what they have
        self._fetch = Fetch(self._transport, self._store, self._providers, self._patience, lacking, progress)
        try:
            await self._fetch.run(self._find, self._members)
        finally:
            self._fetch = None

    def _ask_around(self, crew: Crew) -> None:
        now, found = asyncio.get_running_loop().time(), self._find()
        idle = [peer for peer in found if peer not in crew.tasks]
        for peer in self._providers.ranked(idle, now, first=self._members()):
            if len(crew.tasks) >= self._patience.parallel:
                break
            if self._providers.may_have(peer, self._run.hex(), now):
                crew.hire(peer, self._ask_manifest(peer, found[peer]), "manifest from")
        trouble = self._providers.trouble(now)
        asked = (
            f"asking {len(crew.tasks)} peer{'s' * (len(crew.tasks) > 1)}"
            if crew.tasks
            else trouble or "nobody here is known to have it"
        )
        self._state = f"the run's manifest: {asked}"

    async def _ask_manifest(self, peer: PeerId, addresses: Sequence[str]) -> Manifest | None:
        clock = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(MANIFEST_S), self._transport.call(peer, PROTOCOL, addresses) as stream:
                await stream.send("ask-blob", [AskBlob(Hash(self._run)).encode()])
                for _ in range(MAX_WAITS):
                    kind, payload = await next_frame(stream, MANIFEST_S)
                    if kind == "manifest":
                        return await in_thread(_decode, payload, self._run, peer)
                    reply = _expect(kind, payload, peer)
                    if reply.word == NONE:
                        self._providers.lacks(peer, self._run.hex(), clock())
                        return None
                    if reply.word == BUSY:
                        raise TransportError(peer, f"serves {reply.position} others before us")
                raise RemoteError(peer, f"tells {MAX_WAITS} times how long its queue is")
        except RemoteError as error:
            self._providers.lied(peer, clock(), str(error))
        except TransportError as error:
            self._providers.failed(peer, clock(), str(error))
        except TimeoutError:
            self._providers.failed(peer, clock(), f"{peer}: sent no manifest in {MANIFEST_S:.0f} s")
        return None


def _decode(payload: bytes, run: bytes, sender: str) -> Manifest:
    return decode_manifest(payload, run, sender=sender)


def _expect(kind: str, payload: bytes, sender: str) -> Reply:
    reply = Reply.decode(payload, sender=sender) if kind == "blob" else None
    if reply is None or reply.word not in {NONE, BUSY, WAIT}:
        raise RemoteError(sender, f"a {kind} frame in place of the manifest")
    return reply
