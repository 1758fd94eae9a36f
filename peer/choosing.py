"""A person chooses among several histories of the run: ``murmur run follow`` on its way to the round machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocols.errors import EnvironmentFault, LocalError
from protocols.round.effects import Notice

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.ids import Hash
    from protocols.round.effects import Effect, Followed
    from protocols.round.machine import Machine

    from .chain_file import ChainFile

WAIT_S = 30.0
"""How long the machine may take to hear of it."""


async def choose(machine: Machine, seal: Hash, hand_in: Callable[[Callable[[float], list[Effect]]], None]) -> None:
    """Hand the choice to the machine, among its other inputs; raises LocalError where it is none of those shown."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def run(now: float) -> list[Effect]:
        try:
            effects = machine.follow(seal, now)
        except LocalError as error:
            if not done.done():
                done.set_exception(error)
            return []
        if not done.done():
            done.set_result(None)
        return effects

    hand_in(run)
    try:
        async with asyncio.timeout(WAIT_S):
            await done
    except TimeoutError as error:
        raise LocalError("the round in flight leaves no time for this", remedy="try again in a minute") from error


def remember(chain: ChainFile, effect: Followed) -> Notice | None:
    """Keep the choice for restarts; what to tell where the disk refuses it. May block on the disk."""
    try:
        if effect.link:
            chain.save_followed(effect.seal, effect.link)
        else:
            chain.forget_followed()
    except EnvironmentFault as error:
        return Notice("follow", str(error), error.remedy)
    return None
