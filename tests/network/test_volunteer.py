"""A run without any lighthouse: one public founder relays for two homes between which no hole can be punched."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.network.homes import daemon, founders, identity
from tests.peer.live import sealed, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.network.natlab import Lab

NAMES = ("public", "one", "two")


@pytest.mark.timeout(240)
def test_two_symmetric_homes_meet_through_a_volunteer(lab: Lab, tmp_path: Path) -> None:
    """Its relay is made known in the run, serves both, is shown in its status, and ends with it."""
    run, host, began = founders(tmp_path, NAMES), lab.public(), time.monotonic()
    public = daemon(host, tmp_path / "public", run, [], "--relay", "--p2p-port", "4001", "--relay-port", "4002")
    seed = ("--join", f"/ip4/{host.address}/tcp/4001/p2p/{identity(public)}")
    homes = [daemon(lab.home("symmetric"), tmp_path / name, run, [], *seed) for name in NAMES[1:]]
    one, two = homes
    try:
        until(lambda: one.connections().get(identity(two)) == "relayed", 90, "the homes are connected")
        sys.stdout.write(f"relayed after {time.monotonic() - began:.1f} s\n")

        def used() -> list[int]:
            limits = public.status()["limits"]
            return [limits.get(each, {}).get("in_use", 0) for each in ("relay_reservations", "relay_circuits")]

        until(lambda: used()[0] == 2 and used()[1] >= 1, 20, "its status shows both")
        at = f"/ip4/{host.address}/tcp/4002/"
        until(lambda: all(at in str(each.status()["reach"]["addresses"]) for each in homes), 20, "both name it")
        everybody = {identity(each) for each in (public, *homes)}
        until(
            lambda: any(set(entry["contributors"]) == everybody for entry in sealed(one.home.root).values()),
            60,
            "a round of all three",
        )
    except AssertionError as error:
        raise AssertionError(f"{error}{public.log()}{one.log()}{two.log()}") from error
