"""When a node of the directory serves others, and when it only asks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dht.reachability import Plan, Rung
from peer.serving import PATIENCE_S, Serving, only_asks
from protocols.errors import TransportError

HERE = ("/ip4/192.168.0.7/tcp/1",)


def plan(rung: Rung, publish: tuple[str, ...] = ()) -> Plan:
    return Plan(rung, (), publish, (), ())


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (plan("unknown"), True),
        (plan("none"), True),
        (plan("relayed", ("/ip4/8.8.8.8/tcp/1/p2p/R/p2p-circuit",)), True),
        (plan("punched", ("/ip4/8.8.8.8/tcp/1/p2p/R/p2p-circuit",)), True),
        (plan("unknown", HERE), False),
        (plan("public", ("/ip4/8.8.8.8/tcp/1",)), False),
        (plan("mapped", ("/ip4/8.8.8.8/tcp/1",)), False),
        (plan("ipv6", ("/ip6/2001:db8::1/tcp/1",)), False),
    ],
)
def test_who_was_let_in_by_others_serves_once_it_is_reached(found: Plan, expected: bool) -> None:
    for entered in (True, False):
        assert only_asks(True, found, reserves=False, entered=entered, waited_s=0) is expected
        assert not only_asks(False, found, reserves=False, entered=entered, waited_s=0), "that goes on unproven"
    assert not only_asks(True, found, reserves=False, entered=False, waited_s=PATIENCE_S), "there is nobody else to ask"


@pytest.mark.parametrize("asks", [True, False])
def test_who_reserves_at_relays_only_asks_unless_it_is_reached_all_the_same(asks: bool) -> None:
    for rung in ("unknown", "none", "relayed", "punched"):
        assert only_asks(asks, plan(rung), reserves=True, entered=False, waited_s=1e9)  # type: ignore[arg-type]
    assert not only_asks(asks, plan("mapped"), reserves=True, entered=True, waited_s=0)


def test_where_nobody_can_tell_it_serves_after_a_while() -> None:
    def asks(waited_s: float) -> bool:
        return only_asks(True, plan("unknown"), reserves=False, entered=True, waited_s=waited_s)

    assert asks(PATIENCE_S - 0.1) and not asks(PATIENCE_S)


class Directory:
    """What is begun anew."""

    def __init__(self, *, fails: bool = False) -> None:
        self.client, self.fails, self.begun, self.runs = True, fails, 0, True

    def seeds(self) -> list[Any]:
        return [type("Seed", (), {"state": "ok"})]

    async def rebind(self) -> None:
        self.begun += 1
        self.runs = not self.fails
        if self.fails:
            raise TransportError("me", "p2pd is gone")


def test_its_node_begins_anew_when_that_changes_and_at_no_other_time() -> None:
    directory: Any = Directory()
    now = [plan("unknown")]
    serving = Serving(directory, lambda: now[0], lambda: False)

    async def scenario() -> None:
        await serving.follow()
        assert (directory.client, directory.begun) == (True, 0)
        now[0] = plan("public")
        await serving.follow()
        assert (directory.client, directory.begun) == (False, 1)
        await serving.follow()
        now[0] = plan("none")
        await serving.follow()
        assert directory.begun == 1

    asyncio.run(scenario())


def test_a_node_that_could_not_begin_is_tried_again() -> None:
    """Before, a peer whose p2pd was just too slow stayed without a directory for good."""
    directory: Any = Directory(fails=True)
    serving = Serving(directory, lambda: plan("public"), lambda: False)

    async def scenario() -> None:
        await serving.follow()
        await serving.follow()
        assert (directory.client, directory.begun) == (False, 2)
        directory.fails = False
        for _ in range(3):
            await serving.follow()
        assert directory.begun == 3

    asyncio.run(scenario())
