"""What a person is told: void rounds and why, who was put out, provisional chains, resyncs, a full disk."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from peer import status as st
from peer.corpus import SHARDS
from peer.identity import Identity
from peer.reporter import Reporter
from peer.screen import screen
from peer.training import WindowResult
from protocols.errors import EnvironmentFault
from protocols.ids import Hash, short
from protocols.manifest_defaults import Choices, default_manifest
from protocols.messages import Seal
from protocols.round.chain import Head
from protocols.round.effects import Final, Record, Sealed, Syncing
from protocols.table import LOST, STANDING, STRIKE, Member, Table
from tests.peer.test_state import SCOPE, VALUES, chain, store

if TYPE_CHECKING:
    from pathlib import Path

PEERS = tuple(Identity.from_seed(bytes(31) + bytes([number])) for number in range(1, 7))
ME = PEERS[0]
SEAL = Seal(
    view=9, parent=Hash(bytes(32)), round=9, roster=Hash(bytes(32)), freeze=b"", out=(), grams=(), contributions=(),
    results=(), lost=(), table=Hash(bytes(32)), state=Hash(bytes(32)),
)  # fmt: skip


def table(*, lost: int = 0, rested: dict[int, int] | None = None, sealed: int = 0) -> Table:
    """Six members, the last ``lost`` of them lost; ``rested`` by index."""
    rows = [
        Member(
            each.peer,
            1.0,
            LOST if index >= 6 - lost else STANDING,
            direct=True,
            admitted=Hash(bytes(32)),
            sealed=sealed,
            rested=(rested or {}).get(index, 0),
        )
        for index, each in enumerate(PEERS)
    ]
    return Table({each.peer: each for each in rows})


def head(number: int, members: Table, *, lost: tuple[int, ...] = ()) -> Head:
    body = replace(SEAL, round=number, lost=tuple(PEERS[index].peer for index in lost))
    return Head(Hash(bytes([number] * 32)), number, number, members, SCOPE.state(ME.peer, body, ME.sign), (), table())


def sealed(number: int, members: Table | None = None, *, lost: tuple[int, ...] = (), **record: Any) -> Sealed:
    facts = Record(
        round=number,
        view=number,
        seal=Hash(bytes([number] * 32)),
        coordinator=ME.peer,
        contributors=tuple(each.peer for each in PEERS),
        weights={ME.peer: 0.5},
        tokens={ME.peer: 10},
        owners=(ME.peer,),
        state=Hash(bytes([100 + number] * 32)),
        payload=(1, 2),
        seconds={"train": 1.0, "seal": 0.5},
        verdict="accepted",
    )
    vector = chain()[0].drift
    on = head(number, members or table(), lost=lost)
    return Sealed(on, vector, vector, vector, (), replace(facts, **record))


class Desk:
    """A reporter that begins at round 2 with six members."""

    def __init__(self, folder: Path, limits: tuple[int, int] = (0, 0), members: Table | None = None) -> None:
        self.store = store(folder)
        folder.mkdir(exist_ok=True)
        initial = st.Status(version="1", protocol=1, peer=ME.peer, since=0.0)
        self.reporter = Reporter(initial, as_json=False)
        self.reporter.serve(self.store, limits=limits, shakespeare=False)
        self.reporter.apply(st.Loaded(VALUES, "ab", last_sealed=2))
        self.reporter.begin(head(2, members or table()))

    def take(self, effect: Sealed) -> bool:
        """Tell of a seal, and what it measured; returns whether to go on."""

        async def loss() -> float:
            return 2.5

        async def told() -> bool:
            going_on = await self.reporter.on_sealed(effect)
            await self.reporter.held_out(effect.record, loss)
            return going_on

        return asyncio.run(told())

    @property
    def warnings(self) -> dict[str, str]:
        return {each.code: each.text for each in self.reporter.status.warnings}


def test_a_void_round_says_why_and_counts_as_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk(tmp_path, limits=(2, 0))
    assert desk.take(sealed(3))
    assert desk.take(sealed(4, void=True, reason="no commit reached a third", contributors=(), weights={}))
    status = desk.reporter.status
    assert (status.round.void, status.round.last_sealed) == (1, 4)
    assert status.verdicts[-1] == st.Verdict(4, "void", text="no commit reached a third")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["round", "3", "loss", "–", "held-out", "2.500", "weight", "0.50", "of", "6", "1.5", "s"]
    assert lines[1] == "round    4  void: no commit reached a third  1.5 s"
    entry = list(desk.store.rounds())[-1]
    assert (entry["void"], entry["reason"], entry["synced"]) == (True, "no commit reached a third", False)
    assert not desk.take(sealed(5)), "two rounds that came to something"


def test_rounds_that_are_caught_up_with_share_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk(tmp_path)
    for number in (3, 4, 5):
        desk.take(sealed(number, verdict="late", weights={}))
    assert capsys.readouterr().out == ""
    desk.reporter.on_window(WindowResult(chain()[0].drift, 5, 100, 2.25, 2.25, 1.0))
    desk.take(sealed(6))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == " ✓ syncing    caught up with rounds 3 to 5, made before this peer came"
    assert lines[1].split()[:4] == ["round", "6", "loss", "2.250"]
    desk.take(sealed(7, verdict="late", weights={}))
    assert "late" in capsys.readouterr().out, "that one it could have been in"


def test_the_run_ends_by_the_heads_number_void_or_not(tmp_path: Path) -> None:
    desk = Desk(tmp_path, limits=(0, 4))
    assert desk.take(sealed(3, void=True))
    assert not desk.take(sealed(4, void=True))


def test_a_resync_tells_how_far_and_counts_the_rounds_it_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path, limits=(4, 0), members=table(sealed=2))
    assert desk.take(sealed(9, table(sealed=5), synced=True, reason="the head of 12D3 wins"))
    assert capsys.readouterr().out.startswith("resynced to round 9: the head of 12D3 wins  held-out 2.500")
    assert desk.reporter.status.round.last_sealed == 9 and desk.reporter.status.verdicts == ()
    assert not desk.take(sealed(10, table(sealed=6)))
    assert [entry["synced"] for entry in desk.store.rounds()] == [True, False]


def test_final_is_what_the_head_is(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.take(sealed(3))
    desk.reporter.on_effect(Final(Hash(bytes([2] * 32)), 2))
    assert desk.reporter.status.round.final is False
    desk.reporter.on_effect(Final(Hash(bytes([3] * 32)), 3))
    assert desk.reporter.status.round.final is True
    assert list(desk.store.rounds())[-1]["final"]
    desk.take(sealed(4, void=True))
    assert (desk.reporter.status.round.final, desk.reporter.status.round.void) == (False, 1)


def test_a_chain_without_too_many_is_provisional_until_they_are_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path)
    desk.take(sealed(3, table(lost=1), lost=(5,), void=True, reason="shrink"))
    assert "provisional" not in desk.warnings, "five of six are more than two thirds"
    assert f"goes on without {short(PEERS[5].peer)}" in capsys.readouterr().out
    desk.take(sealed(4, table(lost=3)))
    assert desk.warnings["provisional"] == "provisional: 3 of 6 members"
    assert "provisional" in Desk(tmp_path, members=table(lost=3)).warnings, "a restart says so as well"
    desk.take(sealed(5, table(lost=2)))
    assert desk.warnings["provisional"] == "provisional: 4 of 6 members"
    desk.take(sealed(6, table()))
    assert "provisional" not in desk.warnings


def test_a_reducer_that_was_put_out_is_named_in_that_round_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path)
    for number in (3, 4):
        desk.take(sealed(number, table(rested={2: 3 + STRIKE})))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(f"put out: {short(PEERS[2].peer)}") and "put out" not in lines[1]
    assert [entry["out"] for entry in desk.store.rounds()] == [[PEERS[2].peer], []]


def test_a_full_disk_is_a_warning_until_it_takes_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path)
    desk.reporter.on_disk(EnvironmentFault("cannot write x: No space left on device", remedy="start again"))
    (warned,) = desk.reporter.status.warnings
    assert (warned.code, warned.text) == ("disk", "cannot write x: No space left on device")
    assert "by itself" in warned.remedy

    def full(entry: dict[str, Any]) -> None:
        raise EnvironmentFault("cannot write rounds.jsonl", remedy="") from OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(desk.store, "append_round", full)
        assert desk.take(sealed(3)), "the log is for people"
    assert set(desk.warnings) == {"disk", "log"}
    assert desk.take(sealed(4))
    desk.reporter.on_disk(None)
    assert desk.warnings == {}


def test_a_full_disk_is_told_once_and_so_is_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(tmp_path)
    for name in ("pending", "round", "pending"):
        desk.reporter.on_disk(EnvironmentFault(f"cannot write /runs/{'ab' * 32}/{name}: full", remedy=""))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    (warned,) = desk.reporter.status.warnings
    assert warned.text == "cannot write /runs/abababab…/pending: full"
    for _ in range(2):
        desk.reporter.on_disk(None)
    assert capsys.readouterr().out.splitlines() == [" ✓ disk       takes everything again: nothing was lost"]


def test_what_a_machine_gives_is_said_once_and_before_a_long_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path)
    desk.reporter.guest = [("note", "stop", "Ctrl-C")]
    desk.reporter.tell_seeking("nobody answers")
    desk.reporter.welcome()
    assert capsys.readouterr().out.splitlines() == [" · stop       Ctrl-C", " · seeking    nobody answers"]


def test_who_catches_up_measures_nothing_before_it_has_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    desk = Desk(tmp_path)
    for number in (3, 4):
        desk.take(sealed(number, verdict="late", weights={}))
    assert "held-out" not in capsys.readouterr().out
    desk.reporter.on_window(WindowResult(chain()[0].drift, 1, 10, 2.0, 2.0, 100.0))
    desk.take(sealed(5, verdict="late", weights={}))
    assert "held-out 2.500" in capsys.readouterr().out


@pytest.mark.parametrize(("founder", "counts"), [(True, False), (False, True), (False, False)])
def test_who_joins_is_told_whether_its_work_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], founder: bool, counts: bool
) -> None:
    desk = Desk(tmp_path)
    choices = Choices(open=counts, probation=2)
    manifest = default_manifest(choices, founders=[PEERS[not founder].peer], shards=SHARDS[:2])
    desk.reporter.describe(manifest, VALUES, counts=counts)
    told = "after 3 sealed rounds" in capsys.readouterr().out
    assert (told, "closed" in desk.warnings) == (counts and not founder, not counts and not founder)


def test_what_is_fetched_is_a_state_with_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk(tmp_path)
    desk.reporter.tell_seeking("nobody of the run answers yet, trying 3 addresses")
    now = desk.reporter.status
    assert (now.state, now.reason.code) == ("seeking", "no_peers")
    desk.reporter.tell_syncing("1 of 38 files, 0.1 of 5.4 MB, from 2 peers")
    desk.reporter.tell_syncing("2 of 38 files, 0.3 of 5.4 MB, from 2 peers")
    now = desk.reporter.status
    assert (now.state, now.reason.code, now.reason.text[:12]) == ("syncing", "none", "2 of 38 file")
    assert ": 2 of 38 files, 0.3 of 5.4 MB, from 2 peers" in screen(st.to_json(now))
    assert capsys.readouterr().out.splitlines() == [
        " · seeking    nobody of the run answers yet, trying 3 addresses",
        " · syncing    1 of 38 files, 0.1 of 5.4 MB, from 2 peers",
    ], "a line for a person only now and then"
    for effect, text in (
        (Syncing(1, 3, 2, None), "the run's state: 1 of 3 MiB, from 2 peers"),
        (Syncing(1, 3, 0, 4), "the run's state: 1 of 3 MiB; place 4 in a queue"),
        (Syncing(1, 3, 0, None), "the run's state: 1 of 3 MiB; nobody serves it just now"),
        (Syncing(3, 3, 1, None), ""),
    ):
        desk.reporter.on_effect(effect)
        assert desk.reporter.syncing == text
    desk.reporter.on_effect(Syncing(1, 3, 1, None))
    assert desk.reporter.syncing == "the run's state: 1 of 3 MiB, from 1 peer"
    desk.take(sealed(9, synced=True))
    assert desk.reporter.syncing == ""
    desk.reporter.enter("stopping")
    desk.reporter.tell_seeking("again")
    assert desk.reporter.status.state == "stopping", "whoever ends does nothing else any more"


def test_json_lines_tell_void_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk(tmp_path)
    desk.reporter._as_json = True
    desk.take(sealed(3, void=True, reason="why"))
    line = json.loads(capsys.readouterr().out)
    assert (line["event"], line["void"], line["reason"], line["synced"]) == ("sealed", True, "why", False)


def test_no_bar_is_left_of_what_was_loaded_before(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.reporter.tell_syncing("the data: 3 of 4 MB", 0.75)
    assert desk.reporter.fetched == 0.75
    desk.reporter.syncing = ""
    assert desk.reporter.fetched is None
