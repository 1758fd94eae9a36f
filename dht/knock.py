"""Whether anybody listens at an address, asked without p2pd.

go-libp2p remembers a dial that failed and makes none to that address for 5 s, then 6, 9, 14 … up to five minutes; so
it is asked to dial only where a plain TCP connection opens.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from protocols.errors import TransportError

if TYPE_CHECKING:
    from protocols.ids import PeerId

KNOCK_S = 5.0
"""For a TCP connection, the look-up of a name included."""
_FAMILIES = {
    "ip4": socket.AF_INET,
    "ip6": socket.AF_INET6,
    "dns": socket.AF_UNSPEC,
    "dns4": socket.AF_INET,
    "dns6": socket.AF_INET6,
}


def endpoint(address: str) -> tuple[str, int, socket.AddressFamily] | None:
    """Host, port and family of a multiaddr ``/ip4|ip6|dns|dns4|dns6/HOST/tcp/PORT…``; None for other transports."""
    parts = address.split("/")
    if len(parts) < 5 or parts[0] or parts[1] not in _FAMILIES or parts[3] != "tcp" or not parts[4].isdecimal():
        return None
    return parts[2], int(parts[4]), _FAMILIES[parts[1]]


async def knock(peer: PeerId, address: str, *, within: float = KNOCK_S) -> None:
    """Returns when a TCP connection to ``address`` opened, or where that cannot be asked.

    Raises TransportError when it is refused, unreachable, or does not open within so many seconds.
    """
    where = endpoint(address)
    if where is None:
        return
    host, port, family = where
    try:
        async with asyncio.timeout(within):
            _, writer = await asyncio.open_connection(host, port, family=family)
    except TimeoutError as error:
        raise TransportError(peer, f"no answer within {within:.0f} s") from error
    except socket.gaierror as error:
        raise TransportError(peer, f"the name {host} is not known: {error.strerror}") from error
    except ConnectionRefusedError as error:
        raise TransportError(peer, "connection refused: nobody listens there") from error
    except (OSError, OverflowError, RuntimeError) as error:
        raise TransportError(peer, getattr(error, "strerror", None) or str(error)) from error
    writer.transport.abort()
