"""The signing journal of a key that has signed on another machine too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from peer.journal import SlotUsed, Withheld
from tests.peer.signing import open_journal, ready, signed, vote

if TYPE_CHECKING:
    from pathlib import Path


def test_what_was_signed_elsewhere_is_kept_and_its_slot_not_signed_again(tmp_path: Path) -> None:
    """The same key ran on another machine; a neighbour shows what it signed there (FC07)."""
    path = tmp_path / "journal"
    (elsewhere,) = signed(tmp_path / "other", ready(7, "a"))
    journal = open_journal(path)
    journal.note(elsewhere, 1)
    size = path.stat().st_size
    journal.note(elsewhere, 1)
    assert path.stat().st_size == size, "once"
    assert journal.sign(ready(7, "b"), 1).encode() == elsewhere.encode() and journal.signed_view == 7
    journal.close()
    assert signed(path, ready(7))[0].encode() == elsewhere.encode(), "after a restart, too"


def test_no_vote_is_signed_below_a_ready_that_was_signed_elsewhere(tmp_path: Path) -> None:
    """The ready promised it (protocol.md 5.4); what this machine had signed before is given out all the same."""
    path = tmp_path / "journal"
    (elsewhere,) = signed(tmp_path / "other", ready(7))
    journal = open_journal(path)
    before = journal.sign(vote(5), 1)
    journal.note(elsewhere, 1)
    size = path.stat().st_size
    with pytest.raises(SlotUsed, match="another machine"):
        journal.sign(vote(6), 1)
    assert path.stat().st_size == size
    assert journal.sign(vote(5), 1).encode() == before.encode()
    assert journal.sign(vote(7), 1).body == vote(7)
    journal.close()


def test_nothing_new_is_signed_while_the_gate_is_shut_and_what_was_signed_is_given_out(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "journal")
    before = journal.sign(vote(3), 1)
    size = (tmp_path / "journal").stat().st_size

    def shut() -> None:
        raise Withheld("another machine runs with this key", remedy="use each key on one machine")

    journal.gate = shut
    with pytest.raises(Withheld, match="another machine"):
        journal.sign(vote(4), 1)
    assert (tmp_path / "journal").stat().st_size == size
    assert journal.sign(vote(3), 1).encode() == before.encode()
    journal.gate = lambda: None
    assert journal.sign(vote(4), 1).body == vote(4)
    journal.close()
