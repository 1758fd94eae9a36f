"""``murmur run succeed``: a new run begins with exactly the state that the old one sealed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from blake3 import blake3

from peer import corpus
from peer.blobs import BlobStore
from peer.cli import guarded, parser
from peer.cli_succeed import successor
from peer.evaluate import held_out_loss
from peer.identity import Identity
from peer.models import initial_vector
from peer.settings import train_config
from peer.start_state import initial_state
from protocols.blobs import needed_blobs
from protocols.errors import ConfigError, EnvironmentFault
from protocols.manifest import Start, run_id, verify
from protocols.manifest_text import parse
from protocols.outer import state_root
from tests.peer.sealed_home import ROUNDS, SealedHome, founders, sealed_home

if TYPE_CHECKING:
    from pathlib import Path

    from protocols.ids import PeerId
    from protocols.manifest import Manifest

NOTHING: dict[str, Any] = {"open": False, "allow": [], "founder": []}


@pytest.fixture
def made(tmp_path: Path) -> SealedHome:
    return sealed_home(tmp_path)


def succeed(made: SealedHome, file: Path, *flags: str) -> Manifest:
    old = run_id(made.manifest).hex()[:10]
    chosen = vars(parser().parse_args(["run", "succeed", old, f"--home={made.home.root}", "-o", str(file), *flags]))
    chosen.pop("version", None)
    assert guarded(chosen.pop("command"), chosen) == 0
    return parse(file.read_text())


def test_the_successor_begins_where_the_old_run_ended(made: SealedHome, tmp_path: Path) -> None:
    new = succeed(made, tmp_path / "new.toml", "--rounds=5", "--name=plays-again")
    assert verify(new) == made.manifest.members.founders[0]
    assert run_id(new) != run_id(made.manifest)
    assert new.start is not None
    assert (new.start.run, new.start.round) == (run_id(made.manifest).hex(), ROUNDS)
    assert new.start.seal == made.last.head.seal.hex()
    assert (new.run.name, new.run.rounds, new.run.seed) == ("plays-again", 5, made.manifest.run.seed)
    assert new.data == made.manifest.data and new.inner == made.manifest.inner
    store = BlobStore(made.home.blobs)
    params, momentum = initial_state(new, store)
    assert np.array_equal(params, made.last.params) and np.array_equal(momentum, made.last.momentum)
    assert made.last.head.body is not None
    assert state_root(params, momentum) == made.last.head.body.state, "what seal 0 names is what the old seal named"
    config = train_config(new, None)
    shards = corpus.load_shards(config.data)
    first, last = (held_out_loss(each, config, shards) for each in (params, made.last.params))
    assert first == last != held_out_loss(initial_vector("nano", 32, 0), config, shards)


def test_its_state_is_one_of_the_blobs_that_peers_fetch(made: SealedHome, tmp_path: Path) -> None:
    new = succeed(made, tmp_path / "new.toml")
    assert new.start is not None
    *data, state = needed_blobs(new)
    assert tuple(data) == needed_blobs(made.manifest)
    path = BlobStore(made.home.blobs).path(state)
    assert path is not None
    raw = path.read_bytes()
    assert raw == made.last.params.tobytes() + made.last.momentum.tobytes()
    assert (len(raw), blake3(raw).hexdigest()) == (new.start.bytes, new.start.hash)


def test_a_run_without_a_start_begins_with_fresh_parameters(made: SealedHome) -> None:
    params, momentum = initial_state(made.manifest, BlobStore(made.home.blobs))
    assert np.array_equal(params, initial_vector("nano", 32, 0))
    assert momentum.shape == params.shape and not momentum.any()


def test_a_start_state_that_is_absent_damaged_or_of_another_size_is_refused(made: SealedHome, tmp_path: Path) -> None:
    new = succeed(made, tmp_path / "new.toml")
    assert new.start is not None
    store = BlobStore(tmp_path / "other")
    with pytest.raises(EnvironmentFault, match="is not in this home"):
        initial_state(new, store)
    raw = made.last.params.tobytes() + made.last.momentum.tobytes()
    (store.folder / new.start.hash).write_bytes(raw[:-1] + b"\x01")
    with pytest.raises(EnvironmentFault, match="is not in this home"):
        initial_state(new, store)
    with pytest.raises(ConfigError, match="16 bytes, and its model has 81648"):
        initial_state(replace(new, start=replace(new.start, bytes=16)), store)
    broken = raw[:-4] + np.float32(np.inf).tobytes()
    named = replace(new, start=replace(new.start, hash=store.put(broken)))
    with pytest.raises(EnvironmentFault, match="holds no state"):
        initial_state(named, store)


def test_who_founds_it_and_who_may_take_part(made: SealedHome) -> None:
    old, (one, two, three) = made.manifest, (each.peer for each in founders(3))
    start = Start("ab" * 32, 2, "cd" * 32, 8, "ef" * 32)

    def members(before: Any, founding: tuple[PeerId, ...], **flags: Any) -> Any:
        return successor(replace(old, members=before), start, founding, {**NOTHING, **flags}).members

    assert members(old.members, (two, three)).founders == (two, three), "old founders have no place by right"
    private = replace(old.members, allow=(two,))
    assert members(private, (three,)).allow == (one, two), "who was let in stays so, and the founders with them"
    assert members(private, (one, two)).allow == (one, two), "a private run does not become a public one by itself"
    assert members(private, (one,), open=True).allow is None
    assert members(old.members, (one,), allow=[three]).allow == (three,)
    opened = replace(old.members, open=True)
    assert members(opened, (one,)).open and not members(opened, (one,), allow=[three]).open


def test_a_stranger_s_home_can_found_a_successor(made: SealedHome, tmp_path: Path) -> None:
    """The founders are gone for good: whoever has the last state goes on, under a key of its own."""
    made.home.key.unlink()
    key = Identity.from_seed(b"s" * 32)
    key.save(made.home.key)
    new = succeed(made, tmp_path / "new.toml", f"--founder={founders(2)[1].peer}", "--steps=7")
    assert new.members.founders == (key.peer, founders(2)[1].peer)
    assert (new.round.steps, new.round.seconds) == (7, None)
