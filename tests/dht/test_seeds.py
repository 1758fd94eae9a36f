"""Seeds whose attempt fails in unexpected ways."""

from __future__ import annotations

import asyncio

from dht.seeds import Seeds, SeedTiming
from peer.identity import Identity

ADDRESS, OTHER = (f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.from_seed(bytes([number]) * 32).peer}" for number in (1, 2))


def test_defect_in_an_attempt_shows_in_the_state_and_it_is_tried_again() -> None:
    async def scenario() -> None:
        tried, again = [], asyncio.Event()

        async def attempt(_: str, address: str) -> None:
            tried.append(address)
            if address == ADDRESS:
                if tried.count(ADDRESS) == 2:
                    again.set()
                raise KeyError

        seeds = Seeds([ADDRESS, OTHER], attempt, timing=SeedTiming(first_retry_s=0.01))
        async with asyncio.timeout(5):
            await again.wait()
        bad, good = seeds.states()
        assert bad.error == "KeyError()" and good.state == "ok"
        await seeds.close()

    asyncio.run(scenario())
