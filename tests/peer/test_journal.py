"""The signing journal: one statement for each slot, whatever happens to the process or the disk."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from peer import journal as module
from peer.journal import COMPACT_BYTES, VIEWS_KEPT, SlotUsed
from protocols.errors import EnvironmentFault
from protocols.messages import Body, Commit, Leg, Ready, Result, Vote
from tests.peer.signing import SCOPE, name, open_journal, ready, result, signed, vote

ROOT = Path(__file__).resolve().parents[2]


def test_the_same_body_gives_the_same_bytes_and_another_one_the_older_statement(tmp_path: Path) -> None:
    path = tmp_path / "run" / "journal"
    parent = name("parent")
    bodies: list[Body] = [
        Commit(parent, name("root"), (Leg(parent, 25, 25600),), 0, True),
        ready(7, "a", "b"),
        vote(7),
    ]
    first = signed(path, *bodies)
    assert all(SCOPE.decode(each.encode(), sender="test") == each for each in first)
    size = path.stat().st_size
    assert [each.encode() for each in signed(path, *bodies)] == [each.encode() for each in first]
    others: list[Body] = [Commit(parent, name("other"), (), 0, True), ready(7), vote(7, "other")]
    again = signed(path, *others)
    assert [each.encode() for each in again] == [each.encode() for each in first]
    assert [each.body for each in again] == bodies
    assert path.stat().st_size == size


def test_kinds_and_views_are_slots_of_their_own(tmp_path: Path) -> None:
    one, two, three = signed(tmp_path / "journal", vote(1), vote(2, "other"), ready(1))
    assert [one.body, two.body, three.body] == [vote(1), vote(2, "other"), ready(1)]


def test_a_statement_is_in_the_file_before_it_is_handed_out(tmp_path: Path) -> None:
    """Read through another handle while the journal is open: nothing may wait in a buffer."""
    path = tmp_path / "journal"
    journal = open_journal(path)
    for view in range(3):
        statement = journal.sign(vote(view), 1)
        assert statement.raw in path.read_bytes()
        assert statement.signature in path.read_bytes()
    journal.close()


def test_only_the_owner_may_read_it_even_after_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    old = os.umask(0)
    try:
        journal = open_journal(path)
        journal.sign(vote(1), 1)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        monkeypatch.setattr(module, "COMPACT_BYTES", 1)
        journal.forget_before(1)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        journal.close()
    finally:
        os.umask(old)


def test_killed_at_any_byte_of_a_record_it_keeps_all_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first = signed(path, vote(1), vote(2))
    start = path.stat().st_size
    signed(path, vote(3))
    whole = path.read_bytes()
    for length in range(start, len(whole)):
        path.write_bytes(whole[:length])
        # The third was never sent, so its slot is free; the first two are not.
        again = signed(path, vote(1, "x"), vote(2, "x"), vote(3, "new"))
        assert [each.encode() for each in again[:2]] == [each.encode() for each in first]
        assert again[2].body == vote(3, "new")
        assert [each.body for each in signed(path, vote(3))] == [vote(3, "new")]


@pytest.mark.parametrize("written", [0, 1, 5, 12, 40])
def test_zeros_where_a_power_failure_lost_the_last_record_are_its_end(tmp_path: Path, written: int) -> None:
    path = tmp_path / "journal"
    signed(path, vote(1))
    start = path.stat().st_size
    signed(path, vote(2))
    whole = path.read_bytes()
    path.write_bytes(whole[: start + written] + bytes(len(whole) - start - written))
    assert [each.body for each in signed(path, vote(1, "x"), vote(2, "new"))] == [vote(1), vote(2, "new")]


def test_any_flipped_byte_is_one_clear_fault_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    signed(path, vote(1), vote(2), vote(3))
    whole = path.read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x40
        path.write_bytes(damaged)
        with pytest.raises(EnvironmentFault, match="journal .* is damaged at byte") as caught:
            open_journal(path)
        assert "new --home" in caught.value.remedy
        assert "\n" not in str(caught.value)
        assert path.read_bytes() == damaged


@pytest.mark.parametrize("tail", [b"\xff" * 12, b"garbage garbage", os.urandom(4) + b"\x01" * 300, bytes(20) + b"x"])
def test_a_tail_that_no_crash_writes_is_a_fault(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "journal"
    signed(path, vote(1))
    path.write_bytes(path.read_bytes() + tail)
    with pytest.raises(EnvironmentFault, match="damaged"):
        open_journal(path)


def test_bytes_missing_in_the_middle_are_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    signed(path, vote(1))
    start = path.stat().st_size
    signed(path, vote(2), vote(3))
    whole = path.read_bytes()
    path.write_bytes(whole[: start + 30] + whole[start + 40 :])
    with pytest.raises(EnvironmentFault, match="damaged"):
        open_journal(path)


def test_compaction_keeps_what_may_still_be_signed_and_forgets_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path)
    bodies: dict[int, list[Body]] = {number: [vote(number), result(number)] for number in range(1, 11)}
    first = {number: [journal.sign(body, number) for body in bodies[number]] for number in bodies}
    before = path.stat().st_size
    journal.forget_before(10)
    assert path.stat().st_size == before, "a small file is not rewritten"
    monkeypatch.setattr(module, "COMPACT_BYTES", 1)
    journal.forget_before(10)
    assert path.stat().st_size < before
    journal.sign(vote(11), 11)
    journal.sign(result("another chain's"), 2)
    journal.close()
    again = open_journal(path)
    for number in range(1, 11):
        for old, other in zip(first[number], (vote(number, "other"), result(number, "other")), strict=True):
            if number < 7:
                assert old.raw not in path.read_bytes()
                with pytest.raises(SlotUsed, match="may have signed another"):
                    again.sign(other, 11)
            else:
                assert again.sign(other, number).encode() == old.encode()
    assert again.sign(vote(11, "other"), 11).body == vote(11)
    assert again.sign(result("another chain's", "other"), 2).body == result("another chain's")
    again.close()
    assert [each.name for each in tmp_path.iterdir()] == ["journal"]


def test_days_of_failed_views_do_not_grow_it_and_no_forgotten_view_is_signed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round in flight for thousands of views: the file stays small, and each slot keeps its one statement."""
    monkeypatch.setattr(module, "COMPACT_BYTES", COMPACT_BYTES // 32)
    monkeypatch.setattr(os, "fsync", lambda file: None)  # for speed
    path, views = tmp_path / "journal", 3000
    journal = open_journal(path)
    first: dict[Body, bytes] = {}
    largest = 0
    for view in range(1, views + 1):
        for given in (ready(view), vote(view), result(view // 7)):
            first.setdefault(given, journal.sign(given, 1).encode())
        if view % 500 == 0:
            journal.close()
            journal = open_journal(path)
            assert journal.signed_view == view
        largest = max(largest, path.stat().st_size)
    assert largest < 160_000
    refused = 0
    for body, encoded in first.items():
        other: Body = replace(body, commits=(name("x"),)) if isinstance(body, Ready) else result(0)
        if isinstance(body, Vote):
            other = vote(body.view, "other")
        elif isinstance(body, Result):
            other = replace(body, root=name("other"))
        try:
            assert journal.sign(other, 1).encode() == encoded
        except SlotUsed:
            refused += 1
    assert refused > views
    for view in range(views - VIEWS_KEPT + 1, views + 1):
        assert journal.sign(ready(view, "other"), 1).encode() == first[ready(view)]
    journal.close()


def test_the_signed_view_is_that_of_readys_and_outlives_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path)
    assert journal.signed_view == 0
    journal.sign(vote(9), 1)
    assert journal.signed_view == 0
    journal.sign(ready(5), 1)
    journal.sign(ready(3), 1)
    assert journal.signed_view == 5
    monkeypatch.setattr(module, "COMPACT_BYTES", 1)
    journal.forget_before(10)
    assert journal.signed_view == 5
    journal.close()
    assert ready(5).kind.encode() not in b"".join(each.raw for each in signed(path, vote(20), round_number=11))
    again = open_journal(path)
    assert again.signed_view == 5
    with pytest.raises(SlotUsed):
        again.sign(ready(5), 11)
    again.close()


def test_slots_that_are_very_old_are_refused_by_their_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOTS_KEPT", 4)
    monkeypatch.setattr(module, "COMPACT_BYTES", 1)
    journal = open_journal(tmp_path / "journal")
    for number in range(1, 41):
        journal.sign(result(number), number)
        journal.forget_before(number)
    assert len(journal._forgotten.used) <= 20, "used slots are not kept for ever"
    for number in range(1, 30):
        with pytest.raises(SlotUsed):
            journal.sign(result(number, "other"), number)
    journal.close()


def test_a_disk_that_refuses_a_compaction_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    journal = open_journal(path)
    first = [journal.sign(vote(number), number) for number in range(1, 11)]
    whole = path.read_bytes()

    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "COMPACT_BYTES", 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        journal.forget_before(10)
    assert path.read_bytes() == whole and [each.name for each in tmp_path.iterdir()] == ["journal"]
    assert journal.sign(vote(1, "other"), 1).encode() == first[0].encode()
    journal.close()


def test_what_the_disk_took_of_a_refused_record_goes_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when it could not be cut off at once."""
    path = tmp_path / "journal"
    journal = open_journal(path)
    journal.sign(vote(1), 1)
    write, truncate = os.write, os.ftruncate

    def some(file: int, data: bytes) -> int:
        if len(data) < 50:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[:50])

    def never(file: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", some)
        patched.setattr(os, "ftruncate", never)
        with pytest.raises(EnvironmentFault, match="No space left"):
            journal.sign(vote(2), 1)
        assert path.stat().st_size > journal._size
    assert os.ftruncate is truncate
    journal.sign(vote(2, "new"), 1)
    journal.close()
    assert [each.body for each in signed(path, vote(1, "x"), vote(2, "x"))] == [vote(1), vote(2, "new")]


def test_a_crash_during_compaction_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    signed(path, vote(1))
    path.with_suffix(".new").write_bytes(b"half a journal")
    assert signed(path, vote(1, "other"))[0].body == vote(1)


FULL_DISK = f"""
import resource, sys
from pathlib import Path
from protocols.errors import EnvironmentFault
from tests.peer.test_journal import open_journal, vote

path = Path(sys.argv[1])
journal = open_journal(path)
journal.sign(vote(1), 1)
size = path.stat().st_size
for room in range(0, size, 7):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, resource.RLIM_INFINITY))
    try:
        journal.sign(vote(2), 1)
    except EnvironmentFault as error:
        assert error.remedy and path.stat().st_size == size, (room, path.stat().st_size)
    else:
        raise AssertionError(room)
resource.setrlimit(resource.RLIMIT_FSIZE, ({resource.RLIM_INFINITY}, resource.RLIM_INFINITY))
assert journal.sign(vote(2, "new"), 1).body == vote(2, "new")
journal.close()
"""


def test_a_full_disk_signs_nothing_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], cwd=ROOT, check=True, timeout=30)
    assert [each.body for each in signed(path, vote(1, "x"), vote(2, "x"))] == [vote(1), vote(2, "new")]


def test_a_place_that_cannot_be_written_is_one_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot write the signing journal"):
        open_journal(tmp_path / "file" / "journal")
