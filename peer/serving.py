"""Whether this peer's node of the directory serves others, or only asks.

A node that others cannot reach costs each of their look-ups a deadline, and one among many hides it: with 64 newcomers
behind routers look-ups ended by their deadlines alone. So whoever was let in by others only asks, until it is known to
be reached.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocols.errors import MurmurError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dht.directory import Directory
    from dht.reachability import Plan

PATIENCE_S = 30.0
"""For a seed to answer, and to tell whether this peer can be reached; nobody may be able to tell."""


def only_asks(asks: bool, plan: Plan, *, reserves: bool, entered: bool, waited_s: float) -> bool:
    """Whether the node only asks from now on; ``asks``: whether it does so far. Pure.

    ``reserves``: p2pd reserves at relays; ``entered``: a seed answers, so that others have somebody to ask;
    ``waited_s``: seconds since the start. A node that serves goes on with it unless it reserves.
    """
    if plan.direct:
        return False
    if reserves:
        return True
    if not asks or (plan.rung == "unknown" and plan.publish):
        return False
    return waited_s < PATIENCE_S or (entered and plan.rung != "unknown")


@dataclass
class Serving:
    """Lets the directory's node serve, or only ask, as the reach of this peer is found out."""

    directory: Directory
    plan: Callable[[], Plan]
    """The ladder's latest."""
    reserves: Callable[[], bool]
    """Whether p2pd reserves at relays."""
    began: float = field(default_factory=time.monotonic)

    def only_asks(self) -> bool:
        """Whether it should only ask now."""
        return only_asks(
            self.directory.client,
            self.plan(),
            reserves=self.reserves(),
            entered=any(seed.state == "ok" for seed in self.directory.seeds()),
            waited_s=time.monotonic() - self.began,
        )

    async def follow(self) -> None:
        """Begin the node anew when that has changed, or when it was ended and could not begin."""
        asks = self.only_asks()
        if asks != self.directory.client or not self.directory.runs:
            self.directory.client = asks
            with contextlib.suppress(MurmurError):  # p2pd is just being restarted: it is tried again
                await self.directory.rebind()
