"""Whom a daemon dials, what it announces, and what it says about entry addresses that are dead."""

from __future__ import annotations

import random
import socket
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pytest

from dht.limits import Gauge
from dht.reachability import Plan
from dht.records import MAX_ADDRESSES, PeerRecord
from dht.seeds import Seed
from peer import status
from peer.dialling import MAX_STRANGERS, takes_part, whom_to_dial
from peer.identity import Identity
from peer.network import Network
from peer.options import UpOptions
from peer.paths import Home
from peer.refusals import COMPLAIN_S
from peer.status import to_json
from protocols.ids import PeerId
from tests.peer.board import Board
from tests.peer.live import home_of, murmur, small_run, until

if TYPE_CHECKING:
    from pathlib import Path

RUN = bytes(range(32))
KEY = Identity.from_seed(bytes(32))


def _record(peer: str) -> PeerRecord:
    return PeerRecord(RUN, peer, (f"/ip4/10.0.0.1/tcp/1/p2p/{peer}",), ("contributor",), "0.1.0", 0, 1, 1)


def _network(folder: Path) -> Network:
    home = Home(folder / "home")
    home.create()
    initial = status.Status(
        version="0.1.0",
        protocol=1,
        peer=KEY.peer,
        since=0.0,
        run=status.RunInfo(RUN.hex(), "test", "nano", "cell"),
        model=status.ModelInfo(parameters=1),
    )
    board: Any = Board(initial)
    return Network(UpOptions(home=home.root), home, RUN, KEY, board)


def test_members_are_dialled_first_and_strangers_are_few() -> None:
    members = frozenset(PeerId(f"member {number}") for number in range(40))
    strangers = [PeerId(f"stranger {number:04}") for number in range(4000)]
    found = [_record(peer) for peer in [*strangers, *sorted(members)]]
    connected = frozenset({PeerId("member 3"), *strangers[:10]})
    first, rest = whom_to_dial(found, connected, members, draw=random.Random(1))
    assert {record.peer for record in first} == members - connected
    assert len({record.peer for record in rest}) == MAX_STRANGERS - 10
    assert {record.peer for record in rest} <= set(strangers[10:])
    _, others = whom_to_dial(found, connected, members, draw=random.Random(2))
    assert others != rest, "those that cannot be reached must not be all that is ever tried"
    assert whom_to_dial(found, frozenset(strangers[:200]), members, draw=random.Random(1))[1] == []
    few = [_record(peer) for peer in strangers[:3]]
    assert len(whom_to_dial(few, frozenset(), frozenset(), draw=random.Random(1))[1]) == 3


@pytest.mark.parametrize(
    ("roles", "takes"),
    [
        (("contributor",), True),
        ((), True),
        (("relay",), False),
        (("lighthouse",), False),
        (("relay", "contributor"), True),
    ],
)
def test_a_helper_that_contributes_too_is_not_left_out(roles: tuple[str, ...], takes: bool) -> None:
    assert takes_part(replace(_record("peer"), roles=roles)) is takes


def test_machine_with_many_bridges_announces_its_best_addresses(tmp_path: Path) -> None:
    """Before, the record was refused as too long and the daemon ended with exit code 1."""
    network = _network(tmp_path)
    transport: Any = network.transport
    transport._peer = KEY.peer
    bridges = [f"/ip4/172.{number}.0.1/tcp/4001" for number in range(17, 32)]
    publish = ("/ip4/127.0.0.1/tcp/4001", *bridges, "/ip4/10.0.0.7/tcp/4001", "/ip4/8.8.4.4/tcp/4001")
    network._reaching._follow(Plan("unknown", (), publish, (), ()))
    told = network._reporter.status.reach.addresses
    assert len(told) == MAX_ADDRESSES
    assert told[0] == f"/ip4/8.8.4.4/tcp/4001/p2p/{KEY.peer}"
    assert not any("127.0.0.1" in each for each in told)


def test_whoever_is_merely_connected_is_asked_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed that has published nothing yet has no neighbour: it was never found public without a lighthouse."""
    network = _network(tmp_path)
    helper, visitor = PeerId("a helper"), PeerId("a visitor")
    monkeypatch.setattr(network.transport.routes, "ways", lambda: {visitor: None, helper: None})
    assert network._observers() == [helper, visitor]
    network._helpers = {visitor: _record(visitor)}
    assert network._observers() == [visitor, helper]


def test_what_is_refused_shows_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, now = _network(tmp_path), 1000.0
    monkeypatch.setattr("peer.refusals.time.monotonic", lambda: now)
    gauge = Gauge("visits", 3, "visits of peers that came too often")
    network.refusals.watch(lambda: [gauge])

    def shown() -> list[str]:
        network.refusals.tell()
        return [warning.text for warning in network._reporter.status.warnings if warning.code == "refused"]

    assert shown() == []
    assert [gauge.enter() for _ in range(5)] == [True] * 3 + [False] * 2
    assert shown() == ["refused since the start: 2 visits of peers that came too often"]
    assert to_json(network._reporter.status)["limits"]["visits"] == {"limit": 3, "in_use": 3, "refused": 2}
    assert {"streams", "handshakes_peer", "penalised", "records"} <= network._reporter.status.limits.keys()
    gauge.refused = 7
    assert shown() == ["refused since the start: 2 visits of peers that came too often"], "once a minute"
    now += COMPLAIN_S
    assert shown() == ["refused since the start: 7 visits of peers that came too often"]
    now += COMPLAIN_S
    assert shown() == [], "nothing was refused for a minute"


def _seed(number: int, state: Literal["ok", "failed"], offset_s: float | None = None) -> Seed:
    peer = Identity.from_seed(bytes([number]) * 32).peer
    return Seed(f"/ip4/203.0.113.{number}/tcp/4001/p2p/{peer}", state, None, None, offset_s)


def test_a_seed_with_another_clock_is_a_warning_until_it_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, seeds = _network(tmp_path), [_seed(1, "failed", -7.25), _seed(2, "failed", 4.0), _seed(3, "ok")]
    monkeypatch.setattr(network._directory, "seeds", lambda: seeds)

    def warnings() -> dict[str, str]:
        network._news.tell_seeds(network.seeds())
        return {each.code: each.text for each in network._reporter.status.warnings}

    assert "7.2 s apart" in warnings()["clock"]
    assert len(network._reporter.status.seeds) == 3
    seeds[:2] = [_seed(1, "ok"), _seed(2, "ok")]
    assert warnings() == {}


def test_who_may_have_blobs_is_asked_where_it_can_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, seeds = _network(tmp_path), [_seed(1, "ok"), _seed(2, "failed")]
    monkeypatch.setattr(network._directory, "seeds", lambda: seeds)
    near, far, mute = (Identity.from_seed(bytes([number]) * 32).peer for number in (4, 5, 6))
    monkeypatch.setattr(network.transport, "neighbours", lambda: frozenset({near}))
    known = [replace(_record(peer), addresses=(f"/ip4/10.0.0.1/tcp/1/p2p/{peer}",)) for peer in (near, far, mute)]
    network._records = {PeerId(each.peer): each for each in known}
    network._records[far] = replace(network._records[far], roles=("contributor", "blobs"))
    assert network.providers("blobs") == {
        near: known[0].addresses,
        far: known[1].addresses,
        PeerId(seeds[0].address.rpartition("/")[2]): (seeds[0].address,),
    }
    network._admits = lambda peer: peer == far
    assert list(network.providers("blobs")) == [far]


@pytest.mark.real
@pytest.mark.timeout(240)
@pytest.mark.parametrize("founders", [1, 2])
def test_dead_entry_address_is_listed_with_its_error(tmp_path: Path, founders: int) -> None:
    """Only who has other members to wait for is seeking; alone in its run a peer trains.

    It signs once its key's lease on any other machine must have ended, for nobody could be asked about that.
    """
    run, keys = small_run(tmp_path, founders=founders)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    dead = f"/ip4/127.0.0.1/tcp/{port}/p2p/{Identity.from_seed(bytes([9]) * 32).peer}"
    arguments = ("up", "--threads=1", "--listen=127.0.0.1", f"--run={run}", f"--join={dead}")
    program = (sys.executable, "-m", "tests.peer.short_lease")
    with murmur(home_of(tmp_path, keys[0]), *arguments, program=program) as live:

        def seed() -> dict[str, Any]:
            seeds = live.status().get("seeds", [])
            return dict(seeds[0]) if seeds else {}

        until(lambda: bool(seed().get("error")) or live.process.poll() is not None, 90, "the seed was tried")
        assert seed()["address"] == dead and seed()["state"] in {"failed", "trying"}
        assert "connection refused" in seed()["error"]
        if founders == 1:
            until(lambda: (live.status()["round"]["last_sealed"] or 0) >= 1, 90, "it trains on its own")
            assert live.status()["state"] == "training"
        else:
            until(lambda: live.status()["state"] == "seeking", 90, "it says that it looks for others")
            assert live.status()["reason"]["code"] == "no_peers"
