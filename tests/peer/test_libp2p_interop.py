"""py-libp2p, in a process of its own, meets a daemon and a lighthouse: we speak libp2p, and not only to ourselves."""

from __future__ import annotations

import asyncio
import re
import signal
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from dht.reach import PROTOCOL as REACH
from dht.transport import PROTOCOL_ID as ROUNDS
from peer.exits import Exit
from tests.dht.relay_lab import NOISE, TLS, py_peer
from tests.peer.live import murmur, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.dht.relay_lab import PyPeer

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(150),
    pytest.mark.skipif(find_spec("libp2p") is None, reason="the extra 'lighthouse' is not installed"),
]
LOCAL = ("--listen", "127.0.0.1", "--p2p-port", "0")
HOP = "/libp2p/circuit/relay/0.2.0/hop"
RESERVED = 100


async def met(peer: PyPeer, address: str) -> set[str]:
    """Connect, identify, ping; the protocols of who is there."""
    assert await peer("connect", address=address) == {}
    known = await peer("identify")
    assert known["observed"].startswith("/ip4/127.0.0.1/tcp/")
    assert address.partition("/p2p/")[0] in {each.partition("/p2p/")[0] for each in known["listen"]}
    assert (await peer("ping"))["us"] >= 0  # py-libp2p has compared the bytes that came back
    return set(known["protocols"])


def test_it_identifies_and_pings_a_daemon(tmp_path: Path) -> None:
    async def scenario(address: str) -> None:
        async with py_peer(21, TLS) as peer:
            assert {REACH, ROUNDS, "/ipfs/ping/1.0.0"} <= await met(peer, address)

    with murmur(tmp_path / "home", "up", "--size", "nano", *LOCAL) as live:
        until(lambda: bool(live.status().get("reach", {}).get("addresses")), 60, "it says where it listens")
        until(lambda: live.status()["state"] == "training", 60, "it trains")
        asyncio.run(scenario(live.status()["reach"]["addresses"][0]))
        assert live.asked(signal.SIGTERM, 20) == Exit.DONE


def test_it_identifies_and_pings_a_lighthouse_and_reserves_there(tmp_path: Path) -> None:
    async def scenario(entry: str, relay: str) -> None:
        async with py_peer(22, TLS) as peer:
            assert REACH in await met(peer, entry)
        for number, security in ((23, TLS), (24, NOISE)):
            async with py_peer(number, security) as peer:
                assert HOP in await met(peer, relay)
                answer = await peer("reserve")
                assert answer["status"] == RESERVED and answer["addrs"] == [relay]

    with murmur(tmp_path / "home", "lighthouse", *LOCAL, "--relay-port", "0") as live:
        live.says("/metrics", 60)
        entry, relay = (
            re.search(rf"^  {word} .*(/ip4/127\.0\.0\.1/tcp/\S+)$", live.printed, re.MULTILINE)
            for word in ("join", "relay")
        )
        assert entry and relay
        asyncio.run(scenario(entry[1], relay[1]))
        assert live.asked(signal.SIGTERM, 20) == Exit.DONE
