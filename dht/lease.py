"""One key signs on one machine: which of those that hold it may, told by the key's own directory record (FC07).

A peer's record names the *instance* that issued it and since when that one holds the key; until the record expires, or
says that its issuer left, the key is taken. Of two instances that each believe it is theirs the one that took it
first keeps it, and the other yields; both decide by the same two numbers, so they never take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from protocols.errors import LocalError

from .directory import Directory, DirectoryTiming
from .p2pd import P2pd, P2pdConfig
from .records import INSTANCE_BYTES
from .transport import StreamTransport, TransportConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from protocols.ids import PeerId

    from .records import PeerRecord

ANSWER_S = 4.0
"""For any of the given addresses to answer, before a peer starts without having asked."""
LOOK_S = 0.1


@dataclass
class Lease:
    """What one instance knows about who holds its key. Times are unix seconds."""

    instance: bytes
    since: int = 0
    """When this instance took the key; 0 = it has not."""
    inherited: bool = False
    """Another instance held it until a moment ago, so slots of the round in flight may be signed."""
    floor: int = 0
    """The highest round for which the other may have signed, as far as it told."""

    def wait(self, record: PeerRecord | None, now: float) -> float:
        """The key's newest record: for how many seconds it says that this instance must not sign; 0 = it may."""
        if record is None or record.instance == self.instance or record.expires <= now:
            return 0.0
        if self.since and (self.since, self.instance) < (record.since, record.instance):
            return 0.0  # the other is younger, and yields
        self.inherited, self.floor = True, max(self.floor, record.head_round + 1)
        return 0.0 if record.left else record.expires - now

    def take(self, now: float) -> None:
        """This instance holds the key from now on."""
        self.since = self.since or int(now)


def instance_of(home: Path) -> bytes:
    """Which home on which machine: the same after a restart, another one for a copy of the home or its key."""
    names = [str(home.resolve()), str(home.stat().st_ino)]
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        with contextlib.suppress(OSError):
            names.append(path.read_text().strip())
            break
    else:
        names.append(str(uuid.getnode()))
    return hashlib.sha256("\0".join(names).encode()).digest()[:INSTANCE_BYTES]


@contextlib.asynccontextmanager
async def asking(
    addresses: Sequence[str], run: bytes, timing: DirectoryTiming, folder: Path
) -> AsyncIterator[Directory]:
    """The run's directory as seen through ``addresses`` under a passing identity, gone when the block ends.

    Under the key itself other peers would see two of one name, and open streams to the wrong one. ``folder`` is for
    its p2pd; what a crash leaves there the next one clears away. Raises EnvironmentFault, ConfigError, TransportError.
    """
    await asyncio.to_thread(folder.mkdir, 0o700, exist_ok=True)
    transport = StreamTransport(TransportConfig(run, "murmur"), _unheard)
    directory = Directory(transport, run, _unsigned, timing=timing)
    try:
        async with P2pd(P2pdConfig(folder, None, host="127.0.0.1")) as p2pd:
            await transport.start(p2pd.control, in_rounds=False)
            try:
                await directory.start(addresses, client=True)
                yield directory
            finally:
                await p2pd.retire()
                await directory.close()
                await transport.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def answered(directory: Directory, within: float = ANSWER_S) -> bool:
    """Whether one of the directory's seeds answered in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            while not any(seed.state == "ok" for seed in directory.seeds()):
                if all(seed.error is not None for seed in directory.seeds()):
                    return False
                await asyncio.sleep(LOOK_S)
            return True
    return False


def look_up(records: Sequence[PeerRecord], peer: PeerId) -> PeerRecord | None:
    """The record of ``peer`` among these."""
    return next((record for record in records if record.peer == peer), None)


async def _unheard(*_: object) -> None:
    pass


def _unsigned(_: bytes) -> bytes:
    raise LocalError("a passing identity announces nothing")
