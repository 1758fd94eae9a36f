"""Whether this peer's node of the directory serves others, or only asks. Pure.

A node that others cannot reach costs each of their look-ups a deadline, and one among many hides it: with 64 newcomers
behind routers no look-up ended in time. So whoever was let in by others only asks, until it is known to be reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dht.reachability import Plan

PATIENCE_S = 30.0
"""For somebody to tell whether this peer can be reached; nobody may be able to tell."""


def only_asks(asks: bool, plan: Plan, *, reserves: bool, entered: bool, waited_s: float) -> bool:
    """Whether the node only asks from now on; ``asks``: whether it does so far.

    ``reserves``: p2pd reserves at relays; ``entered``: a seed answers, so that others have somebody to ask;
    ``waited_s``: seconds since the start. A node that serves goes on with it unless it reserves.
    """
    if plan.direct:
        return False
    if reserves:
        return True
    if not asks or not entered or (plan.rung == "unknown" and plan.publish):
        return False
    return plan.rung != "unknown" or waited_s < PATIENCE_S
