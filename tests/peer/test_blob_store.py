"""The blob store: whole files only, under a cap, whatever dies and whatever the disk does to them."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest
from blake3 import blake3

from peer.blobs import BlobStore, Damaged, hash_file
from protocols.errors import ConfigError, EnvironmentFault
from protocols.manifest import ShardEntry

if TYPE_CHECKING:
    from pathlib import Path

RAW = Random(1).randbytes(3 << 20)


def entry_of(raw: bytes) -> ShardEntry:
    """How a manifest names these bytes."""
    return ShardEntry("shard", len(raw), blake3(raw).hexdigest())


ENTRY = entry_of(RAW)


def fill(store: BlobStore, size: int, number: int) -> ShardEntry:
    """Put ``size`` bytes of one value, last used ``number`` seconds after 1970."""
    raw = bytes([number]) * size
    store.put(raw)
    path = store.path(entry_of(raw))
    assert path is not None
    os.utime(path, (number, number))
    return entry_of(raw)


def names(store: BlobStore) -> set[str]:
    return {path.name for path in store.folder.iterdir()}


def test_a_blob_is_there_once_it_is_whole(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    assert store.folder.stat().st_mode & 0o777 == 0o700
    with store.write(ENTRY) as writer:
        writer.append(RAW[: 1 << 20])
        assert store.path(ENTRY) is None
        writer.append(RAW[1 << 20 :])
        writer.finish()
    path = store.path(ENTRY)
    assert path is not None and path.read_bytes() == RAW and path.stat().st_mode & 0o777 == 0o600
    assert names(store) == {ENTRY.hash}
    assert store.put(RAW) == ENTRY.hash and names(store) == {ENTRY.hash}


@pytest.mark.parametrize("left", [1, len(RAW) - 1, len(RAW)], ids=["begun", "all but one byte", "not yet renamed"])
def test_a_crash_leaves_a_part_that_the_next_start_goes_on_with(tmp_path: Path, left: int) -> None:
    writer = BlobStore(tmp_path).write(ENTRY)
    writer.append(RAW[:left])
    os.close(writer._file)  # as SIGKILL leaves it: neither finish nor close

    store = BlobStore(tmp_path)
    assert store.path(ENTRY) is None
    with store.write(ENTRY) as again:
        assert again.offset == left
        again.append(RAW[left:])
        again.finish()
    path = store.path(ENTRY)
    assert path is not None and path.read_bytes() == RAW


def test_a_wrong_hash_leaves_nothing(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    with store.write(ENTRY) as writer:
        writer.append(RAW[:-1] + bytes([RAW[-1] ^ 1]))
        with pytest.raises(Damaged, match=ENTRY.hash[:16]):
            writer.finish()
        assert writer.offset == 0
    with store.write(ENTRY) as writer:
        writer.append(RAW[:-1])
        with pytest.raises(Damaged):
            writer.finish()
    assert names(store) == set()


def test_a_part_longer_than_the_blob_is_dropped(tmp_path: Path) -> None:
    (tmp_path / f"{ENTRY.hash}.part").write_bytes(RAW + b"more")
    with BlobStore(tmp_path).write(ENTRY) as writer:
        assert writer.offset == 0


@pytest.mark.parametrize("damage", [RAW[:-1], b"\x00" + RAW[1:], b""], ids=["cut", "changed", "emptied"])
def test_a_damaged_blob_is_no_blob_and_goes(tmp_path: Path, damage: bytes) -> None:
    assert damage != RAW
    BlobStore(tmp_path).put(RAW)
    (tmp_path / ENTRY.hash).write_bytes(damage)
    store = BlobStore(tmp_path)
    assert store.path(ENTRY) is None
    assert names(store) == set()


def test_a_manifest_that_lies_about_a_size_destroys_nothing(tmp_path: Path) -> None:
    BlobStore(tmp_path).put(RAW)
    store, liar = BlobStore(tmp_path), ShardEntry("liar", 5, ENTRY.hash)
    assert store.path(liar) is None
    assert store.path(ENTRY) is not None
    assert store.path(liar) is None


def test_a_blob_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BlobStore(tmp_path).put(RAW)
    hashed: list[Path] = []

    def watched(path: Path) -> str:
        hashed.append(path)
        return hash_file(path)

    monkeypatch.setattr("peer.blobs.hash_file", watched)
    store = BlobStore(tmp_path)
    assert store.path(ENTRY) == store.path(ENTRY) == tmp_path / ENTRY.hash
    assert len(hashed) == 1


def test_the_least_recently_used_make_room(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 100)
    old, middle, new = (fill(store, 40, number) for number in (1, 2, 3))
    assert store.path(old) is None, "120 bytes are above the cap"
    assert store.path(middle) is not None  # used now
    os.utime(tmp_path / new.hash, (4, 4))
    last = fill(store, 60, 5)
    assert names(store) == {middle.hash, last.hash}
    assert store.size() == 100


def test_parts_count_and_go_like_blobs(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 100)
    (tmp_path / f"{'00' * 32}.part").write_bytes(bytes(90))
    fill(store, 40, 1)
    assert store.size() == 40


def test_the_blobs_of_the_served_run_stay(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 100)
    served = fill(store, 50, 1)
    fill(store, 40, 2)
    store.pin([served, ShardEntry("coming", 20, "ab" * 32)])
    assert names(store) == {served.hash}, "room is made for what is coming as well"
    fill(store, 50, 3)  # the 20 are not here yet
    with pytest.raises(ConfigError, match="beside that of the run that is served"):
        store.put(bytes(51))
    assert store.path(served) is not None


def test_what_is_above_the_cap_is_refused_in_words(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, 1 << 20)
    kept = fill(store, 100, 1)
    with pytest.raises(ConfigError, match=r"takes 3\.0 MiB, and only 1\.0 MiB are set aside") as fault:
        store.write(ENTRY)
    assert "--blob-cap" in fault.value.remedy
    with pytest.raises(ConfigError, match="the run's data takes"):
        store.pin([entry_of(bytes(1 << 19)), entry_of(bytes((1 << 19) + 1))])
    assert store.path(kept) is not None, "nothing is thrown away for what will not fit"


def test_files_elsewhere_are_lent_and_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "play.txt"
    outside.write_bytes(RAW)
    store = BlobStore(tmp_path / "blobs", 1 << 20)
    store.lend({ENTRY.hash: outside})
    store.pin([ENTRY])  # takes no room
    assert store.path(ENTRY) == outside
    before = outside.stat().st_mtime_ns
    outside.write_bytes(bytes(len(RAW)))
    os.utime(outside, ns=(before + 1, before + 1))
    assert store.path(ENTRY) is None
    read: list[Path] = []
    monkeypatch.setattr("peer.blobs.hash_file", read.append)
    assert store.path(ENTRY) is None and not read, "what is known to be wrong is not read at each request"
    assert outside.exists(), "what belongs to others is never removed"


def test_a_full_or_unusable_disk_is_a_fault_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(EnvironmentFault, match="cannot use"):
        BlobStore(tmp_path / "file")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    store = BlobStore(tmp_path / "blobs")
    with store.write(ENTRY) as writer:
        writer.append(RAW[:1000])
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(EnvironmentFault, match="No space left") as fault:
            writer.append(RAW[1000:])
        assert "free some disk space" in fault.value.remedy
    monkeypatch.undo()
    with store.write(ENTRY) as writer:
        assert writer.offset == 1000, "what was written stays"
