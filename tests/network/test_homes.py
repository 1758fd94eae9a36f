"""People's homes: what each kind of network makes of a daemon, and that all of them train."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from protocols.errors import TransportError
from tests.network.homes import Lighthouse, daemon, founders, identity
from tests.network.transfers import Gone, taps
from tests.peer.live import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.network.homes import Program
    from tests.network.natlab import Lab
    from tests.network.rulesets import Nat
    from tests.network.transfers import Tap
    from tests.network.wires import Counter, Host

PUNCHABLE: tuple[Nat, ...] = ("port_preserving", "double", "bridge")
HOMES: tuple[Nat, ...] = (*PUNCHABLE, "symmetric", "no_udp")
KINDS = ("public", *HOMES)

MIB = 1 << 20
SIZE = 64 * MIB
QUIET = 100_000
"""Bytes a second of the lighthouse's line, each way, without rounds."""
TRANSFER_S, TRANSFER_TRIES = 30.0, 3


class Through(NamedTuple):
    """Bytes that came to the lighthouse and that left it: the less of both, and the more."""

    least: int
    most: int


def ways(one: str, two: str) -> set[str]:
    """How two peers come together, by the kinds of their networks."""
    if "public" in (one, two):
        return {"direct"}
    return {"punched"} if one in PUNCHABLE and two in PUNCHABLE else {"relayed"}


def rungs(kind: str) -> set[str]:
    """What a daemon says of itself, beside one of each other kind."""
    if kind == "public":
        return {"public"}
    return {"punched"} if kind in PUNCHABLE else {"relayed"}


def _quiet(lighthouse: Lighthouse) -> None:
    """Wait until the last round's traffic is over."""
    for _ in range(60):
        before = lighthouse.host.counter()
        time.sleep(1.0)
        if _through(before, lighthouse.host.counter()).most < QUIET:
            return
    raise AssertionError("the lighthouse's line does not become quiet")


def _through(before: Counter, after: Counter) -> Through:
    rx, tx = after.rx - before.rx, after.tx - before.tx
    return Through(min(rx, tx), max(rx, tx))


async def _transfers(lighthouse: Lighthouse, peers: dict[str, Program]) -> list[str]:
    """64 MiB between any two, by the connection that is there; the proof is what crosses the lighthouse's line."""
    figures = []
    async with taps(peers.values()) as attached:
        by_kind = dict(zip(peers, attached, strict=True))
        for one, two in itertools.combinations(peers, 2):
            is_relayed, through, took = await _transfer(lighthouse, by_kind[one], by_kind[two])
            told = peers[one].connections()[by_kind[two].peer]
            how = ("relayed" if is_relayed else "not relayed", told)
            figures.append(f"{one} {two}: {told}, {SIZE / took / 1e6:.0f} MB/s, {through.most / 1e6:.2f} MB there")
            assert is_relayed == (told == "relayed") and told in ways(one, two), (one, two, how)
            assert through.least >= SIZE or not is_relayed, (one, two, how, through)
    return figures


async def _transfer(lighthouse: Lighthouse, one: Tap, two: Tap) -> tuple[bool, Through, float]:
    """Whether it went through a relay, what crossed the lighthouse's line meanwhile, and how long it took.

    Tried again where the connection became another one, for between some a hole is tried now and then, and where more
    crossed than it should: the last round may end late, but bytes that take the relay do so each time.
    """
    through = None
    for _ in range(TRANSFER_TRIES):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TransportError, Gone):
            is_relayed, before, began = await one.is_relayed(two), lighthouse.host.counter(), time.monotonic()
            await one.send(two, SIZE, TRANSFER_S)
            after, took = lighthouse.host.counter(), time.monotonic() - began
            if await one.is_relayed(two) == is_relayed:
                through = _through(before, after)
                if is_relayed or through.most < MIB:
                    return is_relayed, through, took
        await asyncio.sleep(2.0)
    raise AssertionError(f"from {one.peer} to {two.peer}: {through} for {SIZE} bytes")


@pytest.mark.timeout(420)
def test_each_kind_with_each_other_and_all_of_them_train(lab: Lab, tmp_path: Path) -> None:
    """One lighthouse, one peer behind each kind of network. The table is also in README and CONTRIBUTING."""
    lighthouse = Lighthouse(lab.public(), tmp_path / "lighthouse")
    run = founders(tmp_path, KINDS)
    hosts: dict[str, Host] = {"public": lab.public(), **{kind: lab.home(kind) for kind in HOMES}}
    peers = {kind: daemon(hosts[kind], tmp_path / kind, run, [lighthouse]) for kind in KINDS}
    names = {identity(peer): kind for kind, peer in peers.items()}

    def found() -> dict[tuple[str, str], str]:
        return {(kind, names[other]): how for kind, peer in peers.items() for other, how in peer.connections().items()}

    expected = {(one, two): ways(one, two) for one, two in itertools.permutations(KINDS, 2)}

    def as_expected() -> bool:
        now = found()
        return now.keys() == expected.keys() and all(how in expected[pair] for pair, how in now.items())

    try:
        until(as_expected, 150, "every pair is connected as the table says")
        stands = {kind: peer.status()["reach"]["rung"] for kind, peer in peers.items()}
        assert all(stands[kind] in rungs(kind) for kind in KINDS), stands
        assert "maps TCP and UDP port" in str(peers["bridge"].status()["reach"]["evidence"]), "FC24"
        sealed = max(peer.status()["round"]["last_sealed"] for peer in peers.values())
        until(
            lambda: min(peer.status()["round"]["last_sealed"] for peer in peers.values()) >= sealed + 3,
            120,
            "all of them seal",
        )
        until(lambda: all(peer.ask("pause") for peer in peers.values()), 30, "all pause")
        _quiet(lighthouse)
        figures = asyncio.run(_transfers(lighthouse, peers))
        sys.stdout.write("\n".join(("", *figures, "")))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{found()}" + "".join(peer.log() for peer in peers.values())) from error
