"""What the lab's routers do to packets, as nftables rules. Every router's outer interface is ``wan``."""

from __future__ import annotations

from typing import Literal

Nat = Literal["port_preserving", "symmetric", "no_udp", "double", "bridge"]
"""What stands between a home and the internet:

- ``port_preserving``: an ordinary router; a source port stays the same for every destination where it is free
- ``symmetric``: another port for every destination
- ``no_udp``: port-preserving, and no UDP passes either way
- ``double``: a port-preserving router behind the provider's, port-preserving too
- ``bridge``: a public machine with a container on a bridge, as docker makes it

All of them let in only replies: what comes from where one has sent to, address and port.
"""


def router(nat: Nat | None) -> str:
    """A home router; None: no IPv4. IPv6 is not translated, but only replies get in."""
    masquerade = "masquerade fully-random" if nat == "symmetric" else "masquerade"
    udp = 'meta l4proto udp iifname "wan" drop\nmeta l4proto udp oifname "wan" drop' if nat == "no_udp" else ""
    translate = f'oifname "wan" {masquerade}' if nat is not None else ""
    return f"""
table ip nat {{
  chain post {{
    type nat hook postrouting priority 100;
    {translate}
  }}
}}
table inet firewall {{
  chain through {{
    type filter hook forward priority 0; policy drop;
    {udp}
    ct state established,related accept
    iifname "lan" accept
  }}
  chain inbound {{
    type filter hook input priority 0; policy drop;
    ct state established,related accept
    iifname {{ "lan", "lo" }} accept
    meta l4proto {{ icmp, ipv6-icmp }} accept
  }}
}}
"""


def docker() -> str:
    """A public machine with docker's bridge. Nothing shields the machine itself: it answers strangers, with a refusal.

    So a datagram that comes before the container has sent any the same way takes the port's place in the NAT, and the
    container's own then leave from another port.
    """
    return """
table ip nat {
  chain post {
    type nat hook postrouting priority 100;
    ip saddr 172.17.0.0/16 oifname != "docker0" masquerade
  }
}
table ip filter {
  chain forward {
    type filter hook forward priority 0; policy drop;
    oifname "docker0" ct state established,related accept
    iifname "docker0" accept
  }
}
"""
