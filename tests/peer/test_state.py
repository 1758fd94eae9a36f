"""Checkpoints on disk: whole or not at all, verified when read, the previous one when the newest is damaged."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from peer import state as module
from peer.identity import Identity
from peer.state import Checkpoint, StateStore
from protocols.canonical import pack
from protocols.errors import EnvironmentFault
from protocols.ids import Hash
from protocols.messages import Leg, Seal, Vote
from protocols.outer import state_root
from protocols.round.chain import Head, seal_hash, seal_zero
from protocols.statements import Scope

ROOT = Path(__file__).resolve().parents[2]
VALUES = 33_000
SCOPE = Scope(bytes(range(32)), "model")
ROUNDS = 4


@cache
def chain(run: bytes = SCOPE.run, fork: int = 0) -> tuple[Checkpoint, ...]:
    """Sealed states of one founder, rounds 1 to 4, each with a drift; ``fork`` makes another chain."""
    scope, me = Scope(run, "model"), Identity.from_seed(bytes(32))
    draw = np.random.default_rng(7 + fork)
    params, momentum, drift = (draw.standard_normal(VALUES, dtype=np.float32) for _ in range(3))
    head, found = seal_zero(scope, [me.peer], state_root(params, momentum)), []
    for number in range(1, ROUNDS + 1):
        params, momentum, drift = params + drift, momentum - drift, drift * np.float32(0.5)
        table = replace(head.table)
        seal = Seal(
            view=number + fork, parent=head.seal, round=number, roster=Hash(bytes(32)), freeze=b"", out=(), grams=(),
            contributions=(), results=(), lost=(), table=table.root, state=state_root(params, momentum),
        )  # fmt: skip
        name = seal_hash(scope, seal)
        proposal, vote = (scope.state(me.peer, body, me.sign) for body in (seal, Vote(seal.view, name)))
        head = Head(name, seal.view, number, table, proposal, (vote,), head.table)
        found.append(Checkpoint(head, params, momentum, drift, (number, 0)))
    return tuple(found)


def store(folder: Path, keep: int = 2, values: int = VALUES) -> StateStore:
    return StateStore(folder, SCOPE, values, keep)


def filled(folder: Path, keep: int = 2) -> StateStore:
    """A folder into which every round of the chain was saved."""
    opened = store(folder, keep)
    for checkpoint in chain():
        opened.save(checkpoint)
    return opened


def same(one: Checkpoint, two: Checkpoint) -> bool:
    pairs = ((one.params, two.params), (one.momentum, two.momentum), (one.drift, two.drift))
    return (one.head, one.ages) == (two.head, two.ages) and all(
        np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs
    )


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def newest(folder: Path) -> Path:
    return folder / f"round-{ROUNDS:08d}.safetensors"


def test_a_state_comes_back_with_its_drift_and_its_proof(tmp_path: Path) -> None:
    assert chain()[0].drift.any(), "the chain must have drift, or this test shows nothing"
    filled(tmp_path)
    opened = store(tmp_path)
    found = opened.load()
    assert found is not None and same(found, chain()[-1])
    assert found.head.round == ROUNDS and found.head.votes
    assert opened.warnings == []


def test_no_drift_is_none_and_takes_no_room(tmp_path: Path) -> None:
    quiet = replace(chain()[-1], drift=np.zeros(VALUES, dtype=np.float32))
    store(tmp_path).save(quiet)
    found = store(tmp_path).load()
    assert found is not None and same(found, quiet)
    with safe_open(newest(tmp_path), framework="numpy") as file:
        assert set(file.keys()) == {"params", "momentum"}


def test_nothing_saved_is_no_state(tmp_path: Path) -> None:
    assert store(tmp_path / "absent").load() is None
    assert list(store(tmp_path / "absent").rounds()) == []


@pytest.mark.parametrize(("keep", "kept"), [(1, 2), (2, 2), (3, 3), (9, 4)])
def test_the_newest_stay_at_least_two(tmp_path: Path, keep: int, kept: int) -> None:
    filled(tmp_path, keep)
    assert files(tmp_path) == [f"round-{n:08d}.safetensors" for n in range(ROUNDS - kept + 1, ROUNDS + 1)]


def test_a_write_that_a_crash_cut_short_is_not_seen(tmp_path: Path) -> None:
    filled(tmp_path)
    torn = newest(tmp_path).read_bytes()[:1000]
    (tmp_path / f"round-{ROUNDS + 1:08d}.safetensors.new").write_bytes(torn)
    opened = store(tmp_path)
    found = opened.load()
    assert found is not None and found.head.round == ROUNDS
    assert opened.warnings == []
    opened.save(chain()[-1])
    assert all(name.endswith(".safetensors") for name in files(tmp_path)), "it goes with the next one"


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _swap(path: Path) -> None:
    """Another round under this one's name."""
    shutil.copy(path.with_name(f"round-{ROUNDS - 1:08d}.safetensors"), path)


def _poison(path: Path) -> None:
    """Sound parameters and proof, but a drift that nobody trained."""
    _rewrite(path, drift=np.full(VALUES, np.nan, dtype=np.float32))


def _shorten(path: Path) -> None:
    _rewrite(path, params=np.zeros(VALUES - 1, dtype=np.float32))


def _widen(path: Path) -> None:
    _rewrite(path, momentum=np.zeros(VALUES, dtype=np.float64))


def _age(path: Path) -> None:
    """The drift of another age."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    save_file(load_file(path), path, metadata={**metadata, "ages": pack([9, 9]).hex()})


def _extend(path: Path) -> None:
    _rewrite(path, surprise=np.zeros(1, dtype=np.float32))


def _rewrite(path: Path, **tensors: np.ndarray) -> None:
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    save_file({**load_file(path), **tensors}, path, metadata=metadata)


def _forget(path: Path) -> None:
    save_file(load_file(path), path)


DAMAGES = [_cut, _empty, _swap, _poison, _age, _shorten, _widen, _extend, _forget]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_a_damaged_newest_state_is_passed_over_and_named(tmp_path: Path, damage: object) -> None:
    filled(tmp_path)
    assert callable(damage)
    damage(newest(tmp_path))
    opened = store(tmp_path)
    found = opened.load()
    assert found is not None and same(found, chain()[-2])
    assert len(opened.warnings) == 1
    assert opened.warnings[0].startswith(f"checkpoint of round {ROUNDS} is damaged (")
    assert "\n" not in opened.warnings[0]


def test_every_single_damaged_byte_is_noticed(tmp_path: Path) -> None:
    filled(tmp_path)
    whole = newest(tmp_path).read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    draw = random.Random(5)
    places = [*draw.sample(range(header), 60), *draw.sample(range(header, len(whole)), 60)]
    opened = store(tmp_path)
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << draw.randrange(8)
        newest(tmp_path).write_bytes(damaged)
        try:
            found = opened.read(ROUNDS)
        except ValueError as error:
            assert str(error)
        else:  # a byte that means nothing, such as the white space that pads the header
            assert same(found, chain()[-1]), place


def test_all_damaged_is_one_fault_with_a_remedy(tmp_path: Path) -> None:
    filled(tmp_path)
    for path in tmp_path.iterdir():
        _cut(path)
    with pytest.raises(EnvironmentFault, match="no checkpoint in .* is sound") as caught:
        store(tmp_path).load()
    assert "backup" in caught.value.remedy


def test_the_state_of_another_run_is_refused(tmp_path: Path) -> None:
    other = StateStore(tmp_path, Scope(bytes(32), "model"), VALUES)
    other.save(chain(bytes(32))[-1])
    assert other.load() is not None
    with pytest.raises(ValueError, match="another run"):
        store(tmp_path).read(ROUNDS)


def test_the_state_of_another_size_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    with pytest.raises(ValueError, match=rf"expected F32 \[{VALUES + 1}\]"):
        store(tmp_path, values=VALUES + 1).read(ROUNDS)


def legs(parent: Hash, *steps: int) -> tuple[Leg, ...]:
    return tuple(Leg(parent, each, 100 * each) for each in steps)


def test_what_was_committed_comes_back_for_its_parent_only(tmp_path: Path) -> None:
    parents = [each.head.seal for each in chain()]
    drifts = [each.params for each in chain()]
    opened = store(tmp_path)
    for number, (parent, drift) in enumerate(zip(parents, drifts, strict=True)):
        opened.save_pending(parent, number, drift, legs(parent, 3, number))
        for path in tmp_path.iterdir():  # a clock that was set back must not make it the oldest
            os.utime(path, (100 - number, 100 - number))
    for number in (2, 3):
        found = store(tmp_path).load_pending(parents[number])
        assert found is not None
        assert np.array_equal(found[0], drifts[number])
        assert found[1:] == (3 + number, 300 + 100 * number)
    assert store(tmp_path).load_pending(parents[0]) is None, "older ones go"
    assert len(files(tmp_path)) == 2


def test_an_update_committed_on_a_lower_round_of_another_chain_is_kept(tmp_path: Path) -> None:
    opened = store(tmp_path)
    for number in (9, 10, 4):
        opened.save_pending(chain()[number % 4].head.seal, number, chain()[0].drift, ())
    assert store(tmp_path).load_pending(chain()[0].head.seal) is not None
    opened.save(chain()[2])
    assert [name[:16] for name in files(tmp_path)] == ["pending-00000004", "round-00000003.s"]


def test_a_damaged_pending_update_is_no_update(tmp_path: Path) -> None:
    parent, drift = chain()[0].head.seal, chain()[0].params
    store(tmp_path).save_pending(parent, 2, drift, legs(parent, 1, 2))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for place in (*range(0, 8 + int.from_bytes(whole[:8], "little")), 5000, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        found = store(tmp_path).load_pending(parent)
        assert found is None or (np.array_equal(found[0], drift) and found[1:] == (3, 300)), place
    shutil.copy(path, path.with_name(f"pending-{2:08d}-{bytes(8).hex()}.safetensors"))
    assert store(tmp_path).load_pending(Hash(bytes(32))) is None, "another parent's"


def test_the_round_log_is_halved_when_it_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOG_BYTES", 4000)
    opened = store(tmp_path)
    for number in range(1000):
        opened.append_round({"round": number})
    rounds = [each["round"] for each in opened.rounds()]
    assert rounds == list(range(rounds[0], 1000)), "the newest stay, in order, none twice"
    assert 100 < len(rounds) < 300
    assert files(tmp_path) == ["rounds.jsonl"]


def test_a_line_of_the_round_log_cut_short_is_left_out_and_harms_no_other(tmp_path: Path) -> None:
    opened = store(tmp_path)
    for number in (1, 2):
        opened.append_round({"round": number})
    log = tmp_path / "rounds.jsonl"
    os.truncate(log, log.stat().st_size - 4)
    assert [each["round"] for each in opened.rounds()] == [1]
    opened.append_round({"round": 3})
    assert [each["round"] for each in opened.rounds()] == [1, 3]
    assert json.loads(log.read_text().splitlines()[-1]) == {"round": 3}


FULL_DISK = f"""
import resource, sys
from pathlib import Path
from protocols.errors import EnvironmentFault
from tests.peer.test_state import ROUNDS, chain, store

opened = store(Path(sys.argv[1]))
for checkpoint in chain()[:-1]:
    opened.save(checkpoint)
resource.setrlimit(resource.RLIMIT_FSIZE, ({VALUES}, resource.RLIM_INFINITY))
for attempt in (
    lambda: opened.save(chain()[-1]),
    lambda: opened.save_pending(chain()[-1].head.seal, ROUNDS, chain()[-1].params, ()),
):
    try:
        attempt()
    except EnvironmentFault as error:
        print(error)
        assert "disk space" in error.remedy
    else:
        raise AssertionError("wrote more than the limit")
"""


def test_a_full_disk_is_a_fault_and_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, check=True, timeout=60, capture_output=True, text=True)
    assert [line.startswith(f"cannot write {tmp_path}/") for line in done.stdout.splitlines()] == [True, True]
    found = store(tmp_path).load()
    assert found is not None and same(found, chain()[-2])
    assert files(tmp_path) == [f"round-{n:08d}.safetensors" for n in (ROUNDS - 2, ROUNDS - 1)]


def test_a_file_in_place_of_the_folder_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    opened = store(tmp_path / "file")
    with pytest.raises(EnvironmentFault, match="cannot write"):
        opened.save(chain()[0])
    with pytest.raises(EnvironmentFault, match="cannot write"):
        opened.append_round({})
