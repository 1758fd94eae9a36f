"""How fast blobs come: from one peer and from two, large and small ones, over real p2pd on this machine.

Prints one JSON line a case: MB/s of ``large/one`` and ``large/two`` (256 MB in files of 32), files per second of
``small/one`` (400 of 3 kB). Nothing to compare with: a home line of 1 Gbit/s carries 125 MB/s.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from blake3 import blake3

from dht.p2pd import P2pd, P2pdConfig
from dht.transport import StreamTransport, TransportConfig
from peer.blob_exchange import BlobExchange
from peer.blobs import BlobStore
from peer.identity import Identity
from protocols.manifest import Manifest, ShardEntry, render, run_id, sign
from protocols.manifest_defaults import Choices, default_manifest

if TYPE_CHECKING:
    from protocols.ids import PeerId

KEYS = [Identity.from_seed(bytes([number]) * 32) for number in (1, 2, 3)]
CASES = {"large/one": (8, 32 << 20, 1), "large/two": (8, 32 << 20, 2), "small/one": (400, 3000, 1)}
"""Files, bytes of each, providers."""


async def started(stack: AsyncExitStack, folder: Path, key: Identity, run: bytes) -> StreamTransport:
    """A transport with a p2pd of its own."""

    async def ignore(*_: object) -> None:
        return

    key.save(folder / "key")
    p2pd = await stack.enter_async_context(P2pd(P2pdConfig(folder, folder / "key", host="127.0.0.1"), ignore))
    transport = StreamTransport(TransportConfig(run, "bench"), ignore)
    await transport.start(p2pd.control)
    stack.push_async_callback(transport.close)
    stack.push_async_callback(p2pd.retire)
    return transport


async def seconds(folder: Path, raws: list[bytes], givers: int) -> float:
    """To fetch these from so many peers that have them all."""
    manifest = _manifest(raws)
    run, text = run_id(manifest), render(manifest)
    async with AsyncExitStack() as stack:
        found: dict[PeerId, Any] = {}
        for number in range(givers):
            transport = await started(stack, folder / str(number), KEYS[1 + number], run)
            store = BlobStore(folder / f"blobs-{number}")
            for raw in raws:
                store.put(raw)
            await BlobExchange(transport, store, run, lambda: text, dict).start()
            found[transport.peer] = transport.addresses()
        ours = await started(stack, folder / "ours", KEYS[0], run)
        exchange = BlobExchange(ours, BlobStore(folder / "blobs"), run, lambda: None, lambda: found)
        began = time.monotonic()
        await exchange.fetch(manifest.data.shards)
        return time.monotonic() - began


def _manifest(raws: list[bytes]) -> Manifest:
    shards = [ShardEntry(f"shard-{at}", len(raw), blake3(raw).hexdigest()) for at, raw in enumerate(raws)]
    founder = KEYS[0]
    return sign(default_manifest(Choices(), founders=[founder.peer], shards=shards), founder.peer, founder.sign)


def main() -> None:
    """Every case, or a shorter version of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    for case, (count, size, givers) in CASES.items():
        raws = [os.urandom(size) for _ in range(count // 4 if quick else count)]
        with tempfile.TemporaryDirectory(prefix="m", dir="/tmp") as folder:  # a socket's path is short
            took = uvloop.run(seconds(Path(folder), raws, givers))
        large = case.startswith("large")
        value = len(raws) * size / took / 1e6 if large else len(raws) / took
        line = {
            "schema": 1,
            "bench": "blobs",
            "case": case,
            "value": round(value, 1),
            "unit": "MB/s" if large else "files/s",
            "against": None,
            "ratio": None,
            "better": "higher",
            "bound": None,
            "ok": None,
            "runs": 1,
            "spread": None,
            "seed": 0,
            "quick": quick,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
