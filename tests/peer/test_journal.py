"""The signing journal: one statement for each slot, whatever happens to the process or the disk."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from peer import journal as module
from peer.identity import Identity
from peer.journal import Journal
from protocols.errors import EnvironmentFault, LocalError
from protocols.ids import Hash, digest
from protocols.messages import Body, Commit, Leg, Ready, Vote
from protocols.statements import Scope, Statement

ROOT = Path(__file__).resolve().parents[2]
ME = Identity.from_seed(bytes(31) + b"\x05")
SCOPE = Scope(bytes(range(32)), "model")


def name(label: object) -> Hash:
    return digest(str(label).encode())


def vote(view: int, seal: object = "seal") -> Vote:
    return Vote(view, name(seal))


def open_journal(path: Path) -> Journal:
    return Journal(path, SCOPE, ME.peer, ME.sign)


def signed(path: Path, *bodies: Body, round_number: int = 1) -> list[Statement]:
    """What a journal opened afresh signs for these bodies."""
    journal = open_journal(path)
    try:
        return [journal.sign(body, round_number) for body in bodies]
    finally:
        journal.close()


def test_the_same_body_gives_the_same_bytes_and_another_one_the_older_statement(tmp_path: Path) -> None:
    path = tmp_path / "run" / "journal"
    parent = name("parent")
    bodies: list[Body] = [
        Commit(parent, name("root"), (Leg(parent, 25, 25600),), 0, True),
        Ready(7, parent, (name("a"), name("b"))),
        vote(7),
    ]
    first = signed(path, *bodies)
    assert all(SCOPE.decode(each.encode(), sender="test") == each for each in first)
    size = path.stat().st_size
    assert [each.encode() for each in signed(path, *bodies)] == [each.encode() for each in first]
    others: list[Body] = [Commit(parent, name("other"), (), 0, True), Ready(7, parent, ()), vote(7, "other")]
    again = signed(path, *others)
    assert [each.encode() for each in again] == [each.encode() for each in first]
    assert [each.body for each in again] == bodies
    assert path.stat().st_size == size


def test_kinds_and_views_are_slots_of_their_own(tmp_path: Path) -> None:
    one, two, three = signed(tmp_path / "journal", vote(1), vote(2, "other"), Ready(1, name("seal"), ()))
    assert [one.body, two.body, three.body] == [vote(1), vote(2, "other"), Ready(1, name("seal"), ())]


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
    first = {number: journal.sign(vote(number), number) for number in range(1, 11)}
    before = path.stat().st_size
    journal.forget_before(10)
    assert path.stat().st_size == before, "a small file is not rewritten"
    monkeypatch.setattr(module, "COMPACT_BYTES", 1)
    journal.forget_before(10)
    assert path.stat().st_size < before
    for number in range(1, 7):
        assert first[number].raw not in path.read_bytes()
        with pytest.raises(LocalError, match="already signed for rounds after"):
            journal.sign(vote(number), number)
    journal.sign(vote(11), 11)
    journal.close()
    again = open_journal(path)
    for number in range(7, 11):
        assert again.sign(vote(number, "other"), number).encode() == first[number].encode()
    assert again.sign(vote(11, "other"), 11).body == vote(11)
    with pytest.raises(LocalError, match="already signed"):
        again.sign(vote(6, "other"), 6)
    again.close()
    assert [each.name for each in tmp_path.iterdir()] == ["journal"]


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
