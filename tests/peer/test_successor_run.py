"""A run ends, is exported and succeeded: real daemons, and the new one goes on where the old one stopped."""

from __future__ import annotations

import json
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.torch import load_file

from peer import corpus
from peer.blobs import BlobStore
from peer.data import Corpus
from peer.evaluate import batch_losses, held_out_loss
from peer.models.gpt import GPT
from peer.paths import Home
from peer.settings import CELL, train_config
from peer.start_state import initial_state
from peer.stored import newest, stored_run
from protocols.manifest import render, run_id, sign
from protocols.manifest_defaults import Choices, default_manifest
from protocols.manifest_text import parse
from protocols.outer import state_root
from protocols.round.chain import seal_zero
from protocols.statements import Scope
from tests.peer.live import address, home_of, murmur
from tests.peer.sealed_home import founders, sealed_home

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

ALONE = ("up", "--alone", "--threads=1")


def exported_loss(folder: Path) -> float:
    """The held-out loss of an exported model, loaded the way anybody would."""
    model = GPT("nano", 32)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    config = train_config(parse((folder / "manifest.toml").read_text()), None)
    shards = corpus.load_shards(config.data)
    return fmean(batch_losses(model, Corpus(shards, config.data, context=32).held_out_batches()))


def test_a_run_that_has_ended_is_exported_and_succeeded(tmp_path: Path) -> None:
    (key,) = founders(1)
    choices = Choices(size="nano", steps=15, rounds=2)
    old = default_manifest(choices, founders=[key.peer], shards=corpus.SHARDS)
    file, home = tmp_path / "old.toml", home_of(tmp_path, key)
    file.write_text(render(sign(old, key.peer, key.sign)))
    with murmur(home, *ALONE, f"--run={file}") as live:
        assert live.ends(90) == 0, live.complaints
    last = live.printed.splitlines()[-1]
    assert last == "stopped at sealed round 2, the run's last: `murmur export DIR` writes its model"

    with murmur(home, "export", str(tmp_path / "model")) as live:
        assert live.ends(30) == 0, live.complaints
    with murmur(home, "export", "--check", str(tmp_path / "model"), "--json") as live:
        assert live.ends(30) == 0, live.complaints
    assert json.loads(live.printed)["proven"] is True
    end = exported_loss(tmp_path / "model")

    new = tmp_path / "new.toml"
    with murmur(home, "run", "succeed", str(file), "--rounds=1", "--seed=3", "-o", str(new)) as live:
        assert live.ends(30) == 0, live.complaints
    with murmur(home, *ALONE, f"--run={new}") as live:
        assert live.ends(90) == 0, live.complaints
    assert "stopped at sealed round 1, the run's last" in live.printed

    manifest = parse(new.read_text())
    first = initial_state(manifest, BlobStore(Home(home).blobs))
    config = train_config(manifest, None)
    assert held_out_loss(first[0], config, corpus.load_shards(config.data)) == end, "round 0 is the old run's last"
    _, store = stored_run(Home(home), run_id(manifest).hex())
    sealed = newest(store).head
    zero = seal_zero(Scope(run_id(manifest), CELL), [key.peer], state_root(*first))
    assert sealed.round == 1 and sealed.parent == zero.seal, "what the daemon began from is that very state"
    with murmur(home, "export", str(tmp_path / "next"), f"--run={new}") as live:
        assert live.ends(30) == 0, live.complaints
    assert exported_loss(tmp_path / "next") < end, "and it goes on learning"


def test_another_founder_fetches_the_state_that_the_run_starts_from(tmp_path: Path) -> None:
    made = sealed_home(tmp_path)
    other = founders(2)[1]
    home, new = home_of(tmp_path, other, "other"), tmp_path / "new.toml"
    flags = (f"--founder={other.peer}", "--steps=2", "--codec=int8", "-o", str(new))
    with murmur(made.home.root, "run", "succeed", run_id(made.manifest).hex()[:8], *flags) as live:
        assert live.ends(30) == 0, live.complaints
    manifest = parse(new.read_text())
    near = ("up", "--threads=1", "--listen=127.0.0.1", f"--run={new}", "--rounds=1")
    with murmur(made.home.root, *near) as one, murmur(home, *near, f"--join={address(one)}") as two:
        assert (one.ends(120), two.ends(60)) == (0, 0), one.complaints + two.complaints
    params, momentum = initial_state(manifest, BlobStore(Home(home).blobs))
    assert np.array_equal(params, made.last.params) and np.array_equal(momentum, made.last.momentum)
    heads = [newest(stored_run(Home(each), run_id(manifest).hex())[1]).head for each in (made.home.root, home)]
    zero = seal_zero(Scope(run_id(manifest), CELL), manifest.members.founders, state_root(params, momentum))
    assert heads[0].seal == heads[1].seal and heads[0].parent == zero.seal
