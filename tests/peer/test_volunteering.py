"""The relay beside a daemon: when it is offered and where, and that it is withdrawn and ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from dht.reachability import Plan
from dht.relay_limits import RelayLimits
from dht.relay_process import RelayFigures
from peer import cli
from peer.identity import Identity
from peer.volunteering import AGAIN_S, TIMING, Volunteering, offered
from protocols.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dht.reachability import Rung
    from dht.records import PeerRecord

RUN = bytes(range(32))
KEY = Identity.from_seed(bytes(32))
OWN, MAPPED = "8.8.4.4", "9.9.9.9"
PUBLISH = (f"/ip4/{OWN}/tcp/4001", f"/ip4/{MAPPED}/tcp/4001")
THERE = (f"/ip4/{OWN}/tcp/4002/p2p/{KEY.peer}",)


def _plan(rung: Rung, publish: tuple[str, ...] = PUBLISH) -> Plan:
    return Plan(rung, (), publish, (), ())


class FakeRelay:
    """Notes what it is told, in order."""

    def __init__(self) -> None:
        self.figures = RelayFigures(reservations=3, circuits=2, refused={"rate of requests": 4})
        self.pid: int | None = None
        self.did: list[Any] = []
        self.is_broken = False

    async def start(self) -> None:
        self.did.append("start")
        if self.is_broken:
            raise EnvironmentFault("its port is taken", remedy="another")
        self.pid = 1

    async def stop(self) -> None:
        self.did.append("stop")
        self.pid = None

    def allow(self, peers: frozenset[str] | None) -> None:
        self.did.append(peers)


class Bench:
    """Volunteering with everything around it made up."""

    def __init__(self) -> None:
        self.relay, self.rung, self.known = FakeRelay(), "public", frozenset({"a"})
        self.records: list[PeerRecord] = []
        self.warned: list[str] = []
        self.is_taken = True
        reporter: Any = self
        self.part = Volunteering(
            self.relay,
            KEY,
            4002,
            RelayLimits(),
            RUN,
            self,
            lambda: _plan(self.rung),  # type: ignore[arg-type]
            lambda: self.known,
            reporter,
            interfaces=lambda: frozenset({OWN}),
        )

    async def tell(self, record: PeerRecord, sign: Callable[[bytes], bytes]) -> bool:
        assert sign(b"x") == KEY.sign(b"x")
        self.records.append(record)
        return self.is_taken

    def warn(self, code: str, text: str, remedy: str = "") -> None:
        self.warned.append(text)

    def follow(self, *times: float) -> None:
        async def each() -> None:
            for now in times:
                await self.part.follow(now)

        asyncio.run(each())


@pytest.mark.parametrize("rung", ["unknown", "mapped", "ipv6", "punched", "relayed", "none"])
def test_only_a_public_peer_offers_a_relay(rung: Rung) -> None:
    assert offered(_plan(rung), frozenset({OWN}), 4002, KEY.peer) == ()


def test_it_is_offered_at_proven_addresses_of_this_machine_alone() -> None:
    assert offered(_plan("public"), frozenset({OWN, "10.0.0.1"}), 4002, KEY.peer) == THERE
    assert offered(_plan("public"), frozenset({"10.0.0.1"}), 4002, KEY.peer) == ()


def test_it_is_announced_and_renewed_for_the_run_alone() -> None:
    bench = Bench()
    bench.follow(100.0, 101.0)
    assert bench.relay.did == [frozenset({"a"}), "start"], "nobody is served before it is known who may be"
    (record,) = bench.records
    assert (record.run, record.peer, record.addresses, record.roles) == (RUN, KEY.peer, THERE, ("relay",))
    assert not record.left
    bench.known = frozenset({"a", "b"})
    bench.follow(102.0, 100.0 + TIMING.refresh_s)
    assert bench.relay.did[2:] == [frozenset({"a", "b"})]
    assert len(bench.records) == 2 and bench.records[1].sequence > record.sequence
    gauges = {each.name: (each.in_use, each.refused) for each in bench.part.gauges()}
    assert gauges == {"relay_reservations": (3, 4), "relay_circuits": (2, 0)}


def test_what_no_node_took_is_told_again_soon() -> None:
    bench = Bench()
    bench.is_taken = False
    bench.follow(100.0, 101.0, 100.0 + TIMING.retry_s)
    assert len(bench.records) == 2


def test_it_is_withdrawn_before_it_ends_when_others_cannot_dial_any_more() -> None:
    bench = Bench()
    bench.follow(100.0)
    bench.rung = "none"
    bench.follow(101.0, 102.0)
    assert bench.relay.did[-1] == "stop" and bench.relay.did.count("stop") == 1
    assert [each.left for each in bench.records] == [False, True]
    assert bench.records[1].addresses == () and bench.records[1].sequence > bench.records[0].sequence
    assert bench.part.gauges() == []
    bench.rung = "public"
    bench.follow(100.0 + AGAIN_S)
    assert bench.relay.did[-1] == "start" and not bench.records[-1].left


def test_a_relay_that_is_being_restarted_is_not_renewed() -> None:
    bench = Bench()
    bench.follow(100.0)
    bench.relay.pid = None
    bench.follow(100.0 + TIMING.refresh_s)
    assert len(bench.records) == 1


def test_one_that_does_not_start_is_a_warning_and_tried_again() -> None:
    bench = Bench()
    bench.relay.is_broken = True
    bench.follow(100.0, 101.0)
    assert bench.relay.did.count("start") == 1 and bench.records == []
    assert bench.warned == ["no relay here: its port is taken"]
    bench.relay.is_broken = False
    bench.follow(100.0 + AGAIN_S)
    assert len(bench.records) == 1


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = cli.parser().parse_args(["up", "--relay", "--home", str(tmp_path / "home")])
    with pytest.raises(EnvironmentFault, match="py-libp2p") as caught:
        cli.run_up(vars(found))
    assert caught.value.remedy == "pip install 'murmuration[lighthouse]'"
    assert not (tmp_path / "home").exists()
