"""The command line and environment with which p2pd is started. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .limits import CONNECTION_GRACE_S, CONNECTIONS, CONNECTIONS_KEPT
from .listening import at, is_confined

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .p2pd import P2pdConfig

UNATTENDED_S = 60
"""p2pd ends itself when nobody attached for this long."""
_RESERVING = ("-autoRelay=1", "-relayDiscovery=0", "-forceReachabilityPrivate=1")
"""With discovery it would wait for four candidates, or for three minutes."""


def command(  # noqa: PLR0913 - all by name
    binary: Path, config: P2pdConfig, *, control: str, port: int, relays: Sequence[str], hosts: Sequence[str] = ()
) -> list[str]:
    """Its flags; ``control`` is the multiaddr of its control socket, ``relays`` where it reserves,
    ``hosts`` the IP addresses to listen on (none: ``config.host``).

    Only who punches holes, and who observes those, listens for QUIC: where both ends do, go-libp2p takes it for every
    connection but the first, at half the throughput and with a sudden death unnoticed for seconds (TCP: milliseconds).
    """
    each = [at(host) for host in hosts or (config.host,)]
    quic = [f"{host}/udp/{port}/quic-v1" for host in each] if config.quic or relays else []
    listen = ",".join((*(f"{host}/tcp/{port}" for host in each), *quic))
    return [
        str(binary),
        *([f"-id={config.key}"] if config.key is not None else []),
        f"-listen={control}",
        f"-hostAddrs={listen}",
        f"-idleTimeout={UNATTENDED_S}s",
        "-noise=0",  # TLS between our peers: a fifth less time than Noise for a float32 round
        "-tls=1",
        "-relay=1",
        "-relayService=0",  # stock limits would cut circuits after 128 KiB
        "-autonat=1",
        f"-natPortMap={int(config.maps and not is_confined(config.host))}",
        "-connManager=1",
        f"-connHi={CONNECTIONS}",
        f"-connLo={CONNECTIONS_KEPT}",
        f"-connGrace={CONNECTION_GRACE_S}s",
        # Finds the addresses of peers that a directory answer names; one behind a NAT serves nobody through a relay.
        "-dhtClient=1" if relays else "-dhtServer=1",
        "-b=0",  # no bootstrap at start: p2pd exits when every address is dead
        *((*_RESERVING, f"-trustedRelays={','.join(relays)}") if relays else ()),
    ]


def environment(cores: int) -> dict[str, str]:
    """What p2pd is told. Half of the cores: on all of them its threads look for work that the others have."""
    return {"GOLOG_LOG_LEVEL": "error", "GOLOG_LOG_FMT": "nocolor", "GOMAXPROCS": str(max(1, cores // 2))}
