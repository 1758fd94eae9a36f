"""A home whose router opens ports: the mapped one is proven, told, used by a stranger, and closed at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.network.homes import Lighthouse, daemon, founders, identity
from tests.network.upnp import PROGRAM, Upnp
from tests.peer.live import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.network.natlab import Lab

NAMES = ("home", "stranger")
WITHDRAWN_S = 5.0
"""From the end of the daemon's process."""


@pytest.mark.skipif(PROGRAM is None, reason="miniupnpd is not installed (package miniupnpd-nftables)")
@pytest.mark.timeout(300)
def test_a_mapped_port_is_used_by_a_stranger_and_withdrawn(lab: Lab, tmp_path: Path) -> None:
    """Nobody is connected any more when the stranger comes: it has the address from the directory."""
    lighthouse = Lighthouse(lab.public(), tmp_path / "lighthouse")
    run = founders(tmp_path, NAMES)
    home = lab.home()
    upnp = Upnp(home, tmp_path)
    assert not upnp.mapped()
    behind = daemon(home, tmp_path / "home", run, [lighthouse])
    peers = [behind]
    try:
        until(lambda: behind.status().get("reach", {}).get("rung") == "mapped", 150, "the mapped port is proven")
        (port,) = upnp.mapped()
        told = f"/ip4/{home.public_address}/tcp/{port}/p2p/{identity(behind)}"
        assert behind.status()["reach"]["addresses"] == [told]
        stranger = daemon(lab.public(), tmp_path / "stranger", run, [lighthouse])
        peers.append(stranger)
        until(lambda: stranger.connections() == {identity(behind): "direct"}, 60, "the stranger is connected")
        behind.process.terminate()
        behind.process.wait(20)
        until(lambda: not upnp.mapped(), WITHDRAWN_S, "the mapping is withdrawn")
    except AssertionError as error:
        raise AssertionError(f"{error}" + "".join(peer.log() for peer in peers)) from error
