"""Shards of text and the batches drawn from them: pure functions of seed, parent seal, peer and step.

Nobody can know a window's batches before its parent is sealed, and anybody can replay them afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from protocols.errors import ConfigError, EnvironmentFault
from protocols.ids import digest
from protocols.manifest import ShardEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .training import DataConfig

HELD_OUT_BATCHES = 20
HELD_OUT_ROWS = 16
FIXED_SHARE = 4
"""Under the deal ``fixed`` a peer's shards are every fourth of them, rounded up."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A piece of the data: its id, its raw bytes and their BLAKE3 hash."""

    id: str
    raw: bytes
    hash: bytes

    @classmethod
    def of(cls, name: str, raw: bytes) -> Shard:
        """The shard of these bytes."""
        return cls(name, raw, blake3(raw).digest())

    @property
    def entry(self) -> ShardEntry:
        """How a manifest names this shard."""
        return ShardEntry(self.id, len(self.raw), self.hash.hex())


class Windows:
    """Every stretch of ``context + 1`` bytes of some texts, numbered through all of them."""

    def __init__(self, texts: Sequence[bytes], context: int) -> None:
        self._span = np.arange(context + 1)
        fitting = [text for text in texts if len(text) > context]
        self._bytes = np.frombuffer(b"".join(fitting), dtype=np.uint8)
        self._texts = np.cumsum([0, *(len(text) for text in fitting)])
        self._windows = np.cumsum([0, *(len(text) - context for text in fitting)])

    def __len__(self) -> int:
        return int(self._windows[-1])

    def draw(self, rows: int, stream: blake3) -> NDArray[np.int64]:
        """int64 [rows, context + 1], drawn uniformly with replacement by the extendable output of ``stream``."""
        # The bias of the modulo is below 2⁻³⁰ for any data that fits a disk.
        numbers = (np.frombuffer(stream.digest(8 * rows), dtype="<u8") % np.uint64(len(self))).astype(np.int64)
        text = np.searchsorted(self._windows, numbers, side="right") - 1
        starts = self._texts[text] + numbers - self._windows[text]
        rows_of_bytes: NDArray[np.uint8] = self._bytes[starts[:, None] + self._span]
        return rows_of_bytes.astype(np.int64)


class Corpus:
    """The shards of a run, split into what is trained on and a tail of each that is held out."""

    def __init__(self, shards: Sequence[Shard], config: DataConfig, *, context: int) -> None:
        """Raises EnvironmentFault when ``shards`` are not those of ``config``, ConfigError when they are too small."""
        found = tuple(shard.entry for shard in shards)
        if found != config.shards:
            wrong = [a.id for a, b in zip(config.shards, found, strict=False) if a != b]
            what = f"{wrong[0]} differs" if wrong else f"{len(found)} shards instead of {len(config.shards)}"
            raise EnvironmentFault(f"the data is not what the run names: {what}", remedy="fetch the run's own data")
        self._shards = tuple(shards)
        self._config = config
        self._context = context
        self._dealt: dict[str, Windows] = {}
        self._all = Windows([self._trained(shard) for shard in shards], context)
        self._held_out = Windows([shard.raw[len(self._trained(shard)) :] for shard in shards], context)
        if not len(self._all) or not len(self._held_out):
            raise ConfigError(
                f"the data is too small for a context of {context} bytes",
                remedy=f"some file needs {math.ceil((context + 1) / config.held_out)} bytes",
            )

    def batch(self, run_seed: int, parent: bytes, peer: str, *, step: int, rows: int) -> NDArray[np.int64]:
        """int64 [rows, context + 1]: the batch of ``peer`` at ``step`` on top of the seal ``parent``."""
        windows = self._all if self._config.deal == "round" else self._fixed(run_seed, peer)
        key = digest(b"batch", _u64(run_seed), parent, peer.encode(), _u64(step))
        return windows.draw(rows, blake3(key))

    def held_out_batches(self) -> list[NDArray[np.int64]]:
        """The 20 batches of 16 × (context + 1) that every reported loss is measured on, whatever the run's seed."""
        return [
            self._held_out.draw(HELD_OUT_ROWS, blake3(digest(b"held out", _u64(index))))
            for index in range(HELD_OUT_BATCHES)
        ]

    def fixed_shards(self, run_seed: int, peer: str) -> list[str]:
        """Ids of the shards that the deal ``fixed`` gives to ``peer``: those that rendezvous hashing ranks first."""
        ranked = sorted(
            self._shards, key=lambda shard: digest(b"deal", _u64(run_seed), peer.encode(), shard.id.encode())
        )
        fitting = [shard.id for shard in ranked if len(self._trained(shard)) > self._context]
        return sorted(fitting[: math.ceil(len(fitting) / FIXED_SHARE)])

    def _fixed(self, run_seed: int, peer: str) -> Windows:
        if peer not in self._dealt:
            mine = self.fixed_shards(run_seed, peer)
            self._dealt = {
                peer: Windows([self._trained(shard) for shard in self._shards if shard.id in mine], self._context)
            }
        return self._dealt[peer]

    def _trained(self, shard: Shard) -> bytes:
        return shard.raw[: len(shard.raw) - math.ceil(len(shard.raw) * self._config.held_out)]


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "little")
