"""Neighbours among the peers of the directory, and what is told to those outside."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from dht.records import PeerRecord
from peer.nearby import Nearby
from peer.options import UpOptions
from protocols.ids import PeerId

if TYPE_CHECKING:
    from dht.directory import Directory
    from dht.p2pd import P2pd

RUN, OWN, NEAR, FAR, STRANGER = bytes(32), PeerId("own"), PeerId("near"), PeerId("far"), PeerId("stranger")
HERE = f"/ip4/192.168.1.8/tcp/1/p2p/{NEAR}"
PUBLIC, PRIVATE, NAMED = "/ip4/8.8.8.8/tcp/1/p2p/x", "/ip4/10.0.0.1/tcp/1/p2p/x", "/dns4/example.org/tcp/1/p2p/x"


class Bench:
    """A ``Nearby`` whose directory and neighbours the test has made."""

    def __init__(self, *, listen: str = "0.0.0.0", lan: bool = True) -> None:
        self.seeded: list[str] = []
        self.met: list[str] = []
        self.started = 0
        self.known: dict[PeerId, str] = {NEAR: HERE}
        options = UpOptions(home=Path("/nowhere"), listen=listen, lan=lan)
        p2pd = cast("P2pd", SimpleNamespace(port=1))
        self.nearby = Nearby(options, RUN, OWN, p2pd, cast("Directory", self), lambda peer: peer != STRANGER)
        self.nearby._neighbours = cast("Any", self)

    def seeds(self) -> list[Any]:
        return [SimpleNamespace(address=each) for each in self.seeded]

    async def meet(self, peer: PeerId, address: str) -> None:
        self.met.append(address)

    def start(self) -> None:
        self.started += 1

    def near(self) -> dict[PeerId, str]:
        return self.known


def record(peer: str, *addresses: str) -> PeerRecord:
    return PeerRecord(RUN, peer, addresses, ("contributor",), "1", 3, 4, 5)


@pytest.mark.parametrize(
    ("listen", "lan", "begins"),
    [("0.0.0.0", True, 1), ("192.168.1.7", True, 1), ("127.0.0.1", True, 0), ("0.0.0.0", False, 0)],
)
def test_it_is_announced_unless_that_is_not_wanted_or_nobody_could_come(listen: str, lan: bool, begins: int) -> None:
    bench = Bench(listen=listen, lan=lan)
    bench.nearby.start()
    assert bench.started == begins


def test_a_neighbour_is_dialled_here_first_and_needs_no_record() -> None:
    bench = Bench()
    records = [record(NEAR, PUBLIC), record(FAR, PUBLIC)]
    assert bench.nearby.join(records) == [record(NEAR, HERE, PUBLIC), record(FAR, PUBLIC)]
    assert records[0].addresses == (PUBLIC,), "what the directory says stays as it is"
    (alone,) = bench.nearby.join([])
    assert (alone.peer, alone.addresses, alone.roles) == (NEAR, (HERE,), ("contributor",))
    assert (bench.nearby.address(NEAR), bench.nearby.address(FAR)) == (HERE, "")


def test_whom_the_run_does_not_admit_is_not_dialled() -> None:
    bench = Bench()
    bench.known = {STRANGER: HERE}
    assert bench.nearby.join([]) == []


def test_somebody_outside_is_known_by_a_seed_or_a_record() -> None:
    bench = Bench()
    assert not bench.nearby.outside()
    bench.seeded = [PRIVATE]
    bench.nearby.join([record(FAR, PRIVATE)])
    assert not bench.nearby.outside()
    bench.nearby.join([record(FAR, f"{PUBLIC}/p2p-circuit/p2p/{FAR}")])
    assert bench.nearby.outside()
    bench.nearby.join([])
    assert not bench.nearby.outside()
    for seed in (PUBLIC, NAMED):
        bench.seeded = [PRIVATE, seed]
        assert bench.nearby.outside()


def test_an_invitation_names_nothing_private_where_somebody_outside_is_known() -> None:
    bench = Bench()
    assert bench.nearby.tellable([PRIVATE]) == (PRIVATE,)
    assert bench.nearby.tellable([PRIVATE, PUBLIC, NAMED]) == (PUBLIC, NAMED)
    bench.seeded = [PUBLIC]
    assert bench.nearby.tellable([PRIVATE]) == ()
    assert bench.nearby.tellable([PRIVATE, PUBLIC]) == (PUBLIC,)
