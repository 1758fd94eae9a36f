"""From what a session does to what a person sees: the status document, a line per round, the round log."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from protocols.errors import EnvironmentFault, LocalError
from protocols.ids import Hash, PeerId, short
from protocols.round.effects import Final, Histories, Notice, Phase, Record, Sealed, Syncing, Told, Trouble, Votes

from . import first_screen, histories
from . import status as st
from .corpus import installed
from .first_screen import REFERENCES
from .journal import Withheld
from .logs import FIELDS, about
from .round_entry import round_entry
from .screen import live_line
from .terminal import Terminal

if TYPE_CHECKING:
    from protocols.manifest import Manifest
    from protocols.round.chain import Head

    from .state import StateStore
    from .training import WindowResult

log = logging.getLogger(__name__)

SAY_S = 5.0
"""Between two lines about something that is on its way."""
SEEK_S = 60.0
"""Between two lines that say that nobody answers."""
EVALUATION_SHARE = 0.1
"""Of the training time that may go into measuring the held-out loss between rounds."""

DISK_REMEDY = "free some disk space: it is tried again by itself, nothing is lost so far"

_NO_REASON = st.Reason()
_HASH = re.compile(r"[0-9a-f]{64}")

Evaluate = Callable[[], Awaitable[float]]
TrafficOf = Callable[[], tuple[int, int]]


class Reporter:
    """Keeps the status, writes the log; told by session, trainer and network."""

    def __init__(self, initial: st.Status, *, as_json: bool) -> None:
        self.status = initial
        self.traffic: TrafficOf = lambda: (0, 0)
        self.syncing = ""
        """What is fetched just now, for a person; empty: nothing."""
        self._fetched: float | None = None
        self.guest: list[first_screen.Item] = []
        """Lines that ``welcome`` shows."""
        self._as_json = as_json
        self._terminal = Terminal(sys.stdout)
        self._finishing = False
        self._said: tuple[str, float] = ("", 0.0)
        self._store: StateStore | None = None
        self._limits, self._shakespeare = (0, 0), False
        self._sealed = 0
        self._head: Head | None = None
        self._entry: dict[str, Any] = {}
        self._window: WindowResult | None = None
        self._counted = (0, 0)
        self._replayed: tuple[int, int] | None = None
        """The first and last round that were caught up with and not told yet."""
        self._spent = {"train": 0.0, "evaluate": 0.0}

    def serve(self, store: StateStore, *, limits: tuple[int, int], shakespeare: bool) -> None:
        """The run is known, and where its rounds are logged.

        ``limits``: rounds sealed and not void that end this start, rounds that end the run; 0 = none do.
        """
        self._store, self._limits, self._shakespeare = store, limits, shakespeare

    def apply(self, event: st.Event) -> None:
        """Change the status document."""
        self.status = st.apply(self.status, event)

    def enter(self, state: st.State, reason: st.Reason = _NO_REASON) -> None:
        """The daemon is in this state, for this reason; ``since`` is when it came into the state."""
        now = self.status
        if (now.state, now.reason) != (state, reason) and now.state != "stopping":
            self.apply(st.StateChanged(state, now.since if now.state == state else time.time(), reason))

    def say(self, text: str, **fields: object) -> None:
        """A line for the person at the terminal, or its fields as JSON."""
        log.info("%s", text.strip(), extra={FIELDS: fields})
        if not self._as_json:
            self._terminal.line(text)
        elif fields:
            self._terminal.line(json.dumps({"schema": 1, **fields}))

    def show(self, *items: first_screen.Item, **fields: object) -> None:
        """The same for lines with a mark and a label."""
        for mark, label, text in items:
            log.info("%s: %s", label, text, extra={FIELDS: fields})
            if not self._as_json:
                self._terminal.item(mark, label, text)
            elif fields:
                self._terminal.line(json.dumps({"schema": 1, **fields}))

    def draw(self) -> None:
        """Rewrite the last line on a terminal: what goes on just now."""
        if not self._as_json and self._terminal.rewrites and self.status.state != "stopping":
            self._terminal.live(live_line(st.to_json(self.status), self._terminal.width, self.fetched))

    @property
    def fetched(self) -> float | None:
        """The share that is here of what is loaded just now."""
        return self._fetched if self.syncing else None

    def clear(self) -> None:
        """Take that line away."""
        self._terminal.clear()

    def warn(self, code: str, text: str, remedy: str = "", *, told: bool = False) -> None:
        """Show a warning in the status and the log; ``told``: the terminal knows already that there is trouble."""
        self.apply(st.Warned(code, text, remedy))
        self._terminal.clear()  # warnings come by another stream
        level = logging.INFO if told else logging.WARNING
        log.log(level, "%s%s", text, f" ({remedy})" if remedy else "", extra={FIELDS: {"code": code}})

    def warned(self, *codes: str) -> bool:
        """Whether a warning with one of these codes stands."""
        return any(each.code in codes for each in self.status.warnings)

    def tell_seeking(self, text: str) -> None:
        """Nobody is there to fetch from."""
        self.syncing = ""
        self._tell_state("seeking", st.Reason("no_peers", text))

    def tell_syncing(self, text: str, fetched: float | None = None) -> None:
        """Something is on its way: what, how much of it, from how many. ``fetched``: the share that is here."""
        self.syncing, self._fetched = text, fetched
        self._tell_state("syncing", st.Reason("none", text))

    def _tell_state(self, state: st.State, reason: st.Reason) -> None:
        """In the status at once, in lines for a person now and then."""
        self.enter(state, reason)
        now, (said, when) = time.monotonic(), self._said
        if state != said or now - when > (SAY_S if state == "syncing" else SEEK_S):
            self._said = (state, now)
            self.welcome()
            self.show(("note", state, reason.text), event=state, reason=reason.text)

    def greet(self, key: str, name: str | None, *, new: bool) -> None:
        """The first lines: who this is, by the file of its ``key``, and the run, by its ``name`` if that is known."""
        now = self.status
        self.say(first_screen.header(now, name), event="started", peer=now.peer, run=now.run.id)
        self.show(first_screen.identity(now, key, new=new))

    def describe(self, manifest: Manifest, values: int, *, counts: bool) -> None:
        """The next lines: what is trained, a model of ``values`` parameters, on what and with whom.

        ``counts``: the run takes in what this peer trains, also where it is no founder.
        """
        self.show(*first_screen.run(manifest, values, embedded=self._shakespeare, here=installed()))
        if self.status.peer not in manifest.members.founders:
            if counts:
                self.show(first_screen.newcomer(manifest.members.probation))
            else:
                self.warn("closed", *first_screen.CLOSED)

    def welcome(self) -> None:
        """What this machine gives and how to have it back: once, before anything that takes a while."""
        items, self.guest = self.guest, []
        self.show(*items)

    def finish(self) -> None:
        """The round under way is the last."""
        self._finishing = True

    def begin(self, head: Head) -> None:
        """The daemon starts from this head."""
        self._head = head
        self._tell_provisional(head)

    def on_progress(self, step: int, steps: int) -> None:
        """The trainer is in the middle of a window of so many steps; 0: it counts seconds."""
        self.apply(st.Progressed(min(1.0, step / steps) if steps else 0.0, self.status.round.deadline_s))
        self.draw()

    def on_window(self, window: WindowResult) -> None:
        """The trainer finished a window."""
        self._window = window
        self.apply(st.Cleared("trainer"))
        self._spent["train"] += window.seconds
        seconds = max(window.seconds, 1e-9)
        speed = st.Speed(window.steps / seconds, window.tokens / seconds)
        self.apply(st.Trained(window.tokens, window.loss, speed))

    def on_effect(self, effect: Told) -> None:
        """A phase began, a seal became final, a late vote came, or something is wrong."""
        match effect:
            case Phase(number, name):
                about(round=number)  # what the session's task logs from here on
                self.apply(st.PhaseEntered(number, cast("st.Phase", name)))
            case Final(seal):
                self._amend(seal, final=True)
                if self._head is not None and self._head.seal == seal:
                    self.apply(st.Finalised())
            case Votes(head):
                self._amend(head.seal, votes=len(head.votes))
            case Trouble(peer, text):
                self.warn(f"peer-{short(peer)}", f"{peer}: {text}")
            case Syncing(done, total, donors, position):
                self._on_syncing(done, total, donors, position)
            case Notice(code, "", _):
                self.apply(st.Cleared(code))
            case Notice(code, text, remedy):
                self.warn(code, text, remedy)
            case Histories(branches):
                shown = histories.Histories.of(branches)
                self.apply(shown)
                if branches:
                    self.warn("histories", shown.text, histories.REMEDY)
                else:
                    self.apply(st.Cleared("histories"))

    def _on_syncing(self, done: int, total: int, donors: int, position: int | None) -> None:
        """A state is loaded, in chunks of 1 MiB; with the last of them it is here."""
        if done >= total:
            self.syncing = ""
            return
        if donors:
            whence = f", from {donors} peer{'s' * (donors > 1)}"
        else:
            whence = f"; place {position} in a queue" if position is not None else "; nobody serves it just now"
        self.tell_syncing(f"the run's state: {done} of {total} MiB{whence}", done / total)

    def on_disk(self, error: EnvironmentFault | None) -> None:
        """The disk refused, and the daemon goes on; None: everything that waited for it is written."""
        if isinstance(error, Withheld):
            if all(each.text != str(error) for each in self.status.warnings):
                self.warn("key", str(error), error.remedy)
        elif error is not None:
            text = _HASH.sub(lambda found: f"{found[0][:8]}…", str(error))
            self.warn("disk", text, DISK_REMEDY, told=self.warned("disk"))
        else:
            if self.warned("disk"):
                self.show(("ok", "disk", "takes everything again: nothing was lost"), event="disk")
            self.apply(st.Cleared("disk"))
            self.apply(st.Cleared("key"))

    async def on_sealed(self, effect: Sealed) -> bool:
        """A seal was adopted: log it; False after the last round that was asked for."""
        record = effect.record
        self.syncing = ""
        self._sealed += self._rounds_made(effect)
        self._head = effect.head
        self._entry = self._round_entry(effect)
        self._log_round()
        for warned in self.status.warnings:
            if warned.code in ("p2pd", "checkpoint") or warned.code.startswith("peer-"):
                self.apply(st.Cleared(warned.code))  # a round was sealed all the same; the log keeps it
        self.apply(st.Sealed(record.round, record.state.hex(), void=record.void))
        self._tell_verdict(record)
        self._tell_provisional(effect.head)
        return not self._is_last(record.round)

    def _rounds_made(self, effect: Sealed) -> int:
        """Rounds that came to something with this seal; those that a resync skipped show in the members' own counts."""
        if not effect.record.synced:
            return int(not effect.record.void)
        before = self._head.table.members if self._head else {}
        after = effect.head.table.members
        gained = [after[each].sealed - before[each].sealed for each in after.keys() & before.keys()]
        return max(1, *gained) if gained else 1

    def _tell_verdict(self, record: Record) -> None:
        if record.void:
            self.apply(st.Verdict(record.round, "void", text=record.reason))
        elif not record.synced:
            weight = record.weights.get(PeerId(self.status.peer))
            self.apply(st.Verdict(record.round, cast("st.Ruling", record.verdict), weight=weight))

    def _tell_provisional(self, head: Head) -> None:
        """Say so while too much weight is lost for anything to become final."""
        table = head.table
        if table.lost and not table.holds(table.voters, head.round):
            text = f"provisional: {len(table.voters)} of {len(table.voters) + len(table.lost)} members"
            if all(each.text != text for each in self.status.warnings):
                self.warn("provisional", text, "nothing becomes final until lost members are back, or long gone")
        elif self.warned("provisional"):
            self.apply(st.Cleared("provisional"))

    def _is_last(self, number: int) -> bool:
        """Whether round ``number`` is the last of this start, or of the run."""
        here, run = self._limits
        return self._finishing or bool((here and self._sealed >= here) or (run and number >= run))

    def _wants_held_out(self, number: int) -> bool:
        """Whether it is time to measure: at first, at last, and as long as it stays a small share of the time."""
        return self._is_last(number) or self._spent["evaluate"] <= EVALUATION_SHARE * self._spent["train"]

    async def held_out(self, record: Record, evaluate: Evaluate | None) -> None:
        """Measure the held-out loss after a round, if it is time to, and print the round's line.

        ``evaluate`` None: nobody can measure it just now.
        """
        loss = None
        # Nothing may keep the trainer from its first window.
        if (
            evaluate is not None
            and not record.void
            and not self._catches_up(record)
            and self._wants_held_out(record.round)
        ):
            began = time.monotonic()
            try:
                loss = await evaluate()
                self.apply(st.Measured(loss))
            except LocalError as error:  # the trainer died; the round is sealed all the same
                log.warning("the held-out loss after round %d could not be measured: %s", record.round, error)
            self._spent["evaluate"] += time.monotonic() - began
        self._tell_round(record, loss)

    def _catches_up(self, record: Record) -> bool:
        """Whether the round was made before this peer had trained anything."""
        return self._window is None and record.verdict == "late"

    def _tell_round(self, record: Record, loss: float | None) -> None:
        """The round's line; rounds that are only caught up with share one."""
        if self._catches_up(record) and not record.synced and not self._as_json:
            first, _ = self._replayed or (record.round, 0)
            self._replayed = (first, record.round)
            return
        if self._replayed is not None:
            first, last = self._replayed
            self._replayed = None
            self.show(("ok", "syncing", f"caught up with rounds {first} to {last}, made before this peer came"))
        train = self._window.loss if self._window else None
        parts = [*self._words(record, loss, train), *self._remarks()]
        fields = {"event": "sealed", "round": record.round, "train_loss": train, "held_out_loss": loss}
        flags = {"void": record.void, "reason": record.reason or None, "synced": record.synced}
        line = "  ".join(part for part in parts if part)
        self.say(line, **fields, **flags, seal=record.seal.hex(), state_hash=record.state.hex(), verdict=record.verdict)

    def _words(self, record: Record, loss: float | None, train: float | None) -> list[str]:
        held_out = f"held-out {loss:.3f}{self._beside(loss)}" if loss is not None else ""
        if record.synced:
            return [f"resynced to round {record.round}: {record.reason or 'the others had gone ahead'}", held_out]
        seconds = f"{sum(record.seconds.values()):.1f} s"
        if record.void:
            return [f"round {record.round:>4}", f"void: {record.reason or 'it came to nothing'}", seconds]
        weight, others = record.weights.get(PeerId(self.status.peer), 0.0), len(record.contributors) - 1
        return [
            f"round {record.round:>4}",
            f"loss {train:.3f}" if train is not None else "loss –",
            held_out,
            record.verdict if weight == 0.0 or not others else f"weight {weight:.2f} of {others + 1}",
            seconds,
        ]

    def _remarks(self) -> list[str]:
        """Who was put out and without whom it goes on, as the last sealed round's entry says."""
        out, lost = (", ".join(short(PeerId(each)) for each in self._entry.get(key, ())) for key in ("out", "lost"))
        return [f"put out: {out}" if out else "", f"goes on without {lost}" if lost else ""]

    def _beside(self, loss: float) -> str:
        """The lowest reference line that the loss has passed."""
        passed = [f" < {name} {value:.2f}" for name, value in REFERENCES if loss < value]
        return passed[-1] if self._shakespeare and passed else ""

    def _amend(self, seal: Hash, **changes: object) -> None:
        """Something of a sealed round became known later: the log gets a newer line for it."""
        if self._entry.get("seal") == seal.hex():
            self._entry = {**self._entry, **changes}
            self._log_round()

    def _log_round(self) -> None:
        """The log is for people: a disk that refuses it ends nothing."""
        if self._store is None:
            return
        try:
            self._store.append_round(self._entry)
        except EnvironmentFault as error:
            self.warn("log", str(error), "free some disk space: the log has a gap, the rounds themselves go on")
        else:
            if self.warned("log"):
                self.apply(st.Cleared("log"))

    def _round_entry(self, effect: Sealed) -> dict[str, Any]:
        counted, before = self.traffic(), self._counted
        self._counted = counted
        moved = counted[0] - before[0], counted[1] - before[1]
        return round_entry(effect, time.time(), moved, self._window.loss if self._window else None)
