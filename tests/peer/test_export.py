"""``murmur export``: what was sealed, in files that others can load and check."""

from __future__ import annotations

import json
import shutil
from statistics import fmean
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch

from peer import corpus
from peer.cli import guarded, parser
from peer.data import Corpus
from peer.evaluate import batch_losses, held_out_loss
from peer.export import export, named
from peer.export_check import check
from peer.models.gpt import GPT
from peer.settings import train_config
from peer.stored import newest, stored_run
from protocols.errors import ConfigError, EnvironmentFault, LocalError
from protocols.ids import public_key
from protocols.manifest import run_id
from protocols.manifest_text import parse
from tests.peer.sealed_home import ROUNDS, SealedHome, founders, sealed_home

if TYPE_CHECKING:
    from pathlib import Path

FILES = ["README.md", "config.json", "manifest.toml", "model.safetensors", "momentum.safetensors", "seal.json"]


@pytest.fixture
def made(tmp_path: Path) -> SealedHome:
    return sealed_home(tmp_path)


def command(*arguments: str) -> int:
    chosen = vars(parser().parse_args(["export", *arguments]))
    chosen.pop("version", None)
    return guarded(chosen.pop("command"), chosen)


def exported(made: SealedHome, folder: Path) -> Path:
    export(made.manifest, made.store, folder)
    return folder


def test_the_model_loads_into_torch_and_has_the_checkpoint_s_loss(made: SealedHome, tmp_path: Path) -> None:
    folder = exported(made, tmp_path / "out")
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [], "nothing is left over"
    model = GPT("nano", 32)
    model.load_state_dict(load_torch(folder / "model.safetensors"))
    config = train_config(made.manifest, None)
    shards = corpus.load_shards(config.data)
    loss = fmean(batch_losses(model, Corpus(shards, config.data, context=32).held_out_batches()))
    assert loss == held_out_loss(made.last.params, config, shards)
    assert loss != held_out_loss(made.checkpoints[0].params, config, shards), "or this test shows nothing"


def test_the_state_root_and_the_votes_follow_from_the_files_alone(made: SealedHome, tmp_path: Path) -> None:
    """Computed here from what the formats say, not by the program's own functions."""
    folder = exported(made, tmp_path / "out")
    document = json.loads((folder / "seal.json").read_text())
    names = [name for name, _ in GPT("nano", 32).named_parameters()]
    leaves = []
    for file in ("model.safetensors", "momentum.safetensors"):
        tensors = load_file(folder / file)
        assert set(tensors) == set(names)
        ordered = ["bytes", "positions", *(n for n in names if n.startswith("blocks")), "norm", "head"]
        data = b"".join(tensors[name].astype("<f4").tobytes() for name in ordered)
        leaves.append(b"".join(data[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20)))
        assert len(data) < 1 << 20, "one chunk each, so the tree has two leaves"
    one, two = (_digest(b"state", each) for each in leaves)
    root = _digest(b"root", (2).to_bytes(8, "little"), _digest(b"node", one, two))
    assert document["state_root"] == document["body"]["state"] == root.hex()
    proposal = bytes.fromhex(document["proposal"]["signed"])
    signed = msgpack.unpackb(proposal)
    assert signed["fields"]["state"] == root and signed["run"] == run_id(made.manifest)
    seal = _digest(b"seal", signed["run"], b"model", msgpack.packb(signed["fields"]))
    assert document["seal"] == seal.hex() == made.last.head.seal.hex()
    for vote in document["votes"]:
        key = Ed25519PublicKey.from_public_bytes(public_key(vote["peer"]))
        key.verify(bytes.fromhex(vote["signature"]), bytes.fromhex(vote["signed"]))
        assert msgpack.unpackb(bytes.fromhex(vote["signed"]))["fields"]["seal"] == seal
    assert [vote["peer"] for vote in document["votes"]] == list(made.manifest.members.founders)


def _digest(*parts: bytes) -> bytes:
    return blake3(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()


def test_config_and_readme_say_what_it_is(made: SealedHome, tmp_path: Path) -> None:
    folder = exported(made, tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    assert (config["architecture"], config["size"], config["context"]) == ("gpt", "nano", 32)
    assert (config["vocabulary"], config["vocabulary_size"], config["parameters"]) == ("bytes", 256, 81_648)
    assert config["run"] == {"id": run_id(made.manifest).hex(), "name": "shakespeare"}
    assert (config["round"], config["tokens"]) == (ROUNDS, 300)
    readme = (folder / "README.md").read_text()
    assert made.manifest.members.founders[0] in readme
    assert "Apache License 2.0. That says nothing about the data" in readme
    assert parse((folder / "manifest.toml").read_text()) == made.manifest
    (made.store.folder / "rounds.jsonl").unlink()
    again = json.loads((exported(made, tmp_path / "again") / "config.json").read_text())
    assert again["tokens"] is None, "unknown is null"


def test_what_does_not_hold_is_found(made: SealedHome, tmp_path: Path) -> None:
    folder = exported(made, tmp_path / "out")
    found = check(folder)
    assert (found.round, found.voted, found.founders, found.proven) == (ROUNDS, 1, 1, True)

    def broken(name: str, change: Any) -> Path:
        copy = tmp_path / f"broken-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(folder, copy)
        change(copy / name)
        return copy

    def document(path: Path, **changes: Any) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def other_value(path: Path) -> None:
        tensors = load_file(path)
        tensors["head"] = tensors["head"] + np.float32(1e-6)
        save_file(tensors, path)

    def other_shape(path: Path) -> None:
        tensors = load_file(path)
        tensors["head"] = tensors["head"].reshape(-1)
        save_file(tensors, path)

    votes = json.loads((folder / "seal.json").read_text())["votes"]
    forged = [{**votes[0], "signature": "00" * 64}]
    for name, change, words in (
        ("model.safetensors", other_value, "not those of the seal"),
        ("momentum.safetensors", other_value, "not those of the seal"),
        ("model.safetensors", other_shape, "head is F32"),
        ("model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-9]), "does not hold"),
        ("seal.json", lambda path: document(path, state_root="00" * 32), "another hash or state root"),
        ("seal.json", lambda path: document(path, votes=forged), "wrong signature"),
        ("seal.json", lambda path: document(path, votes=votes * 2), "twice"),
        ("seal.json", lambda path: document(path, votes=[]), "none"),
        ("seal.json", lambda path: document(path, proposal=votes[0]), "no seal"),
        ("seal.json", lambda path: path.write_text("[" * 100_000), "does not hold"),
        ("seal.json", lambda path: path.unlink(), "No such file"),
    ):
        with pytest.raises(LocalError, match=words):
            check(broken(name, change))


def test_with_few_founders_among_the_voters_the_manifest_is_not_enough(tmp_path: Path) -> None:
    made = sealed_home(tmp_path, founders(3))
    folder = exported(made, tmp_path / "out")
    assert check(folder).proven
    path = folder / "seal.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "votes": document["votes"][:2]}))
    found = check(folder)
    assert (found.voted, found.founders, found.proven) == (2, 3, False)


def test_a_folder_that_holds_something_is_refused_and_left_alone(made: SealedHome, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="not an empty folder"):
        export(made.manifest, made.store, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]
    (tmp_path / "empty").mkdir()
    exported(made, tmp_path / "empty")
    assert len(list((tmp_path / "empty").iterdir())) == len(FILES)


def test_an_export_that_fails_leaves_nothing(made: SealedHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("peer.export._sync", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        export(made.manifest, made.store, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(made: SealedHome, tmp_path: Path) -> None:
    newest_file = max(made.store.folder.glob("round-*.safetensors"))
    newest_file.write_bytes(newest_file.read_bytes()[:-1000])
    assert newest(made.store).head.round == ROUNDS - 1
    assert any("damaged" in text for text in made.store.warnings)


def test_exit_codes_are_the_contract_s(made: SealedHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = f"--home={made.home.root}"
    out = str(tmp_path / "out")
    assert command(out, home) == 0
    assert command(out, home) == 2, "not empty"
    assert command(out, "--check", home) == 0
    (tmp_path / "out" / "model.safetensors").unlink()
    assert command(out, "--check", home) == 1
    assert command(str(tmp_path / "new"), home, "--run=beef") == 2
    assert command(str(tmp_path / "new"), f"--home={tmp_path / 'none'}") == 5
    capsys.readouterr()
    assert command(str(tmp_path / "json"), home, "--json") == 0
    assert json.loads(capsys.readouterr().out)["seal"] == made.last.head.seal.hex()


def test_one_of_several_runs_is_named_by_id_or_manifest(made: SealedHome, tmp_path: Path) -> None:
    other = sealed_home(tmp_path, seed=9)
    for which in (run_id(other.manifest).hex()[:8], run_id(other.manifest).hex().upper()):
        assert stored_run(made.home, which)[0] == other.manifest
    path = tmp_path / "other.toml"
    path.write_text((made.home.manifest(run_id(other.manifest))).read_text())
    made.home.manifest(run_id(other.manifest)).unlink()
    assert stored_run(made.home, str(path))[0] == other.manifest
    with pytest.raises(ConfigError, match="which of its runs"):
        stored_run(made.home, None)
    with pytest.raises(ConfigError, match="is not in this home"):
        stored_run(made.home, run_id(other.manifest).hex())


def test_the_vectors_are_not_copied_before_they_are_written(made: SealedHome) -> None:
    tensors = named(made.last.params, made.manifest)
    assert all(np.shares_memory(tensor, made.last.params) for tensor in tensors.values())
    assert sum(tensor.size for tensor in tensors.values()) == len(made.last.params)


def test_a_folder_that_holds_no_export_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no export") as caught:
        check(tmp_path / "absent")
    assert "`murmur export`" in caught.value.remedy
