"""Which checkpoints stay: those of the chain that is followed, as many as asked for, within the folder's cap."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from peer import state as module
from tests.peer.test_state import ROUNDS, chain, files, filled, newest, same, store

if TYPE_CHECKING:
    import pytest


def test_links_are_the_heads_before_the_loaded_one(tmp_path: Path) -> None:
    filled(tmp_path, keep=4)
    opened = store(tmp_path)
    assert opened.links() == (), "nothing is loaded yet"
    assert opened.load() is not None
    assert opened.links() == tuple(each.head for each in chain()[:-1])
    os.truncate(newest(tmp_path), 5000)
    os.truncate(tmp_path / "round-00000002.safetensors", 5000)
    opened = store(tmp_path)
    found = opened.load()
    assert found is not None and found.head.round == 3
    assert opened.links() == (chain()[0].head,), "an unsound one, and those above, are left out"


def test_a_lower_head_of_another_chain_replaces_what_is_above(tmp_path: Path) -> None:
    opened = filled(tmp_path, keep=4)
    other = chain(fork=1)[1]
    assert other.head.seal != chain()[1].head.seal
    opened.save(other)
    assert files(tmp_path) == [f"round-{number:08d}.safetensors" for number in (1, 2)]
    found = store(tmp_path).load()
    assert found is not None and same(found, other)


def test_a_crash_while_a_chain_is_left_leaves_a_sound_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each single removal: the newest state loads, of one chain or the other."""
    other = chain(fork=1)[0]

    class Killed(Exception):
        pass

    unlink = Path.unlink
    for limit in range(6):
        folder = tmp_path / str(limit)
        opened, left = filled(folder, keep=4), [limit]

        def dying(path: Path, missing_ok: bool = False, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            unlink(path, missing_ok=missing_ok)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", dying)
            try:
                opened.save(other)
            except Killed:
                assert limit < 3
        found = store(folder).load()
        assert found is not None
        assert same(found, other) if limit >= 3 else found.head in [each.head for each in chain()]


def test_a_head_that_jumps_keeps_the_one_before(tmp_path: Path) -> None:
    opened = store(tmp_path)
    opened.save(chain()[0])
    opened.save(chain()[3])
    assert files(tmp_path) == [f"round-{number:08d}.safetensors" for number in (1, 4)]
    opened = store(tmp_path)
    assert opened.load() is not None
    assert opened.links() == (chain()[0].head,)


def test_the_folder_has_a_cap_but_the_newest_two_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "measured", keep=4)
    one = newest(tmp_path / "measured").stat().st_size
    for room, kept in ((4.5, 4), (3.5, 3), (2.5, 2), (0.5, 2)):
        monkeypatch.setattr(module, "FOLDER_BYTES", int(room * one))
        filled(tmp_path / str(room), keep=4)
        expected = [f"round-{number:08d}.safetensors" for number in range(ROUNDS - kept + 1, ROUNDS + 1)]
        assert files(tmp_path / str(room)) == expected
