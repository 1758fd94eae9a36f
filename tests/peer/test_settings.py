"""What the manifest says reaches trainer and round machine unchanged."""

from __future__ import annotations

import pytest

from peer import corpus
from peer.identity import Identity
from peer.settings import round_setting, train_config, update_bytes
from peer.training import InnerConfig
from protocols.manifest_defaults import Choices, default_manifest

FOUNDER = Identity.from_seed(bytes(32)).peer


def test_a_new_run_trains_with_the_values_that_were_measured() -> None:
    """The benchmark builds on InnerConfig's defaults, runs on the manifest's: they must be the same."""
    manifest = default_manifest(Choices(), founders=[FOUNDER], shards=corpus.SHARDS)
    assert train_config(manifest, None).inner == InnerConfig()


def test_round_settings_are_the_manifests() -> None:
    manifest = default_manifest(Choices(codec="int8", rule="mean"), founders=[FOUNDER], shards=corpus.SHARDS)
    setting = round_setting(manifest, 387_744)
    assert (setting.update_codec, setting.result_codec, setting.rule) == ("int8", "int8", "mean")
    assert (setting.lr, setting.momentum) == (0.9, 0.5)
    assert setting.tolerated == pytest.approx(1 / 3, abs=1e-16)
    assert not setting.open
    assert setting.deadline == manifest.round.deadline


def test_an_encoded_update_has_all_its_parts() -> None:
    manifest = default_manifest(Choices(codec="float32"), founders=[FOUNDER], shards=corpus.SHARDS)
    assert update_bytes(round_setting(manifest, 387_744)) == 4 * 387_744
