"""Chunks on the disk: all that came whole come back, whatever a crash left behind them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from peer.part_file import PATTERN, PartFile
from protocols.ids import Hash
from protocols.state_payloads import StateChunk

SEAL, OTHER = Hash(b"s" * 32), Hash(b"o" * 32)


def chunk(index: int, seal: Hash = SEAL) -> StateChunk:
    return StateChunk(seal, index, (Hash(bytes([index]) * 32),), bytes([index]) * (100 + index))


def found(file: PartFile, seal: Hash = SEAL) -> list[tuple[int, bytes]]:
    return [(each.index, bytes(each.data)) for each in file.read(seal)]


def test_what_was_kept_comes_back_and_goes_with_its_seal(tmp_path: Path) -> None:
    file = PartFile(tmp_path / "run")
    assert file.seal() is None and file.read(SEAL) == []
    for index in (3, 1, 2):
        file.append(chunk(index))
    assert PartFile(tmp_path / "run").seal() == SEAL
    assert found(file) == [(index, bytes([index]) * (100 + index)) for index in (3, 1, 2)]
    assert file.read(SEAL)[0].path == (Hash(bytes([3]) * 32),)
    file.append(chunk(5, OTHER))
    assert file.seal() == OTHER and file.read(SEAL) == [], "one state at a time"
    file.drop()
    assert file.seal() is None and not list((tmp_path / "run").glob(PATTERN))


def test_names_that_are_no_seal_are_no_chunks(tmp_path: Path) -> None:
    (tmp_path / "state-xyz.part").write_bytes(b"?")
    assert PartFile(tmp_path).seal() is None
    PartFile(tmp_path).append(chunk(1))
    assert PartFile(tmp_path).seal() == SEAL


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_cut_short_or_overwritten_it_gives_the_chunks_before_and_takes_more(data: st.DataObject) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        file = PartFile(folder)
        for index in range(4):
            file.append(chunk(index))
        (path,) = folder.glob(PATTERN)
        raw = path.read_bytes()
        cut = data.draw(st.integers(0, len(raw)))
        path.write_bytes(raw[:cut] + data.draw(st.binary(max_size=8)))
        ends, at = [0], 0
        for _ in range(4):
            at += 4 + int.from_bytes(raw[at : at + 4], "little")
            ends.append(at)
        whole = sum(end <= cut for end in ends) - 1
        before = found(file)
        assert [index for index, _ in before][:whole] == list(range(whole))
        file.append(chunk(9))
        assert found(file) == [*before, (9, bytes([9]) * 109)]
