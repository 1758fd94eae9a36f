"""What ``--kill`` and ``--join-at`` say, and whether it can be done. Pure."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from protocols.errors import ConfigError

if TYPE_CHECKING:
    from ..options import SwarmOptions

PHASES = ("train", "commit", "roster", "exchange", "reduce", "seal", "apply")
CAST = ("exchange", "reduce", "seal", "apply")
"""Phases in which it is known who reduces."""
ROLES = ("coordinator", "reducer", "contributor")
FORM = (
    f"WHO@ROUND[:PHASE]: WHO is an index, 2x (any two), {', '.join(ROLES[:-1])} or {ROLES[-1]}; "
    f"PHASE is one of {', '.join(PHASES)}"
)
_ABSENT_WHO = re.compile(r"auditor|stage/.*")
_ABSENT_PHASES = ("check",)
_KILL = re.compile(r"(?P<who>[^@:]+)@(?P<round>\d{1,9})(?::(?P<phase>[^@:]+))?", re.ASCII)
_NUMBER = re.compile(r"(?P<number>\d{1,4})(?P<any>x?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Kill:
    """One ``--kill``: whose process dies by SIGKILL, in which phase of which round.

    ``who`` is a role, an index, or a number and ``x``: so many of whoever comes first.
    """

    who: str
    round: int
    phase: str = "train"

    def __str__(self) -> str:
        """As on the command line, the phase always named."""
        return f"{self.who}@{self.round}:{self.phase}"

    @property
    def index(self) -> int | None:
        """The one peer that is meant; None: whoever has the role."""
        return int(self.who) if self.who.isdecimal() else None

    @property
    def count(self) -> int:
        """So many die."""
        return int(self.who[:-1]) if self.who[0].isdecimal() and self.who.endswith("x") else 1


def parse_kill(text: str) -> Kill:
    """Read ``WHO@ROUND[:PHASE]``; raises ConfigError that shows the right form."""
    found = _KILL.fullmatch(text)
    if found is None:
        raise _refused(text, "has not the right form")
    kill = Kill(_who(text, found["who"]), int(found["round"]), found["phase"] or "train")
    if kill.phase in _ABSENT_PHASES:
        raise _refused(text, f"phase {kill.phase} is not in this version")
    if kill.phase not in PHASES:
        raise _refused(text, f"there is no phase {kill.phase!r}")
    if kill.who == "reducer" and kill.phase not in CAST:
        raise _refused(text, f"before {CAST[0]} nobody is a reducer yet")
    if kill.round < 2:
        raise _refused(text, "in round 1 the peers still find each other, so ROUND is 2 or more")
    return kill


def _who(text: str, who: str) -> str:
    if _ABSENT_WHO.fullmatch(who):
        raise _refused(text, f"{who} is not in this version")
    if who in ROLES:
        return who
    number = _NUMBER.fullmatch(who)
    if number is None:
        raise _refused(text, f"there is no {who!r} to kill")
    if number["any"] and not int(number["number"]):
        raise _refused(text, "nobody would die")
    return f"{int(number['number'])}{number['any']}"


def _refused(text: str, why: str) -> ConfigError:
    return ConfigError(f"--kill {text}: {why}", remedy=FORM)


def check(options: SwarmOptions) -> None:
    """Refuse, before anything starts, what the swarm cannot do. Raises ConfigError."""
    chance = ("loss", "deaths", "joins", "partition", "frozen", "slow")
    if not options.virtual and (given := [name for name in chance if getattr(options, name)]):
        raise ConfigError(f"--{given[0]} is for --virtual swarms", remedy="add --virtual, or leave it out")
    if options.trace is not None and not options.virtual and (options.kill or options.join_at):
        raise ConfigError("--trace replays rounds in which nobody dies or joins", remedy="leave one of them out")
    for number in options.join_at:
        if not 1 <= number <= options.rounds:
            raise ConfigError(
                f"--join-at {number}: the swarm has rounds 1 to {options.rounds}", remedy="name one of its rounds"
            )
    for kill in options.kill:
        _check_kill(kill, options)
    twice = [index for index, times in Counter(kill.index for kill in options.kill).items() if times > 1]
    if any(index is not None for index in twice):
        raise ConfigError("--kill: a peer dies only once", remedy="name each index once")
    dead = sum(kill.count for kill in options.kill)
    if dead >= options.peers:
        raise ConfigError(
            f"--kill: {dead} of {options.peers} peers would die, and nobody is sure to be left",
            remedy="kill fewer, or start more --peers",
        )


def _check_kill(kill: Kill, options: SwarmOptions) -> None:
    if kill.round > options.rounds:
        raise ConfigError(f"--kill {kill}: the swarm ends after round {options.rounds}", remedy="name an earlier round")
    if kill.index is None or kill.index < options.peers:
        return
    joins = options.join_at[kill.index - options.peers :]
    if not joins:
        last = options.peers + len(options.join_at) - 1
        raise ConfigError(f"--kill {kill}: there is no such peer", remedy=f"the peers are 0 to {last}")
    if kill.round <= joins[0]:
        raise ConfigError(
            f"--kill {kill}: peer {kill.index} joins at round {joins[0]}", remedy="kill it in a later round"
        )
