"""The addresses through which a peer enters the directory: each is tried for ever, its state visible.

How one is tried is handed in, so nothing here knows libp2p.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from protocols.errors import ConfigError, MurmurError, RemoteError
from protocols.ids import PeerId, public_key

from .tasks import end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

log = logging.getLogger(__name__)

State = Literal["ok", "failed", "trying"]


@dataclass(frozen=True, slots=True)
class Seed:
    """One entry address as ``murmur status`` shows it."""

    address: str
    state: State = "trying"
    error: str | None = None
    retry_s: float | None = None
    """Pause before the next attempt, seconds; None while one is under way or none is needed."""


@dataclass(frozen=True, slots=True)
class SeedTiming:
    """Pauses, seconds; each is spread by ± half."""

    first_retry_s: float = 1.0
    last_retry_s: float = 60.0
    recheck_s: float = 60.0
    """Between checks of a seed that answers."""


class Seeds:
    """One task per address; ``close`` ends them."""

    def __init__(
        self,
        addresses: Sequence[str],
        attempt: Callable[[PeerId, str], Awaitable[None]],
        *,
        timing: SeedTiming,
        draw: random.Random | None = None,
    ) -> None:
        """``attempt`` raises MurmurError when a seed cannot be reached. Raises ConfigError for a malformed address."""
        self._attempt = attempt
        self._timing = timing
        self._draw = draw or random.Random()
        peers = {address: _peer_of(address) for address in addresses}
        self._states = {address: Seed(address) for address in peers}
        self._again: dict[str, asyncio.Event] = {address: asyncio.Event() for address in peers}
        self._tasks = [
            asyncio.create_task(self._keep(peer, address), name=f"seed {address}") for address, peer in peers.items()
        ]

    def states(self) -> list[Seed]:
        """All seeds, in the order given."""
        return list(self._states.values())

    def retry(self) -> None:
        """Try all of them now."""
        for event in self._again.values():
            event.set()

    async def close(self) -> None:
        """End all tasks."""
        await end(self._tasks)

    async def _keep(self, peer: PeerId, address: str) -> None:
        delay = self._timing.first_retry_s
        while True:
            self._again[address].clear()
            try:
                await self._attempt(peer, address)
            except Exception as error:  # a defect too must show in the seed's state, and the others go on
                if not isinstance(error, MurmurError):
                    log.exception("the attempt to reach %s failed", address)
                pause, delay = self._spread(delay), min(2 * delay, self._timing.last_retry_s)
                self._show(address, "failed", error=str(error) or repr(error), retry_s=round(pause, 1))
            else:
                pause, delay = self._spread(self._timing.recheck_s), self._timing.first_retry_s
                self._show(address, "ok")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._again[address].wait()
            if self._states[address].state == "failed":
                self._states[address] = replace(self._states[address], state="trying", retry_s=None)

    def _spread(self, seconds: float) -> float:
        return seconds * (0.5 + self._draw.random())

    def _show(self, address: str, state: State, *, error: str | None = None, retry_s: float | None = None) -> None:
        if (self._states[address].error, state) != (error, self._states[address].state):
            log.info("seed %s: %s%s", address, state, f" ({error})" if error else "")
        self._states[address] = Seed(address, state, error, retry_s)


def _peer_of(address: str) -> PeerId:
    remedy = "a seed looks like /ip4/203.0.113.7/tcp/4001/p2p/12D3Koo…"
    head, separator, peer = address.rpartition("/p2p/")
    if not separator or not head.startswith("/"):
        raise ConfigError(f"{address!r} is not an address of a seed", remedy=remedy)
    try:
        public_key(peer)
    except RemoteError as error:
        raise ConfigError(f"{address!r} does not end in a peer id", remedy=remedy) from error
    return PeerId(peer)
