"""From a manifest to what each part of the daemon needs to know of it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from protocols.compression import get_codec
from protocols.round.context import HISTORY_BYTES
from protocols.round.effects import Setting
from protocols.round.exchange import part_sizes

from .training import DataConfig, InnerConfig, TrainConfig

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.manifest import Manifest

CELL = "model"
"""The one cell of every run so far: the whole model."""


def train_config(manifest: Manifest, folder: Path | None, blobs: Path | None = None) -> TrainConfig:
    """What the trainer is told; ``folder`` holds text files of the run, ``blobs`` its data by hash."""
    inner, data, model = manifest.inner, manifest.data, manifest.model
    return TrainConfig(
        data=DataConfig(
            shards=data.shards,
            name=data.name,
            folder=str(folder) if folder else None,
            blobs=str(blobs) if blobs else None,
            held_out=float(data.held_out),
            deal=data.deal,
        ),
        kind=model.kind,
        size=model.size,
        context=model.context,
        seed=manifest.run.seed,
        inner=InnerConfig(
            optimizer=inner.optimizer,
            lr=float(inner.lr),
            betas=(float(inner.betas[0]), float(inner.betas[1])),
            weight_decay=float(inner.weight_decay),
            clip=float(inner.clip),
            warmup=inner.warmup,
            reset=inner.reset,
            batch=inner.batch,
        ),
    )


def round_setting(manifest: Manifest, values: int) -> Setting:
    """What the round machine is told."""
    return Setting(
        values=values,
        update_codec=manifest.codec.update,
        result_codec=manifest.codec.result,
        rule=manifest.rule.name,
        tolerated=float(Fraction(manifest.rule.tolerated)),
        lr=float(manifest.outer.lr),
        momentum=float(manifest.outer.momentum),
        probation=manifest.members.probation,
        open=manifest.members.open,
        deadline=float(manifest.round.deadline),
        allowed=frozenset(manifest.members.allow or ()),
    )


def update_bytes(setting: Setting) -> int:
    """Size of a whole encoded update."""
    return sum(part_sizes(get_codec(setting.update_codec), setting.values, setting.part))


def exchange_bytes(setting: Setting) -> int:
    """What a round among many sends at most, and receives: an update in parts, and the results of all parts."""
    return update_bytes(setting) + sum(part_sizes(get_codec(setting.result_codec), setting.values, setting.part))


KEPT = 8
"""Rounds of which results are kept, for ``round_bytes``; for large models their bytes are bounded before."""


def round_bytes(setting: Setting) -> int:
    """Memory that the first rounds take beside the state and the drift: vectors made anew, parts, results kept."""
    results = sum(part_sizes(get_codec(setting.result_codec), setting.values, setting.part))
    vectors = 4 * 4 * setting.values  # state, drift, and what was trained
    used = vectors + 2 * update_bytes(setting) + results + min(HISTORY_BYTES, KEPT * results)
    return used + used // 4  # what lies between is of no use
