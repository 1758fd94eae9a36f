"""What ``murmur up`` and ``murmur swarm`` were asked to do, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from .swarm.plan import Kill


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """One daemon."""

    home: Path
    run: str | None = None
    """An embedded run's name, the path of a signed manifest, the id (or its beginning) of a run of this home, or an
    invitation; None = that of the invitation in ``join``, else the embedded one."""
    size: str | None = None
    """Model size of an embedded run, None = ``tiny``; a manifest has its own."""
    data: Path | None = None
    """Folder of the run's text files; None = the embedded corpus, or what other peers have."""
    listen: str = "0.0.0.0"
    """IP address on which peers are taken, ``0.0.0.0`` = all of both families; 127.0.0.1 keeps all on this machine."""
    p2p_port: int = 0
    """0 = any."""
    api_port: int = 0
    """0 = any; written with the token to ``home/api.json``."""
    rounds: int = 0
    """End after so many sealed rounds; 0 = as the manifest says."""
    alone: bool = False
    """Never look for other peers."""
    lan: bool = True
    """Announce this peer in its own network and look for others there."""
    relay: bool = False
    """Relay for peers of the run that others cannot dial, while this one can be."""
    relay_port: int = 0
    """TCP; 0 = any."""
    relay_bandwidth: int = 50
    """10⁶ bytes a second that all relayed connections share."""
    join: tuple[str, ...] = ()
    """Invitations, and multiaddrs ``/ip4/…/tcp/…/p2p/ID`` of peers to dial."""
    threads: int = 0
    """CPU threads of the trainer; 0 = all cores but one."""
    keep_checkpoints: int = 2
    """Sealed states kept on disk."""
    blob_cap: int = 20 * 10**9
    """Bytes that data fetched from others may take on disk."""
    json: bool = False
    """Only JSON lines on stdout."""
    debug: bool = False


@dataclass(frozen=True, kw_only=True)
class SwarmOptions:
    """A swarm of real daemons on this machine, in temporary homes."""

    peers: int = 4
    rounds: int = 8
    """Sealed rounds."""
    seed: int = 0
    """Keys, manifest and so data derive from it."""
    size: str | None = None
    """None = the default of a new local manifest; refused beside a manifest from a file."""
    steps: int | None = None
    codec: str | None = None
    rule: str | None = None
    run: str = "shakespeare"
    kill: tuple[Kill, ...] = ()
    """Whose processes die by SIGKILL, and when."""
    join_at: tuple[int, ...] = ()
    """For each peer that joins later: the round in flight when it is started. Their indices follow the peers'."""
    virtual: bool = False
    """Round machines in this process on a virtual clock; what follows is only for these."""
    loss: float = 0.0
    """Share of the frames that get lost, half of them with their stream."""
    deaths: int = 0
    """Peers that die at any time; half of them come back, half of these with a new key."""
    joins: int = 0
    partition: int = 0
    """Partitions, each of which heals."""
    frozen: int = 0
    slow: int = 0
    baseline: bool = False
    """Also train one peer alone and plain AdamW at the same steps."""
    json: Path | None = None
    """Where the report goes."""
    trace: Path | None = None
    """A folder for updates and seals, which are then replayed in memory."""
    keep: bool = False
    """Leave the temporary homes behind."""
    timeout: float = 0.0
    """Seconds for the whole swarm, virtual ones for a virtual swarm; 0 = as long as its rounds allow."""
    debug: bool = False


@dataclass(frozen=True, kw_only=True)
class LighthouseOptions:
    """A public helper: directory entry and relay."""

    home: Path
    listen: str = "0.0.0.0"
    """IP address on which both listen; ``0.0.0.0`` = all of both families."""
    p2p_port: int = 4001
    relay_port: int = 4002
    announce: tuple[str, ...] = ()
    """Multiaddrs of this machine as others reach it, without port: ``/ip4/203.0.113.7`` or ``/dns4/NAME``."""
    relay_only: bool = False
    """No directory node."""
    runs: tuple[bytes, ...] = ()
    """Ids of the only runs that are served; none = any."""
    join: tuple[str, ...] = ()
    """Multiaddrs of other lighthouses."""
    http_host: str = "127.0.0.1"
    http_port: int = 0
    """For ``/healthz`` and ``/metrics``; 0 = any."""
    total_rate: float = 50e6
    """Bytes a second that all circuits may carry together."""
    debug: bool = False
