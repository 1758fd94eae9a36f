"""The way from a run's id to all that training on it needs: network, manifest, data, and the state it begins from.

What this machine lacks comes from other peers of the run, and is known by its hash; while nobody answers the daemon
seeks. Network trouble never ends it: it shows in the status.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dht.p2pd import P2pd, P2pdConfig
from dht.tasks import end, keep_going
from protocols import invitation
from protocols.errors import ConfigError, LocalError
from protocols.invitation import Anchor, Invitation
from protocols.manifest import Manifest, render, run_id
from protocols.outer import state_root
from protocols.round.chain import seal_zero
from protocols.statements import Scope

from . import status as st
from .blob_exchange import ROLE, BlobExchange
from .blob_fetch import Patience
from .blobs import BlobStore
from .corpus import SHARDS, absent, missing
from .refusals import blob_gauges
from .runs import check_admitted, keep_manifest
from .settings import CELL, round_setting, train_config
from .start_state import initial_state
from .state import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from contextlib import AsyncExitStack

    from protocols.ids import PeerId
    from protocols.manifest import ShardEntry
    from protocols.round.chain import Head
    from protocols.round.effects import Setting, Vector

    from .identity import Identity
    from .network import Network
    from .options import UpOptions
    from .paths import Home
    from .reporter import Reporter
    from .runs import Goal
    from .state import StateStore
    from .training import TrainConfig

STARTING = st.Reason("none", "loads trainer and network, some seconds")
LOOK_S = 0.25
"""Between looks at what a fetch is doing, and at whom it could ask."""
T = TypeVar("T")
State = tuple["Vector", "Vector"]


@dataclass(frozen=True, slots=True)
class Run:
    """What a daemon serves: the manifest and what follows from it."""

    manifest: Manifest
    scope: Scope
    setting: Setting
    training: TrainConfig


class Entry:
    """Begins with what a person named, and ends with a run that can be trained."""

    def __init__(self, goal: Goal, options: UpOptions, home: Home, identity: Identity, reporter: Reporter) -> None:
        """Raises ConfigError for a manifest that this software cannot train."""
        self._goal, self._options, self._home = goal, options, home
        self._identity, self._reporter = identity, reporter
        self._blobs: BlobStore | None = None
        self._exchange: BlobExchange | None = None
        self._manifest_text: str | None = None
        self._fetched: float | None = None
        self.network: Network | None = None
        """None: alone, or not open yet."""
        self.run: Run | None = None
        """None until the manifest is here."""
        if goal.manifest is not None:
            self.run = self._run_of(goal.manifest)

    def admits(self, peer: PeerId) -> bool:
        """Whether the run lets a peer take part; before its manifest is here nobody is turned away."""
        return self.run is None or self.run.manifest.members.admits(peer)

    def check_port(self) -> None:
        """Raises EnvironmentFault when the chosen port is taken: ``open`` would say so only after seconds."""
        options = self._options
        if not options.alone:
            P2pd(P2pdConfig(self._home.root, self._home.key, options.p2p_port, options.listen)).check()

    async def open(self, stack: AsyncExitStack, members: Callable[[], frozenset[PeerId]]) -> None:
        """Find peers, and serve them what is here; not when alone. Raises EnvironmentFault (port, p2pd, home)."""
        if self._options.alone:
            self._reporter.apply(st.Reach("none", ("--alone never looks for peers",)))
            return
        # importing libp2p's client takes seconds: beside the trainer's start, and not in the loop
        await asyncio.to_thread(importlib.import_module, "peer.network")
        gc.freeze()  # else each full collection walks through all that is loaded for good: 130 ms of the loop
        from .network import Network

        network = Network(
            self._options,
            self._home,
            self._goal.run,
            self._identity,
            self._reporter,
            members=members,
            admits=self.admits,
        )
        self.network = network
        stack.push_async_callback(network.close)
        self._reporter.traffic = network.traffic
        await network.start(self._goal.seeds, self._goal.invitation)
        self._exchange = BlobExchange(
            network.transport,
            self._store(),
            self._goal.run,
            lambda: self._manifest_text,
            lambda: network.providers(ROLE),
            members=members,
            patience=Patience(tick_s=LOOK_S),
        )
        await self._exchange.start()
        network.refusals.watch(partial(blob_gauges, self._exchange))

    async def learn(self, opened: asyncio.Task[None]) -> Run:
        """The run, whose manifest is here or is fetched once the network is ``opened``.

        Raises ConfigError when it is not for this peer or this software, EnvironmentFault when it cannot be kept.
        """
        if self.run is None:
            await opened
            if self._exchange is None:
                raise ConfigError("--alone never looks for peers, and only they have this run", remedy="leave it out")
            manifest = await self._shown(self._exchange.fetch_manifest())
            check_admitted(manifest, self._identity.peer)
            self.run = self._run_of(manifest)
        keep_manifest(self._home, self.run.manifest)
        self._manifest_text = render(self.run.manifest)
        return self.run

    async def have_data(self, run: Run, opened: asyncio.Task[None]) -> None:
        """Until all that the run names by hash is here; alone, the trainer says what is missing.

        Raises ConfigError when that is more than this machine takes.
        """
        lacking = await asyncio.to_thread(missing, run.manifest, self._store(), self._options.data)
        if lacking:
            self._check_somebody_has(lacking)
            await opened
            if self._exchange is not None:
                await self._shown(self._exchange.fetch(lacking, self._on_fetched))
        self._reporter.enter("starting", STARTING)

    def _check_somebody_has(self, lacking: Sequence[ShardEntry]) -> None:
        """Raises EnvironmentFault where plays are missing that nobody else can have: to seek would never end."""
        assert self.run is not None  # what lacks is known from it
        plays = [entry.id for entry in lacking if entry in SHARDS]
        if plays and not self._goal.seeds and self.run.manifest.members.founders == (self._identity.peer,):
            raise absent(plays[0])

    def first_state(self, run: Run) -> State:
        """What round 1 begins from; raises EnvironmentFault when it is a blob that is not here, ConfigError."""
        return initial_state(run.manifest, self._store())

    def offer(self) -> None:
        """Tell others that everything is here."""
        if self.network is not None:
            self.network.serves(ROLE)

    def yield_to(self, calm: Callable[[], Awaitable[None]]) -> None:
        """Serve blobs only while ``calm`` returns at once: before rounds they stand back."""
        if self._exchange is not None:
            self._exchange.yield_to(calm)

    def invitation(self, anchor: Anchor | None) -> dict[str, Any]:
        """An invitation to this run as the API shows it; raises LocalError while nobody could come by it."""
        if self._options.alone:
            raise LocalError("nobody can join a daemon that never looks for peers", remedy="start it without --alone")
        if self.run is None:
            raise LocalError("this daemon has not found its run itself yet", remedy="hand on the invitation it has")
        addresses = self.network.meeting_points() if self.network is not None else ()
        if not addresses:
            raise LocalError("the daemon does not listen yet", remedy="try again in some seconds")
        return {
            "schema": 1,
            "invitation": invitation.encode(Invitation(self._goal.run, addresses, anchor)),
            "run": self._goal.run.hex(),
            "addresses": list(addresses),
            "anchor": None if anchor is None else {"round": anchor.round, "seal": anchor.seal.hex()},
            "open": self.run.manifest.members.open,
        }

    def _store(self) -> BlobStore:
        """The blobs of this home: one store for what is fetched and what is served."""
        if self._blobs is None:
            self._blobs = BlobStore(self._home.blobs, self._options.blob_cap)
        return self._blobs

    def _run_of(self, manifest: Manifest) -> Run:
        training = train_config(manifest, self._options.data, self._home.blobs)
        scope = Scope(run_id(manifest), CELL)
        return Run(manifest, scope, round_setting(manifest, training.parameters), training)

    def _on_fetched(self, here: int, total: int) -> None:
        self._fetched = here / total if total else None

    async def _shown(self, work: Coroutine[None, None, T]) -> T:
        telling = keep_going(self._tell, "tell what is fetched")
        try:
            return await work
        finally:
            await end([telling])
            self._reporter.syncing = ""

    async def _tell(self) -> None:
        while self.network is not None and self._exchange is not None:
            if self.network.found:
                self._reporter.tell_syncing(self._exchange.state, self._fetched)
            else:
                seeds = len(self.network.seeds())
                tried = f"trying {seeds} address{'es' * (seeds != 1)}" if seeds else "no address to try: give --join"
                if errors := [each.error for each in self.network.seeds() if each.error]:
                    tried += f" ({errors[0]}); if this lasts, ask for a new invitation"
                self._reporter.tell_seeking(f"nothing is trained yet, nobody of the run answers; {tried}")
            await asyncio.sleep(LOOK_S)


def beginning(run: Run, store: StateStore, reporter: Reporter, first: Callable[[], State]) -> Checkpoint:
    """The last sealed state, or else the run's ``first``. Raises EnvironmentFault when the saved ones are unsound."""
    found = store.load()
    for text in store.warnings:
        reporter.warn("checkpoint", text)
    if found is not None:
        text = f"going on after sealed round {found.head.round}"
        reporter.show(("ok", "start", text), event="resumed", round=found.head.round)
        reporter.apply(st.Loaded(len(found.params), _state_of(found.head), last_sealed=found.head.round))
        return found
    params, momentum = first()
    root = state_root(params, momentum)
    reporter.apply(st.Loaded(len(params), root.hex(), last_sealed=0))
    head = seal_zero(run.scope, run.manifest.members.founders, root)
    return Checkpoint(head, params, momentum, np.zeros_like(params))


def _state_of(head: Head) -> str:
    return head.body.state.hex() if head.body else ""
