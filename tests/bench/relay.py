"""The relay beside py-libp2p without one, and how 64 circuits that all have something to send share it.

Prints five JSON lines. ``circuit/noise`` and ``circuit/tls``: MB/s of one circuit between two py-libp2p peers, against
one stream between the same two, in turns. ``fair/limited`` and ``fair/unlimited``: Jain's index over the bytes that 64
saturated circuits between 4 peers and 2 carried, with a rate for all and without. ``memory``: what the relay's process
holds then. Sender, relay and receiver share this machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dht.relay_limits import RelayLimits  # noqa: E402
from dht.relay_process import RelayConfig, RelayProcess  # noqa: E402
from peer.identity import Identity  # noqa: E402
from tests.dht.relay_lab import NOISE, TLS, PyPeer, py_peer  # noqa: E402

RATE_BOUND, JAIN_BOUND, MEMORY_BOUND = 0.4, 0.9, 200e6
SIZE = {False: 128 << 20, True: 16 << 20}
RUNS = {False: 5, True: 2}
SOURCES, TARGETS, CIRCUITS = 4, 2, 64
SHARED_RATE = 16e6
"""Bytes a second of all 64: what a small machine has, and less than these peers can send."""
WARM_S, SHARE_S = 2.0, {False: 15.0, True: 4.0}
FREE = RelayLimits(circuit_rate=None, total_rate=None, requests_ip=1000)


async def relay_of(stack: AsyncExitStack, limits: RelayLimits) -> tuple[RelayProcess, str]:
    """A started one and its address."""
    home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relay-")))
    Identity.from_seed(secrets.token_bytes(32)).save(home / "key")  # py-libp2p shuns an id that was not there once
    relay = await stack.enter_async_context(
        RelayProcess(RelayConfig(home / "key", ("/ip4/127.0.0.1/tcp/0",), limits=limits))
    )
    return relay, f"{relay.addresses[0]}/p2p/{relay.peer}"


async def connected(stack: AsyncExitStack, number: int, security: str, address: str) -> PyPeer:
    """A py-libp2p peer at the relay."""
    peer = await stack.enter_async_context(py_peer(number, security))
    await peer("connect", address=address)
    return peer


def ok(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, when it is a good one."""
    if answer.get("failed") or answer.get("status", 100) != 100 or answer.get("ok") is False:
        raise RuntimeError(f"a peer answered {answer}")
    return answer


async def megabytes_per_s(source: PyPeer, target: PyPeer, number: int, size: int) -> float:
    """From the first byte sent to the last one received."""
    arrived = asyncio.create_task(target("arrived", more=size))
    await asyncio.sleep(0.1)  # it is listening by then
    began = time.monotonic()
    ok(await source("send", size=size, number=number, echo=False))
    ok(await arrived)
    return size / 1e6 / (time.monotonic() - began)


async def one_circuit(security: str, quick: bool) -> list[tuple[float, float]]:
    """MB/s through the relay and without it, in turns."""
    async with AsyncExitStack() as stack:
        _, address = await relay_of(stack, FREE)
        target = await connected(stack, 1, security, address)
        source = await connected(stack, 2, security, address)
        ok(await target("reserve"))
        ok(await target("counting"))
        ok(await source("dial", peer=target.peer, number=1))
        ok(await source("connect", address=target.address))
        ok(await source("direct", number=2))
        for number in (1, 2):
            await megabytes_per_s(source, target, number, 8 << 20)  # windows have grown
        found = []
        for run in range(RUNS[quick]):
            order = (1, 2) if run % 2 == 0 else (2, 1)  # a machine that grows slower favours neither
            rates = {number: await megabytes_per_s(source, target, number, SIZE[quick]) for number in order}
            found.append((rates[1], rates[2]))
        return found


async def shares(quick: bool) -> dict[str, tuple[list[int], int]]:
    """By case: what each of 64 saturated circuits carried in the same seconds, and the relay's memory meanwhile."""
    async with AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(py_peer(1 + number)) for number in range(TARGETS)]
        sources = [await stack.enter_async_context(py_peer(11 + number)) for number in range(SOURCES)]
        found = {}
        for case, limits in (("limited", RelayLimits(total_rate=SHARED_RATE, requests_ip=1000)), ("unlimited", FREE)):
            async with AsyncExitStack() as inner:
                relay, address = await relay_of(inner, limits)
                found[case] = await share(relay, address, sources, targets, SHARE_S[quick])
        return found


async def share(
    relay: RelayProcess, address: str, sources: list[PyPeer], targets: list[PyPeer], seconds: float
) -> tuple[list[int], int]:
    """One relay with all of them."""
    for peer in (*sources, *targets):
        await peer("connect", address=address)
    for target in targets:
        ok(await target("reserve"))
        ok(await target("counting"))
    earlier, each = await received(targets), CIRCUITS // SOURCES
    for source in sources:
        for number in range(each):
            ok(await source("dial", peer=targets[number % TARGETS].peer, number=number))
    span = WARM_S + seconds + 1
    pumps = [asyncio.create_task(source("pump", numbers=list(range(each)), seconds=span)) for source in sources]
    assert relay.pid is not None
    process, memory = psutil.Process(relay.pid), 0
    await asyncio.sleep(WARM_S)
    before = await received(targets)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        memory = max(memory, process.memory_info().rss)
        await asyncio.sleep(0.1)
    after = await received(targets)
    for answer in await asyncio.gather(*pumps):
        ok(answer)
    counts = [count - before[name] for name, count in after.items() if name not in earlier]
    if len(counts) != CIRCUITS:
        raise RuntimeError(f"{len(counts)} circuits, not {CIRCUITS}")
    return counts, memory


async def received(targets: list[PyPeer]) -> dict[tuple[str, str], int]:
    """Bytes by target and circuit."""
    answers = await asyncio.gather(*(target("received") for target in targets))
    return {
        (target.peer, name): count
        for target, answer in zip(targets, answers, strict=True)
        for name, count in answer["received"].items()
    }


def jain(counts: list[int]) -> float:
    """1 where all are equal."""
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts))


def line(case: str, value: float, against: tuple[str, float], **more: Any) -> None:
    """One of the bench's lines; ``unit``, ``better`` and ``bound`` in ``more``."""
    ratio = value / against[1]
    good = ratio >= more["bound"] if more["better"] == "higher" else ratio <= more["bound"]
    result = {
        "schema": 1, "bench": "relay", "case": case, "value": value,
        "against": {"name": against[0], "value": against[1]}, "ratio": ratio, "ok": good,
        "runs": 1, "spread": [ratio, ratio], "seed": 0, **more,
    }  # fmt: skip
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    for case, security in (("noise", NOISE), ("tls", TLS)):
        found = asyncio.run(one_circuit(security, quick))
        found.sort(key=lambda pair: pair[0] / pair[1])
        ratios = [through / direct for through, direct in found]
        through, direct = found[(len(found) - 1) // 2]  # the pair in the middle: both met the same machine
        line(
            f"circuit/{case}", through, ("py-libp2p direct", direct), unit="MB/s", better="higher", bound=RATE_BOUND,
            runs=len(found), spread=[ratios[0], ratios[-1]], quick=quick,
        )  # fmt: skip
    found_shares = asyncio.run(shares(quick))
    for case, (counts, _) in found_shares.items():
        rates = sorted(count / SHARE_S[quick] / 1e6 for count in counts)
        sys.stderr.write(f"{case}: {sum(rates):.1f} MB/s together, a circuit {rates[0]:.3f} to {rates[-1]:.3f}\n")
        line(
            f"fair/{case}", jain(counts), ("equal shares", 1.0), unit="Jain", better="higher", bound=JAIN_BOUND,
            quick=quick,
        )  # fmt: skip
    most = max(memory for _, memory in found_shares.values())
    line("memory", most, ("bound", MEMORY_BOUND), unit="B", better="lower", bound=1.0, quick=quick)


if __name__ == "__main__":
    main()
