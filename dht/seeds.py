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

from protocols.errors import ConfigError, MurmurError, RemoteError, TransportError
from protocols.ids import PeerId, public_key

from .knock import knock
from .tasks import end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

log = logging.getLogger(__name__)

State = Literal["ok", "failed", "trying"]
_STATES: tuple[State, State] = ("failed", "ok")


class ClockDiffers(TransportError):
    """A seed answered, and its clock is too far from ours for the directory."""

    def __init__(self, peer: str, offset_s: float, limit_s: float) -> None:
        ahead = "ahead of" if offset_s > 0 else "behind"
        super().__init__(
            peer, f"its clock is {abs(offset_s):.1f} s {ahead} ours ({limit_s:.0f} s allowed): set the clock"
        )
        self.offset_s = offset_s


@dataclass(frozen=True, slots=True)
class Seed:
    """One entry address as ``murmur status`` shows it."""

    address: str
    state: State = "trying"
    error: str | None = None
    retry_s: float | None = None
    """Pause before the next attempt, seconds; None while one is under way or none is needed."""
    offset_s: float | None = None
    """How far its clock is ahead of ours, where that is why it is of no use."""


@dataclass(frozen=True, slots=True)
class SeedTiming:
    """Pauses, seconds; each is spread by ± half."""

    first_retry_s: float = 1.0
    last_retry_s: float = 5.0
    """While no seed answers: whoever appears is found within 10 s, and a knock every few seconds harms nobody."""
    calm_retry_s: float = 60.0
    """The longest pause while another seed answers."""
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
                if self._states[address].state != "ok":
                    await knock(peer, address)
                await self._attempt(peer, address)
            except Exception as error:  # a defect too must show in the seed's state, and the others go on
                if not isinstance(error, MurmurError):
                    log.exception("the attempt to reach %s failed", address)
                delay = min(delay, self._longest())
                pause, delay = self._spread(delay), 2 * delay
                self._show(address, error, retry_s=round(pause, 1))
            else:
                pause, delay = self._spread(self._timing.recheck_s), self._timing.first_retry_s
                self._show(address)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._again[address].wait()
            if self._states[address].state == "failed":
                self._states[address] = replace(self._states[address], state="trying", retry_s=None)

    def _spread(self, seconds: float) -> float:
        return seconds * (0.5 + self._draw.random())

    def _longest(self) -> float:
        """The longest pause now."""
        answered = any(each.state == "ok" for each in self._states.values())
        return self._timing.calm_retry_s if answered else self._timing.last_retry_s

    def _show(self, address: str, error: Exception | None = None, *, retry_s: float | None = None) -> None:
        before, state = self._states[address], _STATES[error is None]
        text = None if error is None else (str(error) or repr(error)).removeprefix(f"{_peer_of(address)}: ")
        if (before.error, before.state == "ok") != (text, state == "ok"):
            log.info("seed %s: %s%s", address, state, f" ({text})" if text else "")
        self._states[address] = Seed(address, state, text, retry_s, getattr(error, "offset_s", None))


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
