"""``--kill`` and ``--join-at``: what is understood, what is refused, who dies, and that it happens once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from peer.cli import parser
from peer.options import SwarmOptions
from peer.swarm.launch import Launcher
from peer.swarm.plan import PHASES, Kill, check, parse_kill
from peer.swarm.victim import TRAINING_S, Fate, Tokens, Victim
from protocols.errors import ConfigError
from protocols.ids import PeerId
from protocols.round.effects import Phase, Sign, Train

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocols.round.effects import Effect
    from protocols.round.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
ME, OTHER = PeerId("me"), PeerId("other")


@pytest.mark.parametrize(
    ("text", "kill", "index", "count"),
    [
        ("3@2", Kill("3", 2, "train"), 3, 1),
        ("03@2", Kill("3", 2, "train"), 3, 1),
        ("2x@4", Kill("2x", 4, "train"), None, 2),
        ("coordinator@3:seal", Kill("coordinator", 3, "seal"), None, 1),
        ("reducer@3:exchange", Kill("reducer", 3, "exchange"), None, 1),
        ("contributor@12:commit", Kill("contributor", 12, "commit"), None, 1),
    ],
)
def test_what_is_understood(text: str, kill: Kill, index: int | None, count: int) -> None:
    found = parse_kill(text)
    assert found == kill
    assert (found.index, found.count) == (index, count)
    assert parse_kill(str(found)) == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "right form"),
        ("3", "right form"),
        ("@3", "right form"),
        ("3@", "right form"),
        ("3@x", "right form"),
        ("3@-2", "right form"),
        ("3@٣", "right form"),
        ("3@2:", "right form"),
        ("3@2:seal:seal", "right form"),
        ("nobody@3", "there is no 'nobody' to kill"),
        ("x@3", "there is no 'x' to kill"),
        ("-1@3", "there is no '-1' to kill"),
        ("0x@3", "nobody would die"),
        ("3@2:lunch", "there is no phase 'lunch'"),
        ("auditor@3", "auditor is not in this version"),
        ("stage/1@3", "stage/1 is not in this version"),
        ("1@3:check", "phase check is not in this version"),
        ("reducer@3", "before exchange nobody is a reducer yet"),
        ("reducer@3:roster", "before exchange nobody is a reducer yet"),
        ("1@1:seal", "ROUND is 2 or more"),
    ],
)
def test_what_is_refused_shows_the_right_form(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_kill(text)
    assert str(caught.value).startswith(f"--kill {text}: ")
    assert why in str(caught.value)
    assert caught.value.remedy.startswith("WHO@ROUND[:PHASE]")
    assert all(phase in caught.value.remedy for phase in PHASES)


@pytest.mark.parametrize(
    ("kills", "joins", "why"),
    [
        (("1@9",), (), "ends after round 8"),
        (("4@3",), (), "no such peer"),
        (("5@3",), (2,), "no such peer"),
        (("4@3",), (3,), "peer 4 joins at round 3"),
        (("1@3", "1@4"), (), "dies only once"),
        (("2x@3", "2x@4"), (), "4 of 4 peers would die"),
        ((), (9,), "rounds 1 to 8"),
    ],
)
def test_what_the_swarm_cannot_do_is_refused(kills: tuple[str, ...], joins: tuple[int, ...], why: str) -> None:
    options = SwarmOptions(kill=tuple(map(parse_kill, kills)), join_at=joins)
    with pytest.raises(ConfigError, match=why):
        check(options)


def test_a_trace_takes_neither_deaths_nor_newcomers(tmp_path: Path) -> None:
    for options in (SwarmOptions(trace=tmp_path, join_at=(2,)), SwarmOptions(trace=tmp_path, kill=(Kill("1", 2),))):
        with pytest.raises(ConfigError, match="--trace"):
            check(options)
    check(SwarmOptions(trace=tmp_path))


def test_what_can_be_done_passes() -> None:
    kills = tuple(map(parse_kill, ("2x@4", "coordinator@8:apply", "6@4:roster", "0@2")))
    check(SwarmOptions(peers=6, rounds=8, kill=kills, join_at=(3,)))


def test_the_command_line_hands_them_on(tmp_path: Path) -> None:
    given = parser().parse_args(["swarm", "--kill", "2x@4", "--kill=coordinator@3:seal", "--join-at=2"])
    assert given.kill == [Kill("2x", 4), Kill("coordinator", 3, "seal")]
    assert given.join_at == [2]
    for wrong in ("--kill=auditor@3", "--kill=3@9", "--join-at=9"):
        command = [sys.executable, "-m", "peer", "swarm", wrong]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"murmur: {wrong.replace('=', ' ').removesuffix('@9')}")
        assert len(done.stderr.splitlines()) == 2


def test_as_many_die_as_were_meant_and_it_is_known_who(tmp_path: Path) -> None:
    tokens, one, two = Tokens(tmp_path), Kill("reducer", 3, "reduce"), Kill("2x", 4)
    assert [tokens.claim(0, one, index) for index in (2, 0)] == [True, False]
    assert [tokens.claim(1, two, index) for index in (1, 3, 0)] == [True, True, False]
    (tmp_path / "2-0").touch()  # being written
    assert tokens.taken() == {2: 0, 1: 1, 3: 1}


@dataclass
class Scripted:
    """As much of a machine as is looked at; it answers every input with what it was told to."""

    number: int = 2
    coordinator: PeerId = OTHER
    cast: Any = None
    answer: list[Effect] = field(default_factory=list)
    me: PeerId = ME
    asked: list[str] = field(default_factory=list)

    @property
    def head(self) -> Any:
        return SimpleNamespace(round=self.number)

    def waiting(self) -> str:
        return "as the machine says"

    def start(self, now: float) -> list[Effect]:
        return self._take("start")

    def receive(self, statement: object, source: PeerId | None, now: float) -> list[Effect]:
        return self._take("receive")

    def trained(self, now: float) -> list[Effect]:
        return self._take("trained")

    def finish(self, now: float) -> list[Effect]:
        return self._take("finish")

    def _take(self, name: str) -> list[Effect]:
        self.asked.append(name)
        out, self.answer = self.answer, []
        return out


@dataclass
class Stage:
    """One peer with kills, a hand-driven timer, and whether it died."""

    machine: Scripted
    victim: Any
    timers: list[tuple[float, Callable[[], None]]]
    deaths: list[int]

    def sees(self, *effects: Effect) -> int:
        """Hand out these effects; how often it died so far."""
        self.machine.answer = list(effects)
        assert self.victim.start(0.0) == list(effects)
        return len(self.deaths)


def stage(folder: Path, *kills: str, index: int = 1, **machine: Any) -> Stage:
    scripted, timers, deaths = Scripted(**machine), [], []
    fate = Fate(
        index,
        [parse_kill(kill) for kill in kills],
        Tokens(folder),
        lambda seconds, call: timers.append((seconds, call)),
        lambda: deaths.append(index),
    )
    return Stage(scripted, Victim(cast("Machine", scripted), fate), timers, deaths)


def sign(kind: str) -> Effect:
    return Sign(cast("Any", SimpleNamespace(kind=kind)))


def train() -> Effect:
    return Train(*cast("Any", (b"", 3, None, None)))


def roles(*, rows: tuple[PeerId, ...] = (ME, OTHER), working: tuple[PeerId, ...] = ()) -> Any:
    return SimpleNamespace(rows=rows, working=working)


@pytest.mark.parametrize("phase", ["exchange", "reduce", "seal", "apply"])
def test_a_reducer_dies_when_its_phase_begins(tmp_path: Path, phase: str) -> None:
    made = stage(tmp_path, f"reducer@3:{phase}", cast=roles(working=(ME,)))
    others = [each for each in PHASES if each != phase]
    assert made.sees(*(Phase(3, each) for each in others), Phase(2, phase), sign(phase)) == 0
    assert made.sees(Phase(3, phase)) == 1
    idle = stage(tmp_path / "a", f"reducer@3:{phase}", cast=roles())
    assert idle.sees(Phase(3, phase)) == 0
    assert stage(tmp_path / "b", f"reducer@3:{phase}").sees(Phase(3, phase)) == 0


@pytest.mark.parametrize("phase", ["roster", "seal"])
def test_the_coordinator_dies_before_it_signs(tmp_path: Path, phase: str) -> None:
    made = stage(tmp_path, f"coordinator@3:{phase}", coordinator=ME)
    assert made.sees(Phase(3, phase)) == 0
    made.machine.number = 1
    assert made.sees(sign(phase)) == 0
    made.machine.number = 2
    assert made.sees(sign("ready"), sign(phase)) == 1
    made.machine.coordinator = OTHER
    assert made.sees(sign(phase)) == 1, "somebody else has the turn"


def test_whoever_is_meant_by_index_dies_and_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    assert stage(tmp_path / "t", "1@3:seal", index=2).sees(Phase(3, "seal")) == 0
    assert stage(tmp_path / "t", "1@3:seal", index=1).sees(Phase(3, "seal")) == 1


def test_a_commit_is_not_signed_any_more(tmp_path: Path) -> None:
    made = stage(tmp_path, "contributor@3:commit")
    assert made.sees(Phase(3, "commit")) == 0
    assert made.sees(sign("commit")) == 1


def test_who_is_no_row_is_no_contributor(tmp_path: Path) -> None:
    assert stage(tmp_path, "contributor@3:reduce", cast=roles(rows=(OTHER,))).sees(Phase(3, "reduce")) == 0
    assert stage(tmp_path, "contributor@3:reduce", cast=roles()).sees(Phase(3, "reduce")) == 1


def test_of_several_candidates_one_dies(tmp_path: Path) -> None:
    made = [stage(tmp_path, "contributor@3:commit", index=index) for index in range(4)]
    assert [each.sees(sign("commit")) for each in made] == [1, 0, 0, 0]
    pair = [stage(tmp_path, "1@2", "2x@3:commit", index=index) for index in range(2, 6)]
    assert [each.sees(sign("commit")) for each in pair] == [1, 1, 0, 0]
    assert Tokens(tmp_path).taken() == {0: 0, 2: 1, 3: 1}


@pytest.mark.parametrize("begins", [train(), Phase(3, "train")], ids=["Train", "Phase"])
def test_death_in_training_waits_until_the_trainer_is_at_work(tmp_path: Path, begins: Effect) -> None:
    made = stage(tmp_path, "contributor@3")
    assert made.sees(begins) == 0
    made.victim.receive("its own", None, 0.0)
    made.victim.finish(0.0)
    assert made.timers == [], "the session still carries out effects"
    made.victim.receive("a statement", OTHER, 0.0)
    made.victim.receive("another", OTHER, 0.0)
    ((seconds, fire),) = made.timers
    assert (seconds, made.deaths) == (TRAINING_S, [])
    fire()
    assert made.deaths == [1]


def test_a_short_window_is_lost_all_the_same(tmp_path: Path) -> None:
    made = stage(tmp_path, "contributor@3")
    assert made.sees(train()) == 0
    made.victim.trained(0.0)
    assert made.deaths == [1]


def test_a_timer_that_is_late_does_not_kill_in_the_next_round(tmp_path: Path) -> None:
    made = stage(tmp_path, "contributor@3")
    made.sees(train())
    made.victim.receive("a statement", OTHER, 0.0)
    made.machine.number = 3
    made.timers[0][1]()
    assert made.deaths == []


def test_all_else_is_the_machine_s(tmp_path: Path) -> None:
    made = stage(tmp_path, "1@3:seal")
    assert (made.victim.waiting(), made.victim.me, made.victim.head.round) == ("as the machine says", ME, 2)
    with pytest.raises(AttributeError):
        _ = made.victim.absent


def test_who_joins_is_no_founder_and_may_come_in(tmp_path: Path) -> None:
    launcher = Launcher(SwarmOptions(peers=2, join_at=(3, 2), size="nano"), tmp_path)
    members = launcher.manifest.members
    assert (members.open, members.probation) == (True, 0)
    assert set(members.founders) == {each.identity.peer for each in launcher.founders}
    assert [each.joins for each in launcher.peers] == [None, None, 3, 2]
    (tmp_path / "closed").mkdir()
    closed = Launcher(SwarmOptions(peers=2, size="nano"), tmp_path / "closed")
    assert closed.manifest.members.open is False
    assert [each.identity.peer for each in closed.peers] == [each.identity.peer for each in launcher.founders]


def test_a_fixed_run_takes_nobody(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    Launcher(SwarmOptions(peers=2, size="nano"), tmp_path / "one")
    options = SwarmOptions(peers=2, join_at=(2,), run=str(tmp_path / "one" / "run.toml"))
    with pytest.raises(ConfigError, match="nobody can join"):
        Launcher(options, tmp_path / "two")
