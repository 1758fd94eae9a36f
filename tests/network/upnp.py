"""A home's router that opens ports for who asks by UPnP or NAT-PMP: miniupnpd, in the router's namespace."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

from tests.network.rooms import TOOLS
from tests.network.wires import next_line

if TYPE_CHECKING:
    from pathlib import Path

    from tests.network.natlab import Home

PROGRAM = shutil.which("miniupnpd", path=TOOLS)
_RULES = """
table inet firewall {
  chain upnp { }
}
table inet upnp {
  chain prerouting_miniupnpd { }
  chain postrouting_miniupnpd { }
  chain before {
    type nat hook prerouting priority -100;
    jump prerouting_miniupnpd
  }
  chain after {
    type nat hook postrouting priority 99;
    jump postrouting_miniupnpd
  }
}
insert rule inet firewall through jump upnp
"""
_CONFIG = """
ext_ifname=wan
listening_ip=lan
ipv6_disable=yes
enable_natpmp=yes
secure_mode=yes
system_uptime=yes
upnp_table_name=firewall
upnp_forward_chain=upnp
upnp_nat_table_name=upnp
uuid=00000000-0000-0000-0000-000000000001
allow 1024-65535 0.0.0.0/0 1024-65535
"""


class Upnp:
    """miniupnpd on the router of ``home``; it ends with the lab."""

    def __init__(self, home: Home, folder: Path) -> None:
        assert PROGRAM is not None, "miniupnpd is not installed"
        self._router = home.router
        self._router.run(["nft", "-f", "-"], text=_RULES)
        config = folder / "miniupnpd.conf"
        config.write_text(_CONFIG)
        command = [PROGRAM, "-d", "-f", str(config), "-P", str(folder / "miniupnpd.pid")]
        process = self._router.popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while "listening on port" not in next_line(process.stderr):
            pass

    def mapped(self) -> set[str]:
        """The outer ports that are open now."""
        rules = self._router.run(["nft", "list", "chain", "inet", "upnp", "prerouting_miniupnpd"]).stdout
        return set(re.findall(r"dport (\d+) dnat", rules))
