"""From what a session does to what a person sees: the status document, a line per round, the round log."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal, cast

from protocols.errors import LocalError
from protocols.ids import Hash, PeerId, short
from protocols.round.effects import Final, Phase, Record, Sealed, Trouble, Votes

from . import status as st

if TYPE_CHECKING:
    from .state import StateStore
    from .training import WindowResult

log = logging.getLogger(__name__)

REFERENCES = (("uniform", 5.545), ("letters", 3.30), ("bigram", 2.47), ("trigram", 1.85))
"""What simple models reach on the embedded corpus, nats per byte (measured on all 38 plays)."""
EVALUATION_SHARE = 0.1
"""Of the training time that may go into measuring the held-out loss between rounds."""

Evaluate = Callable[[], Awaitable[float]]
TrafficOf = Callable[[], tuple[int, int]]


class Reporter:
    """Keeps the status, writes the log; told by session, trainer and network."""

    def __init__(
        self, initial: st.Status, store: StateStore, *, limits: tuple[int, int], as_json: bool, shakespeare: bool
    ) -> None:
        """``limits``: sealed rounds that end this start, and the run; 0 = none do."""
        self.status = initial
        self.traffic: TrafficOf = lambda: (0, 0)
        self._store, self._limits, self._as_json, self._shakespeare = store, limits, as_json, shakespeare
        self._sealed = 0
        self._entry: dict[str, Any] = {}
        self._window: WindowResult | None = None
        self._counted = (0, 0)
        self._spent = {"train": 0.0, "evaluate": 0.0}

    def apply(self, event: st.Event) -> None:
        """Change the status document."""
        self.status = st.apply(self.status, event)

    def say(self, text: str, **fields: object) -> None:
        """A line for the person at the terminal, or its fields as JSON."""
        log.info("%s", text.strip())
        if self._as_json and not fields:
            return
        sys.stdout.write(f"{json.dumps({'schema': 1, **fields}) if self._as_json else text}\n")
        sys.stdout.flush()

    def warn(self, code: str, text: str, remedy: str = "") -> None:
        """Show a warning in the status and the log."""
        self.apply(st.Warned(code, text, remedy))
        log.warning("%s%s", text, f" ({remedy})" if remedy else "")

    def on_progress(self, step: int, loss: float, steps: int) -> None:
        """The trainer is in the middle of a window."""
        self.apply(st.Progressed(min(1.0, step / steps) if steps else 0.0))

    def on_window(self, window: WindowResult) -> None:
        """The trainer finished a window."""
        self._window = window
        self.apply(st.Cleared("trainer"))
        self._spent["train"] += window.seconds
        seconds = max(window.seconds, 1e-9)
        speed = st.Speed(window.steps / seconds, window.tokens / seconds)
        self.apply(st.Trained(window.tokens, window.loss, speed))

    def on_effect(self, effect: Phase | Final | Votes | Trouble) -> None:
        """A phase began, a seal became final, a late vote came, or something is wrong."""
        match effect:
            case Phase(number, name):
                self.apply(st.PhaseEntered(number, cast("st.Phase", name)))
            case Final(seal, number):
                self._amend(seal, final=True)
                if self.status.round.last_sealed == number:
                    self.apply(st.Sealed(number, self.status.model.state_hash or "", final=True))
            case Votes(head):
                self._amend(head.seal, votes=len(head.votes))
            case Trouble(peer, text):
                self.warn(f"peer-{short(peer)}", f"{peer}: {text}")

    async def on_sealed(self, effect: Sealed) -> bool:
        """A round was sealed and saved: log it; False after the last one that was asked for."""
        self._sealed += 1
        record = effect.record
        self._entry = self._round_entry(effect)
        self._store.append_round(self._entry)
        for warned in self.status.warnings:
            if warned.code in ("p2pd", "checkpoint") or warned.code.startswith("peer-"):
                self.apply(st.Cleared(warned.code))  # a round was sealed all the same; the log keeps it
        self.apply(st.Sealed(record.round, record.state.hex()))
        verdict = cast("Literal['accepted', 'late', 'rejected']", record.verdict)
        self.apply(st.Verdict(record.round, verdict, weight=record.weights.get(PeerId(self.status.peer))))
        return not self._is_last(record.round)

    def _is_last(self, number: int) -> bool:
        """Whether round ``number`` is the last of this start, or of the run."""
        here, run = self._limits
        return bool((here and self._sealed >= here) or (run and number >= run))

    def _wants_held_out(self, number: int) -> bool:
        """Whether it is time to measure: at first, at last, and as long as it stays a small share of the time."""
        return self._is_last(number) or self._spent["evaluate"] <= EVALUATION_SHARE * self._spent["train"]

    async def held_out(self, record: Record, evaluate: Evaluate) -> None:
        """Measure the held-out loss after a round, if it is time to, and print the round's line."""
        loss = None
        if self._wants_held_out(record.round):
            began = time.monotonic()
            try:
                loss = await evaluate()
                self.apply(st.Measured(loss))
            except LocalError as error:  # the trainer died; the round is sealed all the same
                log.warning("the held-out loss after round %d could not be measured: %s", record.round, error)
            self._spent["evaluate"] += time.monotonic() - began
        self._print(record, loss)

    def _print(self, record: Record, loss: float | None) -> None:
        train = self._window.loss if self._window else None
        weight, others = record.weights.get(PeerId(self.status.peer), 0.0), len(record.contributors) - 1
        parts = [
            f"round {record.round:>4}",
            f"loss {train:.3f}" if train is not None else "loss –",
            f"held-out {loss:.3f}{self._beside(loss)}" if loss is not None else "",
            record.verdict if weight == 0.0 or not others else f"weight {weight:.2f} of {others + 1}",
            f"{sum(record.seconds.values()):.1f} s",
        ]
        line = "  ".join(part for part in parts if part)
        fields = {"event": "sealed", "round": record.round, "train_loss": train, "held_out_loss": loss}
        self.say(line, **fields, seal=record.seal.hex(), state_hash=record.state.hex(), verdict=record.verdict)

    def _beside(self, loss: float) -> str:
        """The lowest reference line that the loss has passed."""
        passed = [f" < {name} {value:.2f}" for name, value in REFERENCES if loss < value]
        return passed[-1] if self._shakespeare and passed else ""

    def _amend(self, seal: Hash, **changes: object) -> None:
        """Something of a sealed round became known later: the log gets a newer line for it."""
        if self._entry.get("seal") == seal.hex():
            self._entry = {**self._entry, **changes}
            self._store.append_round(self._entry)

    def _round_entry(self, effect: Sealed) -> dict[str, Any]:
        record = effect.record
        sent, received = self.traffic()
        before, self._counted = self._counted, (sent, received)
        return {
            "schema": 1,
            "round": record.round,
            "unix": time.time(),
            "view": record.view,
            "seal": record.seal.hex(),
            "state_hash": record.state.hex(),
            "coordinator": record.coordinator,
            "contributors": list(record.contributors),
            "weights": record.weights,
            "tokens": record.tokens,
            "reducers": list(record.owners),
            "votes": len(effect.head.votes),
            "final": False,
            "verdict": record.verdict,
            "payload": list(record.payload),
            "bytes_sent": sent - before[0],
            "bytes_received": received - before[1],
            "seconds": record.seconds,
            "train_loss": self._window.loss if self._window else None,
        }
